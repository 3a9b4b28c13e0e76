from __future__ import annotations

import sys

import pytest
import torch

from counterfoil.analysis.ndgl import principal_components, tsne


def clouds(each: int, seed: int = 0) -> torch.Tensor:
    """Three clouds far from each other, one after the other."""
    rng = torch.Generator().manual_seed(seed)
    centres = 20 * torch.eye(3, 8).repeat_interleave(each, 0)
    return centres + torch.randn(3 * each, 8, generator=rng)


@pytest.mark.parametrize("each", [12, 15])
def test_clouds_stay_together(each, monkeypatch):
    monkeypatch.setattr("counterfoil.analysis.ndgl.EXACT", 40)  # 36 exactly, 45 not
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


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(ValueError, match=r"counterfoil\[maps\].*--method pca"):
        tsne(torch.eye(5))
