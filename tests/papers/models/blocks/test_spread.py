from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import normalize

from counterfoil.papers.models.dive import set_crowding, set_discrepancy


def vectors(*shape: int, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(*shape, 4, generator=rng, dtype=torch.double), dim=-1)


def kernel(left: Tensor, right: Tensor, gamma: float) -> list[float]:
    return [math.exp(-gamma * float((x - y).norm())) for x in left for y in right]


@pytest.mark.parametrize("gamma", [0.5, None])
@pytest.mark.parametrize("total", [False, True])
def test_discrepancy_equals_loops(gamma, total):
    x, y = vectors(3), vectors(5, seed=1)
    parts = [kernel(a, b, gamma or 1 / 4) for a, b in ((x, x), (x, y), (y, y))]
    sums = [sum(part) if total else sum(part) / len(part) for part in parts]
    found = set_discrepancy(x, y, gamma=gamma, total=total)
    assert found.item() == pytest.approx(sums[0] - 2 * sums[1] + sums[2])


def test_discrepancy_of_a_sample_with_itself_is_zero_and_so_is_its_gradient():
    x = vectors(40).float().requires_grad_()  # as many as are compared by a product
    found = set_discrepancy(x, x.detach().clone())
    found.backward()
    assert abs(found.item()) < 1e-3
    assert x.grad.isfinite().all()
    assert x.grad.abs().max() < 1e-3


def test_crowding_equals_loops():
    sets = vectors(2, 3)
    for item, found in zip(sets, set_crowding(sets).tolist(), strict=True):
        pairs = [(a, b) for a in range(3) for b in range(a)]
        costs = [math.exp(-2 * float((item[a] - item[b]).square().sum())) for a, b in pairs]
        assert found == pytest.approx(sum(costs) / 3)


def test_a_single_vector_costs_nothing_and_is_not_pulled():
    one = vectors(2, 1).requires_grad_()
    total = set_crowding(one).sum()
    total.backward()
    assert total.item() == 0
    assert one.grad.abs().max() == 0


@pytest.mark.parametrize("loss", [set_crowding, lambda s: set_discrepancy(s[0], s[1])])
def test_gradients(loss):
    assert gradcheck(loss, vectors(2, 3).requires_grad_())
