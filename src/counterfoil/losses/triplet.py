"""Hinges of wrong pairs against true ones, in both directions."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from counterfoil.core.config import unknown_name
from counterfoil.core.types import INFERENCE, Role, ScoreMatrix, Scores
from counterfoil.losses.base import (
    Loss,
    Reduction,
    hardest_negatives,
    hinge,
    negative_mask,
    positive_scores,
)


@final
class SumTripletLoss(Loss):
    """Hinge against every negative of the batch.

    Kiros et al., 2014 (https://arxiv.org/abs/1411.2539); VSE++ (https://arxiv.org/abs/1707.05612),
    Eq. 5; AOQ (https://arxiv.org/abs/2003.03669), Eq. 1. Departs from the authors' code in:
    negatives are told by id, so another caption of the same image is none; "diagonal" positives
    give the authors' value.

    Args:
        margin: in units of a score.
        reduction: see `Loss`.
        grid: name of the grid it judges.

    >>> from counterfoil.core.types import ScoreMatrix
    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> grid = Grid(scores=s, positive=torch.eye(3).bool(), anchor=s.diagonal())
    >>> round(SumTriplet(margin=0.2)(Scores({"inference": grid})).item(), 3)
    0.9
    """

    def __init__(
        self, *, margin: float = 0.2, reduction: Reduction = "sum", grid: str = INFERENCE
    ) -> None:
        super().__init__(reduction=reduction)
        self.margin, self.needs_grid = margin, grid

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        true, wrong = positive_scores(grid), negative_mask(grid)
        positive = true.score.unsqueeze(1)
        texts = hinge(wrong[true.image], positive, self.margin).sum()
        images = hinge(wrong.T[true.text], positive, self.margin).sum()
        return self.reduced(texts + images, grid)


@final
class HardestTripletLoss(Loss):
    """Hinge against the hardest negative of the batch.

    VSE++ (https://arxiv.org/abs/1707.05612), Eq. 6; AOQ (https://arxiv.org/abs/2003.03669), Eq. 2.
    Departs from the authors' code in: negatives are told by id ("diagonal" positives give the
    authors' value); equally hard negatives share the gradient.

    Args:
        margin: in units of a score.
        reduction: see `Loss`.
        grid: name of the grid it judges.

    >>> from counterfoil.core.types import ScoreMatrix
    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> grid = Grid(scores=s, positive=torch.eye(3).bool(), anchor=s.diagonal())
    >>> round(HardestTriplet(margin=0.2)(Scores({"inference": grid})).item(), 3)
    0.8
    """

    def __init__(
        self, *, margin: float = 0.2, reduction: Reduction = "sum", grid: str = INFERENCE
    ) -> None:
        super().__init__(reduction=reduction)
        self.margin, self.needs_grid = margin, grid

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        true = positive_scores(grid)
        hard = hardest_negatives(grid, true)
        texts = hinge(hard.text, true.score, self.margin).sum()
        images = hinge(hard.image, true.score, self.margin).sum()
        return self.reduced(texts + images, grid)


@final
class SemiHardTripletLoss(Loss):
    """Hinge against the hardest negative that still scores below its positive.

    FaceNet (https://arxiv.org/abs/1503.03832), section 3.2, in both directions. Where no negative
    scores below the positive, the easiest one is taken, so that nothing is pulled towards collapse.

    Args:
        margin: in units of a score.
        reduction: see `Loss`.

    >>> from counterfoil.core.types import ScoreMatrix
    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> grid = Grid(scores=s, positive=torch.eye(3).bool(), anchor=s.diagonal())
    >>> round(SemiHard(margin=0.2)(Scores({"inference": grid})).item(), 3)
    0.3
    """

    def __init__(self, *, margin: float = 0.2, reduction: Reduction = "sum") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        true, wrong = positive_scores(grid), negative_mask(grid)
        texts = self._one_way(wrong[true.image], true.score)
        images = self._one_way(wrong.T[true.text], true.score)
        return self.reduced(texts + images, grid)

    def _one_way(self, wrong: Tensor, positive: Tensor) -> Tensor:
        """Of (P, C) candidates, -inf where none, against (P,) positives."""
        harder = wrong >= positive.unsqueeze(1)
        below = wrong.masked_fill(harder, -torch.inf).amax(1)
        easiest = wrong.masked_fill(~harder, torch.inf).amin(1)
        none_below = (below == -torch.inf) & harder.any(1)
        return hinge(torch.where(none_below, easiest, below), positive, self.margin).sum()


@final
class MarginRankingLoss(Loss):
    """Hinge of every candidate of one role against its anchor pair: mean over the candidates.

    The ranking loss of UNITER (https://arxiv.org/abs/1909.11740) and, when the role is "written",
    of TAGS (https://arxiv.org/abs/2111.03349), Eq. 7. Their code takes the mean over the batch.
    The mean is over the candidates that an anchor has, which are those with a score above -inf; an
    anchor without any costs nothing.

    Args:
        role: which candidates, by the value of a `Role`, as in "hard text".
        margin: in units of a score.
        reduction: see `Loss`.

    Raises:
        ValueError: there is no such role.

    >>> from counterfoil.core.types import ScoreMatrix
    >>> s = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> grid = Grid(scores=s, positive=torch.eye(2).bool(), anchor=s.diagonal())
    >>> pairs = {Role.WRITTEN: torch.tensor([[0.9, 0.1], [0.7, 0.1]])}
    >>> round(RankedBelow(role="written")(Scores({"inference": grid}, pairs)).item(), 3)
    0.2
    """

    needs_block = False

    def __init__(self, *, role: str, margin: float = 0.2, reduction: Reduction = "sum") -> None:
        super().__init__(reduction=reduction)
        if role not in (known := [r.value for r in Role]):
            raise ValueError(unknown_name(role, known, "a role of a pair"))
        self.role, self.margin = Role(role), margin
        self.needs = frozenset({self.role})

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        candidates = scores.pairs[self.role]
        cost = hinge(candidates, grid.anchor.unsqueeze(1), self.margin).sum(1)
        count = candidates.isneginf().logical_not().sum(1)
        return self.reduced((cost / count.clamp(min=1)).sum(), grid)


# Hinges averaged over negatives, as many as a batch has of them.


@final
class MeanTripletLoss(Loss):
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

    def directions(self, grid: ScoreMatrix) -> tuple[Tensor, Tensor]:
        """Mean cost of wrong texts, and of wrong images."""
        true, wrong = positive_scores(grid), negative_mask(grid)
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
