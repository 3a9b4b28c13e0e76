"""A loss: the softplus of every wrong pair's excess over the true one."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from counterfoil.core.types import Needs, Role, Scores
from counterfoil.losses.base import Loss


@final
class SoftplusLoss(Loss):
    """log(1 + exp((negative - positive) / temperature)) of every pair that the source adds.

    Args:
        temperature: in units of a score.
    """

    needs = Needs(roles=frozenset({Role.HARD_TEXT}))

    def __init__(self, *, temperature: float = 0.1) -> None:
        super().__init__(reduction="mean")
        self.temperature = temperature

    def forward(self, scores: Scores) -> Tensor:
        grid = self.matrix(scores)
        excess = (scores.pairs[Role.HARD_TEXT] - grid.anchor.unsqueeze(1)) / self.temperature
        return self.reduce(torch.nn.functional.softplus(excess).mean(1).sum(), grid)
