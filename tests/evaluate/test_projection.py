from __future__ import annotations

import math

import pytest
import torch

from counterfoil.evaluate.projection import gradient, neighbours, principal, tsne


def clouds(each: int, seed: int = 0) -> torch.Tensor:
    """Three clouds far from each other, one after the other."""
    rng = torch.Generator().manual_seed(seed)
    centres = 20 * torch.eye(3, 8).repeat_interleave(each, 0)
    return centres + torch.randn(3 * each, 8, generator=rng)


def divergence(wanted: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """KL(P || Q) by a loop over pairs."""
    close = {
        (i, j): 1 / (1 + (points[i] - points[j]).square().sum())
        for i in range(len(points))
        for j in range(len(points))
        if i != j
    }
    total = sum(close.values())
    return sum(
        float(wanted[pair]) * (float(wanted[pair].log()) - (near / total).log())
        for pair, near in close.items()
    )


def test_neighbours_have_the_perplexity_asked_for():
    """Rows of the asymmetric chances, recovered where all are equally sharp: a regular polygon."""
    turns = torch.arange(12) * 2 * math.pi / 12
    found = neighbours(torch.stack([turns.cos(), turns.sin()], 1), 4.0)
    assert found.sum().item() == pytest.approx(1)
    assert torch.allclose(found, found.T)
    rows = found / found.sum(1, keepdim=True)
    assert torch.special.entr(rows).sum(1).exp().tolist() == pytest.approx([4.0] * 12, abs=1e-6)


def test_the_gradient_is_that_of_the_divergence():
    rng = torch.Generator().manual_seed(0)
    wanted = neighbours(torch.randn(7, 4, generator=rng), 2.0)
    points = torch.randn(7, 2, generator=rng, dtype=torch.double, requires_grad=True)
    divergence(wanted, points).backward()
    assert torch.allclose(gradient(wanted, points.detach()), points.grad)


def test_clouds_stay_apart():
    each = 12
    vectors = clouds(each)
    points = tsne(vectors, perplexity=5.0, steps=400)
    assert points.shape == (36, 2)
    cloud = torch.arange(36) // each
    for row in torch.cdist(points, points):
        nearest = row.argsort()[:6]
        assert set(cloud[nearest].tolist()) == {int(cloud[row.argmin()])}
    assert torch.equal(tsne(vectors, perplexity=5.0, steps=400), points)


def test_a_map_is_better_than_principal_components():
    rng = torch.Generator().manual_seed(1)
    vectors = torch.randn(25, 10, generator=rng)
    wanted = neighbours(vectors, 5.0)
    points = tsne(vectors, perplexity=5.0, steps=400)
    assert divergence(wanted, points) < 0.8 * divergence(wanted, principal(vectors))


def test_principal_components():
    rng = torch.Generator().manual_seed(0)
    plane = torch.randn(30, 2, generator=rng) * torch.tensor([5.0, 1.0])
    frame = torch.linalg.qr(torch.randn(6, 2, generator=rng)).Q
    found = principal(plane @ frame.T)
    apart = torch.cdist(plane.double(), plane.double())
    assert torch.allclose(torch.cdist(found, found), apart, atol=1e-4)
    assert found[:, 0].var() > found[:, 1].var()
    assert torch.allclose(principal(-plane @ frame.T), -found, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_few_points_and_equal_points(count):
    assert tsne(torch.eye(count, 4)).isfinite().all()
    assert tsne(torch.ones(count, 4)).isfinite().all()
