"""Offline hard negatives in the loss (AOQ, https://arxiv.org/abs/2003.03669).

Of each anchor pair (i, t) the batch gives the online hard negatives t_on and i_on, and the mined
lists give the offline ones:

    role         pair scored                 image   text
    HARD_TEXT    S(i, t_off)                 i       t_off
    HARD_IMAGE   S(i_off, t)                 i_off   t
    CROSS        S(i_off, t_off)             i_off   t_off
    COMPANION    S(image of t_off, caption of i_off)

With N mined negatives per anchor every offline hinge, and the online weight, is a mean over them;
N = 1 is the paper's.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from counterfoil.core.config import parse_literal
from counterfoil.core.types import Needs, Role, ScoreMatrix, Scores
from counterfoil.losses.base import (
    HardestNegatives,
    Loss,
    Reduction,
    hardest_negatives,
    hinge,
    negative_scores,
    positive_scores,
)

__all__ = [
    "AdaptiveQuintuplet",
    "OfflineQuintuplet",
    "OfflineTriplet",
    "OnlineQuintuplet",
]

OFFLINE = frozenset({Role.HARD_TEXT, Role.HARD_IMAGE})
DERIVED = frozenset({Role.CROSS, Role.COMPANION})


def online_negatives(matrix: ScoreMatrix) -> HardestNegatives:
    """Return (B,) scores of the anchor pairs' hardest negatives in the batch."""
    true = positive_scores(matrix)
    assert len(true.text) == len(matrix.anchor), "every true pair of the block is an anchor pair"
    return hardest_negatives(matrix, true)


def in_batch_hinges(
    matrix: ScoreMatrix,
    hard: HardestNegatives,
    margin: float | None,
    *,
    text: Tensor | None = None,
    image: Tensor | None = None,
    squared: bool = False,
) -> Tensor:
    """Return the sum of the hinges of the hardest negatives of the batch; 0 without a margin.

    `text` and `image` are (B, N) weights of the hinges against texts and images, by their mean.
    """
    if margin is None:
        return matrix.scores.new_zeros(())
    texts = _hinge(hard.text, matrix.anchor, margin, squared=squared)
    images = _hinge(hard.image, matrix.anchor, margin, squared=squared)
    texts = texts if text is None else texts * text.mean(1)
    images = images if image is None else images * image.mean(1)
    return (texts + images).sum()


def mined_hinges(
    scores: Scores,
    matrix: ScoreMatrix,
    roles: frozenset[Role],
    margin: float,
    *,
    squared: bool = False,
) -> Tensor:
    """Return the hinges of mined pairs against their anchors: mean over N, sum over anchors."""
    anchor = matrix.anchor.unsqueeze(1)
    # the order of a sum of floats changes its last digits, and a frozenset has none: the enum has
    ordered = [role for role in Role if role in roles]
    parts = [_hinge(scores.pairs[role], anchor, margin, squared=squared) for role in ordered]
    return torch.stack([part.mean(1) for part in parts]).sum()


def _hinge(negative: Tensor, positive: Tensor, margin: float, *, squared: bool) -> Tensor:
    cost = hinge(negative, positive, margin)
    return cost.square() if squared else cost


class OfflineHinges(Loss):
    """Base of `OfflineTriplet` and `OfflineQuintuplet`, which differ in the roles they need.

    Args:
        online: margin of the in-batch hinges; None leaves them out ("OnlyOffline" of Table 3).
        offline: margin of the mined hinges.
        squared: whether every hinge is squared, the alternative that section 3.3 names.
        reduction: see `Loss`.
    """

    def __init__(
        self,
        *,
        online: float | None = 0.2,
        offline: float = 0.0,
        squared: bool = False,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        self.online, self.offline, self.squared = online, offline, squared

    def forward(self, scores: Scores) -> Tensor:
        matrix = self.matrix(scores)
        online = in_batch_hinges(
            matrix, online_negatives(matrix), self.online, squared=self.squared
        )
        offline = mined_hinges(scores, matrix, self.needs.roles, self.offline, squared=self.squared)
        return self.reduce(online + offline, matrix)


@final
class OfflineTriplet(OfflineHinges):
    """Online hardest triplets plus a hinge against each mined negative (AOQ, Eq. 3, "OffTri").

    The authors released code for Eq. 5 only; this is the formula.

    >>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> hard_text, hard_image = torch.tensor([0.95, 0.6]), torch.tensor([0.8, 0.8])
    >>> round(OfflineTriplet()(scores, hard_text=hard_text, hard_image=hard_image).item(), 3)
    0.55
    """

    needs = Needs(roles=OFFLINE)


@final
class OfflineQuintuplet(OfflineHinges):
    """`OfflineTriplet` plus two hinges against mined pairs that share nothing with the anchor.

    AOQ, Eq. 4, "OffQuin". The authors released code for Eq. 5 only; this is the formula, with the
    second derived pair being the image of t_off with a caption of i_off.

    >>> scores, mined = torch.tensor([[0.9, 0.8], [0.1, 0.7]]), torch.tensor([0.95, 0.6])
    >>> loss = OfflineQuintuplet()
    >>> value = loss(scores, hard_text=mined, hard_image=mined, cross=mined, companion=mined)
    >>> round(value.item(), 3)
    0.6
    """

    needs = Needs(roles=OFFLINE | DERIVED)


Reference = Literal["offline", "positive"]


@final
class AdaptiveWeights(NamedTuple):
    """Weights of the online hinges against a wrong text and against a wrong image.

    (B, N), or (B, 1) where the positive is the reference.
    """

    text: Tensor
    image: Tensor


@final
class AdaptiveQuintuplet(Loss):
    """`OfflineQuintuplet` whose online hinges are weighted by how hard the mined negatives are.

    AOQ, Eq. 5, "AdapOffQuin"; the weight is beta - (offline score - online score) / alpha, and the
    gradient passes through it (Eq. 6). Departs from the authors' code in: another caption of the
    same image is no negative; the online negative is always the hardest; an anchor may have several
    mined negatives.

    Args:
        online: margin of the in-batch hinges.
        offline: margin of the mined hinges.
        alpha: score difference that changes the weight by one.
        beta: weight when both negatives are equally hard.
        reference: whose score the online score is compared with: the "offline" negative's, or the
            "positive" pair's, which is "w/o OfflineAdap" of Table 3 and needs another alpha and
            beta.
        clamp: whether a weight stops at 0; the authors let it become negative.
        detach: whether the weight counts as a constant in the gradient, unlike Eq. 6.
        reduction: see `Loss`.

    Raises:
        ValueError: an alpha that is not positive, or an unknown reference.

    >>> scores, mined = torch.tensor([[0.9, 0.8], [0.1, 0.7]]), torch.tensor([0.95, 0.6])
    >>> loss = AdaptiveQuintuplet()
    >>> value = loss(scores, hard_text=mined, hard_image=mined, cross=mined, companion=mined)
    >>> round(value.item(), 3)
    0.95
    """

    needs = Needs(roles=OFFLINE | DERIVED)

    def __init__(
        self,
        *,
        online: float = 0.2,
        offline: float = 0.0,
        alpha: float = 0.3,
        beta: float = 1.5,
        reference: Reference = "offline",
        clamp: bool = False,
        detach: bool = False,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        if not alpha > 0:
            raise ValueError(f"an alpha of {alpha} was given; it must be positive")
        parse_literal(Reference, reference, "a reference")
        self.online, self.offline, self.alpha, self.beta = online, offline, alpha, beta
        self.reference, self.clamp, self.detach = reference, clamp, detach

    def forward(self, scores: Scores) -> Tensor:
        matrix = self.matrix(scores)
        hard = online_negatives(matrix)
        weights = self._weights(scores, hard)
        online = in_batch_hinges(matrix, hard, self.online, text=weights.text, image=weights.image)
        return self.reduce(
            online + mined_hinges(scores, matrix, self.needs.roles, self.offline), matrix
        )

    def weights(self, scores: Scores) -> AdaptiveWeights:
        """Return the weights of the online hinges; beta where a negative is missing."""
        return self._weights(scores, online_negatives(self.matrix(scores)))

    def _weights(self, scores: Scores, hard: HardestNegatives) -> AdaptiveWeights:
        if self.reference == "positive":
            texts = images = self.matrix(scores).anchor.unsqueeze(1)
        else:
            texts, images = scores.pairs[Role.HARD_TEXT], scores.pairs[Role.HARD_IMAGE]
        return AdaptiveWeights(self._weight(texts, hard.text), self._weight(images, hard.image))

    def _weight(self, reference: Tensor, online: Tensor) -> Tensor:
        # a score of -inf (no negative in the batch, or a mined one left out) would make the weight
        # infinite, and infinity times the hinge of 0 is NaN
        present = (online != -torch.inf).unsqueeze(1) & (reference != -torch.inf)
        gap = torch.where(present, reference - online.unsqueeze(1), 0.0)
        weight = self.beta - gap / self.alpha
        weight = weight.clamp(min=0) if self.clamp else weight
        return weight.detach() if self.detach else weight


@final
class OnlineQuintuplet(Loss):
    """`OfflineTriplet` plus two hinges against pairs derived from the in-batch hard negatives.

    AOQ, Table 3, "OnlineQuin", an ablation: Eq. 4 whose derived pairs are those of the online
    negatives, i_on with t_on and the image of t_on with a text of i_on; the authors released no
    code for it. Of several texts of i_on the one that scores highest with the image of t_on is
    taken. Where t_on describes i_on, as where the batch has no negative, there is no derived pair.
    Every text of the batch has one image.

    Args:
        online: margin of the in-batch hinges.
        offline: margin of the mined and of the derived hinges.
        reduction: see `Loss`.

    >>> scores = torch.tensor([[0.9, 0.8, 0.1], [0.2, 0.7, 0.6], [0.5, 0.95, 0.8]])
    >>> mined = torch.zeros(3)
    >>> round(OnlineQuintuplet()(scores, hard_text=mined, hard_image=mined).item(), 3)
    1.05
    """

    needs = Needs(roles=OFFLINE)

    def __init__(
        self, *, online: float = 0.2, offline: float = 0.0, reduction: Reduction = "sum"
    ) -> None:
        super().__init__(reduction=reduction)
        self.online, self.offline = online, offline

    def forward(self, scores: Scores) -> Tensor:
        matrix = self.matrix(scores)
        online = in_batch_hinges(matrix, online_negatives(matrix), self.online)
        offline = mined_hinges(scores, matrix, self.needs.roles, self.offline)
        derived = hinge(_derived(matrix), matrix.anchor, self.offline).sum()
        return self.reduce(online + offline + derived, matrix)


def _derived(matrix: ScoreMatrix) -> Tensor:
    """Return (2, B) scores of the derived pairs, -inf where there is none."""
    true, wrong = positive_scores(matrix), negative_scores(matrix)
    if (matrix.positive.sum(0) != 1).any():
        raise ValueError(
            "OnlineQuintuplet pairs the image of a wrong text with a text of a wrong image, so "
            "every text of the batch needs one image; positives have one True in each column"
        )
    text = wrong.argmax(1)[true.image]
    image = wrong.argmax(0)[true.text]
    text_to_image = true.image[text]  # true pairs come text after text: pair t is that of text t
    # argmax of a row of -inf is 0, which is no negative
    real = (wrong[true.image, text] != -torch.inf) & (wrong[image, true.text] != -torch.inf)
    real = real & (text_to_image != image)
    companion = (
        matrix.scores[text_to_image].masked_fill(~matrix.positive[image], -torch.inf).amax(1)
    )
    return torch.stack([matrix.scores[image, text], companion]).masked_fill(~real, -torch.inf)
