"""The hardest negative, unless its gradient would vanish."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor

from counterfoil.core.literals import parse_literal
from counterfoil.objectives.block import hinge, negatives, positives
from counterfoil.objectives.term import Reduction, Term
from counterfoil.records import Scores

Otherwise = Literal["mean", "sum"]


@final
class SelectivelyHardest(Term):
    """Hinge against the hardest negative, or against all where that one scores as the positive.

    SelHN, the loss of RVSE++ (https://arxiv.org/abs/2303.00181): where the hardest negative and the
    positive score alike, as they do at the beginning of training, their gradients on an encoder
    cancel, and all negatives take its place. It is decided for each anchor and each direction by
    itself, so no warm-up is needed. What "alike" means and what takes its place follow the authors'
    code; of the paper only the abstract was read.

    Departs from the authors' code in: negatives are told by id ("diagonal" positives give the
    authors' value); it is a sum over anchors and directions, theirs is half the "mean".

    Args:
        margin: in units of a score.
        epsilon: the hardest negative is left alone where it is nearer than this to its positive, in
            units of a score.
        otherwise: the "mean" over all negatives, as the authors have it, or their "sum".
        reduction: see `Term`.

    Raises:
        ValueError: a negative `epsilon`, or something else otherwise.

    >>> from counterfoil.records import Grid
    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> scores = Scores({"inference": Grid(s, torch.eye(3).bool(), anchor=s.diagonal())})
    >>> [round(SelectivelyHardest(epsilon=e)(scores).item(), 3) for e in (0.01, 0.15)]
    [0.8, 0.45]
    """

    def __init__(
        self,
        *,
        margin: float = 0.2,
        epsilon: float = 0.01,
        otherwise: Otherwise = "mean",
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        if not epsilon >= 0:
            raise ValueError(f"epsilon={epsilon} was given; use 0 for always the hardest, or more")
        parse_literal(Otherwise, otherwise, "what to do otherwise")
        self.margin, self.epsilon = margin, epsilon
        self.otherwise: Otherwise = otherwise

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        true, wrong = positives(grid), negatives(grid)
        texts = self._one_way(wrong[true.image], true.score)
        images = self._one_way(wrong.T[true.text], true.score)
        return self.reduced(texts + images, grid)

    def _one_way(self, wrong: Tensor, positive: Tensor) -> Tensor:
        """Of (P, C) candidates, -inf where none, against (P,) positives."""
        hardest = wrong.amax(1)
        vanishes = (hardest - positive).detach().abs() < self.epsilon
        every = hinge(wrong, positive.unsqueeze(1), self.margin).sum(1)
        if self.otherwise == "mean":
            every = every / (wrong > -torch.inf).sum(1).clamp(min=1)
        return torch.where(vanishes, every, hinge(hardest, positive, self.margin)).sum()
