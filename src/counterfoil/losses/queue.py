"""USER's losses: a batch against itself, and against a momentum queue (Zhang et al., TIP 2024)."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from counterfoil.core.types import Needs, Role, Scores
from counterfoil.losses.base import Loss, Reduction

__all__ = ["MomentumQueueLoss", "UTOLoss"]

DIRECTIONS = ((Role.QUEUE_TEXT, Role.KEY_TEXT), (Role.QUEUE_IMAGE, Role.KEY_IMAGE))


class SmoothHingeLoss(Loss):
    """Base of USER's losses: a smooth hinge on all negatives, and a reward of true pairs."""

    def __init__(
        self, *, sharpness: float = 90.0, bar: float = 0.5, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        if sharpness <= 0:
            raise ValueError(f"sharpness={sharpness} is not possible; it must be positive")
        self.sharpness, self.bar = sharpness, bar

    def cost(self, scores: Tensor, dim: int) -> Tensor:
        """Return ln(1 + sum of e^(sharpness (scores - bar))) / sharpness along an axis."""
        logits = self.sharpness * (scores - self.bar)
        # one entry of 0 is the 1 inside the logarithm, without overflow
        shape = [1 if axis == dim else size for axis, size in enumerate(logits.shape)]
        return torch.cat([logits.new_zeros(shape), logits], dim).logsumexp(dim) / self.sharpness


@final
class UTOLoss(SmoothHingeLoss):
    """Unified training objective: smooth hinge on all negatives, logarithmic reward of true pairs.

    USER (https://arxiv.org/abs/2301.06844), as released, over a matrix S of B images and captions,
    with mu = `sharpness` and gamma = `bar`:

        1/B sum_i [ln(1 + sum_j e^(mu (S_ij - gamma))) / mu, along rows and columns,
                   - ln(1 + max(S_ii, 0))]

    Entries of true pairs count as 0 in the sums.

    Args:
        sharpness: mu, of the smooth maximum.
        bar: gamma, the score above which a negative costs.
        reduction: see `Loss`.

    Raises:
        ValueError: a sharpness that is not positive.

    >>> scores = torch.tensor([[0.9, 0.6], [0.1, 0.7]])
    >>> round(UTOLoss()(scores).item(), 4)
    -0.4862
    """

    def forward(self, scores: Scores) -> Tensor:
        matrix = self.matrix(scores)
        wrong = matrix.scores.masked_fill(matrix.positive, 0)
        cost = self.cost(wrong, 0).sum() + self.cost(wrong, 1).sum()
        return self.reduce(cost - matrix.anchor.relu().log1p().sum(), matrix)


@final
class MomentumQueueLoss(SmoothHingeLoss):
    """`UTOLoss` against the keys that a `MomentumQueue` holds (USER).

    With queries q of the trained encoder, momentum keys k+ of their partners and queued keys k:

        1/B sum_i [ln(1 + sum_k e^(mu (q_i . k - gamma))) / mu - ln(1 + max(q_i . k+_i, 0))]

    in both directions. It needs the roles "queue text", "queue image" and the keys of the anchors,
    which `counterfoil.negatives.momentum.MomentumQueue` provides with any model.

    Args:
        sharpness: mu, of the smooth maximum.
        bar: gamma, the score above which a negative costs.
        reduction: see `Loss`.

    Raises:
        ValueError: a sharpness that is not positive.
    """

    needs = Needs(roles=frozenset(role for pair in DIRECTIONS for role in pair), block=False)

    def forward(self, scores: Scores) -> Tensor:
        total = torch.zeros((), device=scores.pairs[Role.QUEUE_TEXT].device)
        for queue, key in DIRECTIONS:
            cost = self.cost(scores.pairs[queue], 1)
            total = total + (cost - scores.pairs[key].relu().log1p().mean(1)).sum()
        return self.reduce(total, self.matrix(scores))
