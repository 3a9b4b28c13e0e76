"""The circle loss of ERNIE-ViL beside its formula, term by term."""

from __future__ import annotations

import math

import pytest
import torch

from counterfoil.core.types import Role, ScoreMatrix, Scores
from counterfoil.papers.compared.losses import CircleLoss

TRUE, WRONG = (0.9, 0.7), ((0.9, 0.1, 0.4), (0.7, 0.1, -math.inf))


def record(true: torch.Tensor, wrong: torch.Tensor) -> Scores:
    empty = torch.zeros(0, 0)
    matrix = ScoreMatrix(empty, empty.bool(), true)
    return Scores({"inference": matrix}, pairs={Role.HARD_IMAGE: wrong})


@pytest.mark.parametrize(("margin", "scale"), [(0.3, 32.0), (0.25, 1.0)])
def test_value_and_gradients_are_those_of_the_formula(margin, scale):
    true, wrong = torch.tensor(TRUE).requires_grad_(), torch.tensor(WRONG).requires_grad_()
    loss = CircleLoss(role="hard image", margin=margin, scale=scale)(record(true, wrong))
    loss.backward()
    total = 0.0
    for row, p in enumerate(TRUE):
        pull = max(0.0, 1 + margin - p)
        outer = math.exp(-scale * pull * (p - (1 - margin)))
        parts = [math.exp(scale * max(0.0, n + margin) * (n - margin)) for n in WRONG[row][:2]]
        if WRONG[row][2] > 0:
            n = WRONG[row][2]
            parts.append(math.exp(scale * (n + margin) * (n - margin)))
        inside = sum(parts) * outer
        total += math.log(1 + inside)
        share = inside / (1 + inside)
        assert true.grad[row].item() == pytest.approx(-share * scale * pull, rel=1e-4)
        for place, part in enumerate(parts):
            push = scale * (WRONG[row][place] + margin)
            assert wrong.grad[row, place].item() == pytest.approx(
                part * outer / (1 + inside) * push, rel=1e-4
            )
    assert wrong.grad[1, 2] == 0
    assert loss.item() == pytest.approx(total, rel=1e-5)


def test_a_scale_of_nothing_is_refused():
    with pytest.raises(ValueError, match=r"a scale of 0\.0 was given; it must be positive"):
        CircleLoss(role="hard text", scale=0.0)
