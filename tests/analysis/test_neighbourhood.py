from __future__ import annotations

import pytest
import torch

from counterfoil.analysis.ndgl import neighbourhood
from counterfoil.core.types import Embeddings
from counterfoil.scoring.encode import EmbeddedDataset
from evaluation_cases import Product, ragged

OWNER = ragged(8, 4, orphans=1)


def vectors(count: int, width: int, seed: int) -> Embeddings:
    rng = torch.Generator().manual_seed(seed)
    found = torch.nn.functional.normalize(torch.randn(count, 1, width, generator=rng), dim=2)
    return Embeddings(found, torch.ones(count, 1).bool())


IMAGES, TEXTS = vectors(8, 5, 0), vectors(len(OWNER), 5, 1)
MODEL = EmbeddedDataset(Product(), IMAGES, TEXTS)


def test_cosines_are_those_of_loops():
    row = int(OWNER[OWNER >= 0][0])
    found = neighbourhood([MODEL], OWNER, "i2t", row, negatives=4)
    scores = IMAGES.tokens[row, 0] @ TEXTS.tokens[:, 0].T
    wrong = sorted((t for t in range(len(OWNER)) if OWNER[t] != row), key=lambda t: -scores[t])[:4]
    true = [t for t in range(len(OWNER)) if OWNER[t] == row]
    assert found.wrong.tolist() == wrong
    assert found.true.tolist() == true
    assert found.cosines["to_true"] == pytest.approx(
        sum(float(scores[t]) for t in true) / len(true)
    )
    assert found.cosines["to_wrong"] == pytest.approx(sum(float(scores[t]) for t in wrong) / 4)
    pairs = [(a, b) for a in wrong for b in wrong if a != b]
    each = [float(TEXTS.tokens[a, 0] @ TEXTS.tokens[b, 0]) for a, b in pairs]
    assert found.cosines["among_wrong"] == pytest.approx(sum(each) / len(each))
    assert found.points.shape == (1 + len(true) + 4, 2)


def test_a_text_of_no_image_has_nothing_true():
    row = int((OWNER < 0).nonzero()[0])
    found = neighbourhood([MODEL], OWNER, "t2i", row, negatives=99, method="pca")
    assert len(found.true) == 0
    assert len(found.wrong) == 8
    assert found.cosines["to_true"] is None


def test_one_wrong_counterpart_has_no_pair():
    found = neighbourhood([MODEL], OWNER, "t2i", 0, negatives=1)
    assert found.cosines["among_wrong"] is None


def test_widths_have_to_agree():
    apart = Embeddings(TEXTS.tokens[..., :3].repeat(1, 2, 1), torch.ones(len(OWNER), 2).bool())
    members = [EmbeddedDataset(_Constant(), IMAGES, apart)]
    with pytest.raises(ValueError, match="vectors of 5 and 3 numbers"):
        neighbourhood(members, OWNER, "i2t", 0)


def test_one_image_has_nothing_wrong():
    one = EmbeddedDataset(Product(), IMAGES.rows(torch.tensor([0])), TEXTS.rows(torch.arange(2)))
    with pytest.raises(ValueError, match="nothing is wrong for image row 0"):
        neighbourhood([one], torch.zeros(2).long(), "i2t", 0)


class _Constant(Product):
    def score_matrix(self, images, texts):
        return torch.zeros(len(images), len(texts))
