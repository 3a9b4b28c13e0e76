"""Hinges averaged over negatives, as many as a batch has of them."""

from __future__ import annotations

from typing import final

from torch import Tensor

from counterfoil.objectives.block import hinge, negatives, positives
from counterfoil.objectives.term import Reduction, Term
from counterfoil.records import Grid, Scores


@final
class MeanTriplet(Term):
    """Mean hinge over all negatives, or over those that come too near, in each direction.

    The two forms that DivE (Kim et al., CVPR 2023) offers beside the hardest negative. Departs from
    the authors' code in: negatives are told by id, and images may have any number of texts.

    Args:
        margin: in units of a score.
        semi_hard: average over negatives with a loss only, and let none cost more than the margin,
            so that one above its positive pulls no harder than one beside it.
        reduction: "mean" is the authors' form, "sum" that times the number of anchor pairs.

    >>> import torch
    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> scores = Scores({"inference": Grid(s, torch.eye(3).bool(), s.diagonal())})
    >>> round(MeanTriplet(margin=0.2, reduction="mean")(scores).item(), 3)
    0.15
    >>> round(MeanTriplet(margin=0.2, semi_hard=True, reduction="mean")(scores).item(), 3)
    0.283
    """

    def __init__(
        self, *, margin: float = 0.2, semi_hard: bool = False, reduction: Reduction = "sum"
    ) -> None:
        super().__init__(reduction=reduction)
        self.margin, self.semi_hard = margin, semi_hard

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        texts, images = self.directions(grid)
        return self.reduced((texts + images) * len(grid.anchor), grid)

    def directions(self, grid: Grid) -> tuple[Tensor, Tensor]:
        """Mean cost of wrong texts, and of wrong images."""
        true, wrong = positives(grid), negatives(grid)
        return (
            self._mean(wrong[true.image], true.score.unsqueeze(1)),
            self._mean(wrong.T[true.text], true.score.unsqueeze(1)),
        )

    def _mean(self, wrong: Tensor, positive: Tensor) -> Tensor:
        """Of (P, C) candidates, -inf where none, against (P, 1) positives."""
        costs = hinge(wrong, positive, self.margin)
        if self.semi_hard:
            costs = costs.clamp(max=self.margin)
        counted = costs > 0 if self.semi_hard else wrong.isfinite()
        return costs.sum() / counted.sum().clamp(min=1)
