"""Triplet losses: hinges of wrong pairs against true ones, in both directions."""

from __future__ import annotations

from abc import abstractmethod
from typing import final

import torch
from torch import Tensor

from counterfoil.core.config import parse_choice
from counterfoil.core.types import INFERENCE, Needs, Role, ScoreMatrix, Scores, VectorScores
from counterfoil.losses.base import (
    Loss,
    Reduction,
    hinge,
    negative_scores,
    positive_scores,
)
from counterfoil.losses.tiled import tiled_hardest_triplet

__all__ = [
    "HardestTripletLoss",
    "MarginRankingLoss",
    "MeanTripletLoss",
    "SemiHardTripletLoss",
    "SumTripletLoss",
]


class TripletLoss(Loss):
    """Base of losses that compare each true pair with wrong texts and with wrong images.

    Args:
        margin: in units of a score.
        reduction: see `Loss`.
        view: name of the score matrix that it reads, a view of the model.
    """

    def __init__(
        self, *, margin: float = 0.2, reduction: Reduction = "sum", view: str = INFERENCE
    ) -> None:
        super().__init__(reduction=reduction)
        self.margin, self.view = margin, view

    def forward(self, scores: Scores) -> Tensor:
        matrix = self.matrix(scores)
        texts, images = self.directions(matrix)
        return self.reduce(texts + images, matrix)

    def directions(self, matrix: ScoreMatrix) -> tuple[Tensor, Tensor]:
        """Return the loss against wrong texts, and against wrong images."""
        true, wrong = positive_scores(matrix), negative_scores(matrix)
        return (
            self._cost(wrong, true.image, true.score),
            self._cost(wrong.T, true.text, true.score),
        )

    @abstractmethod
    def _cost(self, wrong: Tensor, anchor: Tensor, positive: Tensor) -> Tensor:
        """Return the scalar loss of one direction.

        `wrong` are the (A, C) scores of the candidates of each anchor, -inf for true ones;
        `anchor` is the (P,) row in it of each true pair, `positive` the (P,) score of each.
        """


@final
class SumTripletLoss(TripletLoss):
    """Hinge against every negative of the batch.

    Kiros et al., 2014 (https://arxiv.org/abs/1411.2539); VSE++ (https://arxiv.org/abs/1707.05612),
    Eq. 5; AOQ (https://arxiv.org/abs/2003.03669), Eq. 1. Departs from the authors' code in: another
    caption of the same image is no negative; with positives on the diagonal alone it is the
    authors' value.

    >>> scores = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> round(SumTripletLoss(margin=0.2)(scores).item(), 3)
    0.9
    """

    def _cost(self, wrong: Tensor, anchor: Tensor, positive: Tensor) -> Tensor:
        return hinge(wrong[anchor], positive.unsqueeze(1), self.margin).sum()


@final
class HardestTripletLoss(TripletLoss):
    """Hinge against the hardest negative of the batch.

    VSE++ (https://arxiv.org/abs/1707.05612), Eq. 6; AOQ (https://arxiv.org/abs/2003.03669), Eq. 2.
    Departs from the authors' code in: another caption of the same image is no negative (with
    positives on the diagonal alone it is the authors' value); equally hard negatives share the
    gradient.

    >>> scores = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> round(HardestTripletLoss(margin=0.2)(scores).item(), 3)
    0.8
    """

    def _cost(self, wrong: Tensor, anchor: Tensor, positive: Tensor) -> Tensor:
        # the maximum of a row before rows are repeated: (A, C) in memory, not (P, C)
        return hinge(wrong.amax(1)[anchor], positive, self.margin).sum()

    def tiled(self, vectors: VectorScores) -> Tensor:
        """Return the same loss of vectors, without their score matrix."""
        return tiled_hardest_triplet(
            vectors.images,
            vectors.texts,
            vectors.text_to_image,
            self.margin,
            exempt=vectors.exempt,
            equal=vectors.equal,
            reduction=self.reduction,
        )


@final
class SemiHardTripletLoss(TripletLoss):
    """Hinge against the hardest negative that still scores below its positive.

    FaceNet (https://arxiv.org/abs/1503.03832), section 3.2, in both directions. Where no negative
    scores below the positive, the easiest one is taken: the hardest pulls towards collapse.

    >>> scores = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> round(SemiHardTripletLoss(margin=0.2)(scores).item(), 3)
    0.3
    """

    def _cost(self, wrong: Tensor, anchor: Tensor, positive: Tensor) -> Tensor:
        wrong = wrong[anchor]
        harder = wrong >= positive.unsqueeze(1)
        below = wrong.masked_fill(harder, -torch.inf).amax(1)
        easiest = wrong.masked_fill(~harder, torch.inf).amin(1)
        # without any negative `easiest` is +inf, and `below`, -inf, is right: its hinge is 0
        none_below = (below == -torch.inf) & harder.any(1)
        return hinge(torch.where(none_below, easiest, below), positive, self.margin).sum()


@final
class MeanTripletLoss(TripletLoss):
    """Mean hinge over all negatives, or over those within the margin, in each direction.

    The two forms that DivE (Kim et al., CVPR 2023) offers beside the hardest negative. Departs from
    the authors' code in: another caption of the same image is no negative, and images may have any
    number of texts.

    Args:
        margin: in units of a score.
        semi_hard: average over negatives with a loss only, and cap each hinge at the margin, so
            that a negative above its positive has no larger hinge than one that equals it.
        reduction: "mean" is the authors' form, "sum" that times the number of anchor pairs.

    >>> scores = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> round(MeanTripletLoss(margin=0.2, reduction="mean")(scores).item(), 3)
    0.15
    >>> round(MeanTripletLoss(margin=0.2, semi_hard=True, reduction="mean")(scores).item(), 3)
    0.283
    """

    def __init__(
        self, *, margin: float = 0.2, semi_hard: bool = False, reduction: Reduction = "sum"
    ) -> None:
        super().__init__(margin=margin, reduction=reduction)
        self.semi_hard = semi_hard

    def reduce(self, total: Tensor, matrix: ScoreMatrix) -> Tensor:
        return super().reduce(total * len(matrix.anchor), matrix)  # the total is a mean already

    def _cost(self, wrong: Tensor, anchor: Tensor, positive: Tensor) -> Tensor:
        wrong = wrong[anchor]
        costs = hinge(wrong, positive.unsqueeze(1), self.margin)
        if self.semi_hard:
            costs = costs.clamp(max=self.margin)
        counted = costs > 0 if self.semi_hard else wrong.isfinite()
        return costs.sum() / counted.sum().clamp(min=1)


@final
class MarginRankingLoss(Loss):
    """Hinge of every candidate of one role against its anchor pair: mean over the candidates.

    The ranking loss of UNITER (https://arxiv.org/abs/1909.11740) and, for the role "written",
    of TAGS (https://arxiv.org/abs/2111.03349), Eq. 7. Their code takes the mean over the batch.
    The mean is over the candidates that an anchor has, which are those with a score above -inf; an
    anchor without any adds 0.

    With `adaptive` the margin grows with what is learnt, as in CE-CLIP
    (https://arxiv.org/abs/2306.08832) and FG-CLIP 2: it is the mean lead of the anchor pairs over
    their candidates in the batch, without a gradient, from 0 to `margin`. Departs from the authors'
    code in: the lead is that of this batch, not of the step before, so that a loss has no state;
    one margin for all candidates, where CE-CLIP has one for each kind of foil; the bound is in
    units of a score, where theirs is 10 at a scale of 100, so 0.1.

    Args:
        role: role of the candidates, by the value of a `Role`, as in "hard text".
        margin: in units of a score; with `adaptive`, the largest one.
        adaptive: whether it follows the mean lead.
        reduction: see `Loss`.

    Raises:
        ValueError: there is no such role, or an adaptive margin that cannot be above 0.

    >>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> generated = torch.tensor([[0.9, 0.1], [0.7, 0.1]])
    >>> round(MarginRankingLoss(role="written")(scores, generated=generated).item(), 3)
    0.2
    """

    def __init__(
        self,
        *,
        role: str,
        margin: float = 0.2,
        adaptive: bool = False,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        parse_choice((known.value for known in Role), role, "a role of a pair")
        if adaptive and not margin > 0:
            raise ValueError(
                f"adaptive with margin={margin}: the margin goes from 0 to this; give a number "
                "above 0, as 0.1 for cosines"
            )
        self.role, self.margin, self.adaptive = Role(role), margin, adaptive
        self.needs = Needs(roles=frozenset({self.role}), block=False)

    def forward(self, scores: Scores) -> Tensor:
        matrix = self.matrix(scores)
        candidates, anchor = scores.pairs[self.role], matrix.anchor.unsqueeze(1)
        margin: float | Tensor = self.margin
        if self.adaptive:
            lead = (anchor - candidates).detach()
            some = lead[~candidates.isneginf()]  # NaN among them stays
            margin = some.mean().clamp(0, self.margin) if len(some) else self.margin
        cost = hinge(candidates, anchor, margin).sum(1)
        count = candidates.isneginf().logical_not().sum(1)
        return self.reduce((cost / count.clamp(min=1)).sum(), matrix)


# the names in the papers
