from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import objectives_cases as cases
from counterfoil.core.types import Role, Scores
from counterfoil.papers.compared.losses import SelfAdjustedCFMLoss, SelfExploredCFMLoss

OWNER = [0, 0, 1, 2, 3]
ROLES = (Role.EDITED, Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE)


def drawn(seed: int) -> tuple[Tensor, ...]:
    rng = torch.Generator().manual_seed(seed)
    shapes = [(4, 5)] + [(5, 2)] * 3
    made = [torch.rand(s, generator=rng, dtype=torch.float64) for s in shapes]
    return tuple(tensor.requires_grad_() for tensor in made)


def scores(tensors: tuple[Tensor, ...]) -> Scores:
    """Anchor 1 has no edited text, anchor 3 nothing at all."""
    none = torch.zeros(5, 2, dtype=torch.bool)
    none[1, 0] = none[3] = True
    pairs = {role: t.masked_fill(none, -torch.inf) for role, t in zip(ROLES, tensors[1:])}
    return cases.judged(tensors[0], OWNER, pairs)


@pytest.mark.parametrize("seed", range(4))
def test_is_the_loss_of_a_loop(seed: int) -> None:
    tensors = drawn(seed)
    s, edited, true, wrong = (tensor.tolist() for tensor in tensors)
    adjusted = explored = 0.0
    for b, image in enumerate(OWNER):
        for column in range(2):
            if b == 3 or (b, column) == (1, 0):
                continue
            adjusted += max(0.0, 0.1 + edited[b][column] - s[image][b])
            explored += max(0.0, 0.1 + wrong[b][column] - true[b][column])
    given = scores(tensors)
    assert SelfAdjustedCFMLoss()(given).item() == pytest.approx(adjusted)
    assert SelfExploredCFMLoss()(given).item() == pytest.approx(explored)
    assert SelfAdjustedCFMLoss(reduction="mean")(given).item() == pytest.approx(adjusted / 5)
    assert SelfExploredCFMLoss(reduction="mean")(given).item() == pytest.approx(explored / 5)


@pytest.mark.parametrize("term", [SelfAdjustedCFMLoss, SelfExploredCFMLoss])
def test_a_step_without_edits_costs_nothing(term: Any) -> None:
    tensors = drawn(0)
    none = torch.full((5, 2), -torch.inf, dtype=torch.float64)
    loss = term()(cases.judged(tensors[0], OWNER, dict.fromkeys(ROLES, none)))
    assert loss.item() == 0.0
    if loss.requires_grad:
        (gradient,) = torch.autograd.grad(loss, tensors[0])
        assert not gradient.any()
