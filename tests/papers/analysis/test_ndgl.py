"""Margins, similarities and maps of NDGL, against loops."""

from __future__ import annotations

import pytest
import torch

from counterfoil.core.types import Embeddings
from counterfoil.papers.ndgl.figures import (
    margins,
    negative_similarities,
    neighbourhood,
    principal_components,
    share_below,
    tsne,
)
from counterfoil.scoring.encode import EmbeddedDataset
from evaluation_cases import Product, member, ragged, scores

# Figure 3b: margins.


def slow_margins(found, text_to_image):
    """Margins of every query by looking at its whole line."""
    true = text_to_image == torch.arange(len(found)).unsqueeze(1)
    sides = []
    for lines, marks in ((found, true), (found.T, true.T)):
        each = [(line[mark], line[~mark]) for line, mark in zip(lines, marks)]
        sides.append([float(a.max()) - float(b.max()) for a, b in each if len(a) and len(b)])
    return sides


def scaled(found, scale):
    one = member(found * scale)
    one.model.score_scale = scale
    return one


@pytest.mark.parametrize("seed", range(3))
def test_margins_are_those_of_a_loop(seed):
    text_to_image = ragged(19, seed, orphans=2)
    found = scores(19, text_to_image, seed)
    both = margins([member(found)], text_to_image)
    assert list(both) == ["i2t", "t2i"]
    for side, values, queries in zip(
        both.values(), slow_margins(found, text_to_image), found.shape
    ):
        assert len(side) == queries
        assert side[~side.isnan()].tolist() == pytest.approx(values)


def test_margins_are_in_units_of_the_score():
    text_to_image = ragged(9, 1)
    found = scores(9, text_to_image, 1)
    for members in ([scaled(found, 10.0)], [scaled(found, 10.0), scaled(found, 2.0)]):
        for side, values in zip(
            margins(members, text_to_image).values(), slow_margins(found, text_to_image)
        ):
            assert side[~side.isnan()].tolist() == pytest.approx(values, abs=1e-5)


def test_a_tie_is_not_below():
    assert share_below(torch.tensor([0.0, 1.0, -1.0, 2.0]), 0) == 25.0


# Figure 1c: similarities of the hardest negatives.


def unit_vectors(count: int, seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, 5, generator=rng), dim=1)


def dense(images: torch.Tensor, texts: torch.Tensor) -> EmbeddedDataset:
    pools = (Embeddings(p.unsqueeze(1), torch.ones(len(p), 1).bool()) for p in (images, texts))
    return EmbeddedDataset(Product(), *pools)


@pytest.mark.parametrize("top", [1, 4, 99])
def test_similarities_are_those_of_loops(top):
    text_to_image = ragged(11, 2, orphans=1)
    pools = unit_vectors(11, 0), unit_vectors(len(text_to_image), 1)
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


def test_similarities_are_in_units_of_the_score():
    text_to_image = ragged(7, 0)
    found = scores(7, text_to_image, 0)
    plain, ten = (
        negative_similarities([scaled(found, scale)], text_to_image, top=3) for scale in (1.0, 10.0)
    )
    for what, (_, every, _) in plain.items():
        assert every.tolist() == pytest.approx(ten[what][1].tolist(), abs=1e-5)


# Figure 1b: maps.


OWNER = ragged(8, 4, orphans=1)


IMAGES, TEXTS = unit_vectors(8, 0), unit_vectors(len(OWNER), 1)
MODEL = dense(IMAGES, TEXTS)


def test_cosines_are_those_of_loops():
    row = int(OWNER[OWNER >= 0][0])
    found = neighbourhood([MODEL], OWNER, "i2t", row, negatives=4)
    scores = IMAGES[row] @ TEXTS.T
    wrong = sorted((t for t in range(len(OWNER)) if OWNER[t] != row), key=lambda t: -scores[t])[:4]
    true = [t for t in range(len(OWNER)) if OWNER[t] == row]
    assert found.wrong.tolist() == wrong
    assert found.true.tolist() == true
    assert found.cosines["to_true"] == pytest.approx(
        sum(float(scores[t]) for t in true) / len(true)
    )
    assert found.cosines["to_wrong"] == pytest.approx(sum(float(scores[t]) for t in wrong) / 4)
    pairs = [(a, b) for a in wrong for b in wrong if a != b]
    each = [float(TEXTS[a] @ TEXTS[b]) for a, b in pairs]
    assert found.cosines["among_wrong"] == pytest.approx(sum(each) / len(each))
    assert found.points.shape == (1 + len(true) + 4, 2)


def test_a_text_of_no_image_has_nothing_true():
    row = int((OWNER < 0).nonzero()[0])
    found = neighbourhood([MODEL], OWNER, "t2i", row, negatives=99, method="pca")
    assert len(found.true) == 0
    assert len(found.wrong) == 8
    assert found.cosines["to_true"] is None
    alone = neighbourhood([MODEL], OWNER, "t2i", 0, negatives=1)
    assert alone.cosines["among_wrong"] is None, "one wrong counterpart has no pair"


def test_widths_have_to_agree():
    apart = EmbeddedDataset(_Constant(), MODEL.images, dense(IMAGES, TEXTS[:, :3]).texts)
    with pytest.raises(ValueError, match="vectors of 5 and 3 numbers"):
        neighbourhood([apart], OWNER, "i2t", 0)


class _Constant(Product):
    def score_matrix(self, images, texts):
        return torch.zeros(len(images), len(texts))


@pytest.mark.parametrize(
    ("measure", "said"),
    [
        (margins, "none of the 1 i2t queries has both"),
        (negative_similarities, "none of the 1 i2t queries has a wrong counterpart"),
        (lambda *data: neighbourhood(*data, "i2t", 0), "nothing is wrong for image row 0"),
    ],
)
def test_one_image_has_nothing_wrong(measure, said):
    with pytest.raises(ValueError, match=said):
        measure([dense(IMAGES[:1], TEXTS[:2])], torch.zeros(2).long())


# Projections.


def clouds(each: int, seed: int = 0) -> torch.Tensor:
    """Three clouds far from each other, one after the other."""
    rng = torch.Generator().manual_seed(seed)
    centres = 20 * torch.eye(3, 8).repeat_interleave(each, 0)
    return centres + torch.randn(3 * each, 8, generator=rng)


@pytest.mark.parametrize("each", [12, 15])
def test_clouds_stay_together(each, monkeypatch):
    monkeypatch.setattr("counterfoil.papers.ndgl.figures.EXACT", 40)  # 36 exactly, 45 not
    vectors = clouds(each)
    points = tsne(vectors, perplexity=5.0)
    assert points.shape == (3 * each, 2)
    assert points.dtype == torch.double
    cloud = torch.arange(3 * each) // each
    for row in torch.cdist(points, points):
        nearest = row.argsort()[:6]
        assert set(cloud[nearest].tolist()) == {int(cloud[row.argmin()])}
    assert torch.equal(tsne(vectors, perplexity=5.0), points)


def test_a_map_keeps_more_neighbours_than_principal_components():
    from sklearn.manifold import trustworthiness

    vectors = torch.randn(40, 10, generator=torch.Generator().manual_seed(1))
    both = tsne(vectors), principal_components(vectors)
    kept = [trustworthiness(vectors, points) for points in both]
    assert kept[0] > kept[1] + 0.05


def test_a_map_neither_reads_nor_moves_the_draws_of_others():
    import numpy as np

    vectors = clouds(3)
    first = tsne(vectors)
    np.random.seed(3)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    assert torch.equal(tsne(vectors), first)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_principal_components():
    rng = torch.Generator().manual_seed(0)
    plane = torch.randn(30, 2, generator=rng) * torch.tensor([5.0, 1.0])
    frame = torch.linalg.qr(torch.randn(6, 2, generator=rng)).Q
    found = principal_components(plane @ frame.T)
    apart = torch.cdist(plane.double(), plane.double())
    assert torch.allclose(torch.cdist(found, found), apart, atol=1e-4)
    assert found[:, 0].var() > found[:, 1].var()
    assert torch.allclose(principal_components(-plane @ frame.T), -found, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_few_points_and_equal_points(count):
    vectors = torch.eye(count, 4)
    assert tsne(vectors).isfinite().all()
    assert tsne(torch.ones(count, 4)).isfinite().all()
    assert torch.equal(tsne(vectors), principal_components(vectors)) == (count < 4)
