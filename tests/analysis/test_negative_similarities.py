from __future__ import annotations

import pytest
import torch

from counterfoil.analysis.ndgl import negative_similarities, share_below
from counterfoil.core.types import Embeddings
from counterfoil.scoring.encode import EmbeddedDataset
from evaluation_cases import Product, member, ragged, scores


def vectors(count: int, seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, 5, generator=rng), dim=1)


def dense(images: torch.Tensor, texts: torch.Tensor) -> EmbeddedDataset:
    pools = (Embeddings(p.unsqueeze(1), torch.ones(len(p), 1).bool()) for p in (images, texts))
    return EmbeddedDataset(Product(), *pools)


@pytest.mark.parametrize("top", [1, 4, 99])
def test_similarities_are_those_of_loops(top):
    text_to_image = ragged(11, 2, orphans=1)
    pools = vectors(11, 0), vectors(len(text_to_image), 1)
    sides = negative_similarities([dense(*pools)], text_to_image, top=top)
    true = text_to_image == torch.arange(11).unsqueeze(1)
    lines = (pools[0] @ pools[1].T).masked_fill(true, -torch.inf)
    for side, scored, pool in zip(sides.values(), (lines, lines.T), (pools[1], pools[0])):
        hardest, all_of_them, between = [], [], []
        for line in scored:
            rows = [r for r in line.sort(descending=True).indices.tolist() if line[r] > -9][:top]
            hardest.append(float(line[rows[0]]))
            all_of_them += [float(line[row]) for row in rows]
            between += [float(pool[rows[0]] @ pool[row]) for row in rows[1:]]
        for values, expected in zip(side, (hardest, all_of_them, between)):
            assert values.tolist() == pytest.approx(expected, abs=1e-6)


def test_scores_are_in_their_unit():
    text_to_image = ragged(7, 0)
    found = scores(7, text_to_image, 0)
    ten = member(found * 10)
    ten.model.score_scale = 10.0
    plain, scaled = (negative_similarities([m], text_to_image, top=3) for m in (member(found), ten))
    for what, (_, every, _) in plain.items():
        assert every.tolist() == pytest.approx(scaled[what][1].tolist(), abs=1e-5)


def test_shares():
    assert share_below(torch.tensor([0.4, 0.5, 0.6, 0.1]), 0.5) == 50.0


def test_one_image_has_nothing_wrong():
    with pytest.raises(ValueError, match="none of the 1 i2t queries has a wrong counterpart"):
        negative_similarities([member(torch.rand(1, 3))], torch.zeros(3).long())
