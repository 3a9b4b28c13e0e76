"""Every pair of the block is its own yes-or-no question."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from counterfoil.objectives.term import Reduction, Term
from counterfoil.records import Scores


@final
class Sigmoid(Term):
    """Binary cross-entropy of every pair, on scaled and shifted scores.

    SigLIP (https://arxiv.org/abs/2303.15343), Eq. 1 and algorithm 1, whose code takes the "mean".
    A pair is true when the ids say so. A true pair costs by itself, so a batch without any wrong
    pair is not free here.

    Args:
        scale: scores are multiplied by it; with `learnable`, where it starts.
        bias: added to the scaled score; with `learnable`, where it starts.
        learnable: whether both are trained.
        reduction: see `Term`.

    Raises:
        ValueError: a scale that is not positive.

    >>> from counterfoil.records import Grid
    >>> s = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> grid = Grid(scores=s, positive=torch.eye(2).bool(), anchor=s.diagonal())
    >>> loss = Sigmoid(scale=10.0, bias=-5.0, reduction="mean")
    >>> round(loss(Scores({"inference": grid})).item(), 4)
    1.6059
    """

    def __init__(
        self,
        *,
        scale: float = 10.0,
        bias: float = -10.0,
        learnable: bool = True,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        if not scale > 0:
            raise ValueError(f"a scale of {scale} was given; it must be positive")
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)), requires_grad=learnable)
        self.bias = nn.Parameter(torch.tensor(float(bias)), requires_grad=learnable)

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        dtype = grid.scores.dtype
        logits = grid.scores * self.log_scale.exp().to(dtype) + self.bias.to(dtype)
        return self.reduced(softplus(torch.where(grid.positive, -logits, logits)).sum(), grid)
