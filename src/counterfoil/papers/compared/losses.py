"""Losses of other methods, to compare with: LSEH, CFM, DWS, ESA and ERNIE-ViL."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor
from torch.nn.functional import softplus

from counterfoil.core.config import parse_choice, parse_literal
from counterfoil.core.types import INFERENCE, Needs, Role, ScoreMatrix, Scores
from counterfoil.losses.base import (
    Loss,
    Reduction,
    hinge,
    negative_scores,
    positive_scores,
    step_generator,
)

__all__ = [
    "CircleLoss",
    "DistanceWeightedTripletLoss",
    "LSEHLoss",
    "SelfAdjustedCFMLoss",
    "SelfExpandingLoss",
    "SelfExploredCFMLoss",
]


@final
class CircleLoss(Loss):
    """ln(1 + sum of exp(scale a_n (n - margin)) exp(-scale a_p (p - 1 + margin))) of each anchor.

    ERNIE-ViL's (Yu et al., AAAI 2021), after circle loss (https://arxiv.org/abs/2002.10857): p is
    the score of an anchor pair and n are those of its candidates of one role, all probabilities;
    a_p = max(0, 1 + margin - p) and a_n = max(0, n + margin) have no gradient. Theirs is the mean
    of two such losses, against wrong texts and wrong images. An anchor without candidates adds 0.

    Args:
        role: role of the candidates, by the value of a `Role`, as in "hard text".
        margin: of a probability.
        scale: 32 in their configuration. Their launch script does not pass it on, so that the
            released command trains at 1.
        reduction: see `Loss`.

    Raises:
        ValueError: there is no such role, or the scale is not above 0.

    >>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> hard = torch.tensor([[0.9, 0.1], [0.7, 0.1]])
    >>> loss = CircleLoss(role="hard text", scale=2.0, reduction="mean")
    >>> round(loss(scores, hard_text=hard).item(), 4)
    1.5388
    """

    def __init__(
        self, *, role: str, margin: float = 0.3, scale: float = 32.0, reduction: Reduction = "sum"
    ) -> None:
        super().__init__(reduction=reduction)
        parse_choice((known.value for known in Role), role, "a role of a pair")
        if not scale > 0:
            raise ValueError(f"a scale of {scale} was given; it must be positive")
        self.role, self.margin, self.scale = Role(role), margin, scale
        self.needs = Needs(roles=frozenset({self.role}), block=False)

    def forward(self, scores: Scores) -> Tensor:
        matrix = self.matrix(scores)
        true, wrong = matrix.anchor.double(), scores.pairs[self.role].double()
        none = wrong.isneginf()
        wrong = wrong.masked_fill(none, 0)
        pull = (1 + self.margin - true.detach()).clamp(min=0)
        push = (wrong.detach() + self.margin).clamp(min=0)
        logits = (self.scale * push * (wrong - self.margin)).masked_fill(none, -torch.inf)
        excess = logits.logsumexp(1) - self.scale * pull * (true - 1 + self.margin)
        return self.reduce(softplus(excess).sum().to(matrix.scores.dtype), matrix)


LSEHReference = Literal["hardest", "sum"]
SameImage = Literal["excluded", "no margin"]


@final
class LSEHLoss(Loss):
    """Hinge with the margin alpha + lam * F, where F is the guide, in both directions.

    LSEH (Gong and Cosma, "Improving visual-semantic embeddings by learning semantically-enhanced
    hard negatives", Pattern Recognition 2023). A caption that is nearer in meaning has to score
    further below the true one. The hardest negative is the highest sum of score and margin, so the
    guide changes the choice too. Departs from the authors' code in: true pairs (by id) are no
    negatives, even where the positives of the batch are the diagonal alone; theirs are, at margin
    0, which is ``same_image="no margin"`` with diagonal positives. A guide of -inf marks such
    pairs.

    Args:
        alpha: margin of a caption that has nothing in common, in units of a score.
        lam: addition to the margin of a caption that means the same (guide 1).
        against: the "hardest" negative of the batch, or the "sum" over all.
        same_image: treatment of the pairs that the guide marks with -inf: "excluded", or negatives
            with "no margin".
        reduction: see `Loss`.

    Raises:
        ValueError: an unknown value of `against` or `same_image`.

    >>> scores = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> guide = torch.tensor([[1.0, 0.2, 0.4], [0.2, 1.0, 0.0], [0.4, 0.0, 1.0]])
    >>> round(LSEHLoss(alpha=0.2, lam=0.0)(scores, guide=guide).item(), 3)
    0.8
    >>> round(LSEHLoss(alpha=0.2, lam=0.1)(scores, guide=guide).item(), 3)
    0.88
    """

    needs = Needs(targets=True)

    def __init__(
        self,
        *,
        alpha: float = 0.185,
        lam: float = 0.025,
        against: LSEHReference = "hardest",
        same_image: SameImage = "excluded",
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        parse_literal(LSEHReference, against, "a value of 'against'")
        parse_literal(SameImage, same_image, "a value of 'same_image'")
        self.alpha, self.lam = alpha, lam
        self.against, self.same_image = against, same_image

    def forward(self, scores: Scores) -> Tensor:
        matrix = self.matrix(scores)
        texts, images = self.directions(matrix)
        return self.reduce(texts + images, matrix)

    def directions(self, matrix: ScoreMatrix) -> tuple[Tensor, Tensor]:
        """Return the sums of the hinges against wrong texts and against wrong images."""
        true = positive_scores(matrix)
        # the margin differs from pair to pair: it is added to the scores before the maximum
        excluded = matrix.positive if self.same_image == "no margin" else _same_image(matrix)
        wrong = (matrix.scores + self.margin(matrix)).masked_fill(excluded, -torch.inf)
        if self.against == "hardest":
            wrong_texts, wrong_images = wrong.amax(1, keepdim=True), wrong.amax(0).unsqueeze(1)
        else:
            wrong_texts, wrong_images = wrong, wrong.T
        positive = true.score.unsqueeze(1)
        return (
            hinge(wrong_texts[true.image], positive, 0).sum(),
            hinge(wrong_images[true.text], positive, 0).sum(),
        )

    def margin(self, matrix: ScoreMatrix) -> Tensor:
        """Return (I, T) margins, 0 for true pairs."""
        assert matrix.guide is not None, "Loss.__call__ checks that there is a guide"
        return (self.alpha + self.lam * matrix.guide).masked_fill(_same_image(matrix), 0)


def _same_image(matrix: ScoreMatrix) -> Tensor:
    """(I, T) bool, True for true pairs and for those that the guide marks."""
    assert matrix.guide is not None, "Loss.__call__ checks that there is a guide"
    return matrix.positive | matrix.guide.isneginf()


@final
class SelfAdjustedCFMLoss(Loss):
    """Hinge of every edited counterpart against its anchor pair: sum over both directions.

    CFM (Wei et al., MM 2022), self-adjustment: the positive with its most important regions or
    words overwritten by those of the hardest negative. An anchor for which nothing was edited has
    a score of -inf and adds 0.

    Args:
        margin: in units of a score.
        reduction: see `Loss`.

    >>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> edited = torch.tensor([[0.9, 0.85], [-torch.inf, 0.3]])
    >>> round(SelfAdjustedCFMLoss(margin=0.1)(scores, edited=edited).item(), 3)
    0.15
    """

    needs = Needs(roles=frozenset({Role.EDITED}), block=False)

    def __init__(self, *, margin: float = 0.1, reduction: Reduction = "sum") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin

    def forward(self, scores: Scores) -> Tensor:
        matrix = self.matrix(scores)
        edited = scores.pairs[Role.EDITED]
        return self.reduce(hinge(edited, matrix.anchor.unsqueeze(1), self.margin).sum(), matrix)


@final
class SelfExploredCFMLoss(Loss):
    """Hinge of the masked negative against the masked positive: sum over both directions.

    CFM (Wei et al., MM 2022), self-exploration: both have lost their most important regions or
    words, so the model has to distinguish them by the others. An anchor for which nothing was
    masked has scores of -inf and adds 0.

    Args:
        margin: in units of a score.
        reduction: see `Loss`.

    >>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> positive = torch.tensor([[0.5, 0.6], [-torch.inf, 0.3]])
    >>> negative = torch.tensor([[0.5, 0.4], [-torch.inf, 0.4]])
    >>> loss = SelfExploredCFMLoss(margin=0.1)
    >>> round(loss(scores, masked_positive=positive, masked_negative=negative).item(), 3)
    0.3
    """

    needs = Needs(roles=frozenset({Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE}), block=False)

    def __init__(self, *, margin: float = 0.1, reduction: Reduction = "sum") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin

    def forward(self, scores: Scores) -> Tensor:
        positive, negative = scores.pairs[Role.MASKED_POSITIVE], scores.pairs[Role.MASKED_NEGATIVE]
        none = negative.isneginf()  # both are -inf there, and their difference would be NaN
        cost = hinge(negative, positive.masked_fill(none, 0), self.margin)
        return self.reduce(cost.sum(), self.matrix(scores))


@final
class DistanceWeightedTripletLoss(Loss):
    """Hinge against one negative for each true pair, sampled by its distance from the anchor.

    Distance-weighted sampling (Wu et al., ICCV 2017, https://arxiv.org/abs/1706.07567, Eq. 3), with
    a fixed margin as in HREM (https://github.com/CrossmodalGroup/HREM). On a sphere most items lie
    at a right angle to each other. A negative is sampled with the inverse of the density of its
    distance, in both directions, so near ones come first: of scores around 0.4 nearly always the
    highest.

    Scores are read as cosines: a distance is sqrt(2 - 2 score / scale), see `ScoreMatrix.scale`.

    Departs from the authors' code in: negatives beyond `furthest` do not count when the weights are
    normalised, where theirs may leave no allowed one any weight; an anchor without an allowed
    negative adds 0, where theirs then drops the loss of the whole direction.

    Args:
        margin: in units of a score.
        nearest: distances below it count as this one.
        furthest: negatives from here on are never sampled; HREM has 1.7 on Flickr30K, 1.9 on COCO.
        dimensions: of the sphere.
        reduction: see `Loss`.
        view: name of the score matrix that it reads, a view of the model.

    Raises:
        ValueError: distances or dimensions that are not possible.

    >>> scores = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> round(DistanceWeightedTripletLoss(margin=0.2)(scores).item(), 3)
    0.8
    """

    def __init__(
        self,
        *,
        margin: float = 0.2,
        nearest: float = 0.5,
        furthest: float = 1.7,
        dimensions: int = 512,
        reduction: Reduction = "sum",
        view: str = INFERENCE,
    ) -> None:
        super().__init__(reduction=reduction)
        if not 0 < nearest < furthest < 2:
            raise ValueError(
                f"distances from {nearest} to {furthest} are not possible between unit vectors; "
                "give two between 0 and 2, the nearest first"
            )
        if dimensions < 3:
            raise ValueError(f"a sphere of {dimensions} dimensions is too small; give 3 or more")
        self.margin, self.view = margin, view
        self.nearest, self.furthest, self.dimensions = nearest, furthest, dimensions

    def forward(self, scores: Scores) -> Tensor:
        matrix = self.matrix(scores)
        rng = step_generator(scores, f"distance-weighted negatives of {matrix.name}")
        return self.sampled_hinges(
            matrix, torch.rand(2 * int(matrix.positive.sum()), generator=rng)
        )

    def sampled_hinges(self, matrix: ScoreMatrix, uniforms: Tensor) -> Tensor:
        """Return the loss for negatives sampled by (2 P,) random numbers from 0 to 1.

        They are of the P true pairs image after image, then text after text.
        """
        by_images, by_texts = uniforms.to(matrix.scores.device).chunk(2)
        texts = self._one_way(matrix.scores, matrix, matrix.positive, by_images)
        images = self._one_way(matrix.scores.T, matrix, matrix.positive.T, by_texts)
        return self.reduce(texts + images, matrix)

    @torch.no_grad()
    def chances(self, scores: Tensor, positive: Tensor) -> Tensor:
        """Return (A, C) sampling probabilities of the candidates, from their (A, C) cosines.

        Zeros where an anchor has no allowed candidate.
        """
        # density of a distance d between unit vectors: d^(n-2) (1 - d^2 / 4)^((n-3) / 2); in
        # logarithms, because d^510 is beyond floats
        distance = (2 - 2 * scores).clamp(min=0).sqrt().clamp(min=self.nearest)
        legal = ~positive & (distance < self.furthest)
        near = distance.clamp(max=self.furthest)  # at a distance of 2 the density is 0
        log = (2 - self.dimensions) * near.log()
        log = log - (self.dimensions - 3) / 2 * (1 - near.square() / 4).log()
        return log.masked_fill(~legal, -torch.inf).softmax(1).masked_fill(~legal, 0)

    def _one_way(
        self, scores: Tensor, matrix: ScoreMatrix, positive: Tensor, uniforms: Tensor
    ) -> Tensor:
        anchor, true = positive.nonzero(as_tuple=True)
        chances = self.chances(scores / matrix.scale, positive)[anchor]
        negative = draw_by_distance(chances, uniforms)
        wrong = scores[anchor, negative].masked_fill(~chances.any(1), -torch.inf)
        return hinge(wrong, scores[anchor, true], self.margin).sum()


def draw_by_distance(chances: Tensor, uniforms: Tensor) -> Tensor:
    """Return (P,) one sampled column of each row: the first whose cumulated chance is reached.

    Of a row of zeros the first column is returned.
    """
    reached = chances.cumsum(1)
    # the sum of rounded chances may end below 1, and no column of chance 0 may be sampled
    level = torch.minimum(uniforms.to(chances.dtype), reached[:, -1]).unsqueeze(1)
    return ((reached >= level) & (chances > 0)).long().argmax(1)


EXPANDED = "expanded"
ExpandedReference = Literal["hardest", "all", "mean"]


@final
class SelfExpandingLoss(Loss):
    """Triplet over h copies of each image and of each text: h images, h texts and h x h pairs each.

    The self-expanding triplet loss of ESA (Zhu et al., IEEE TCSVT 2023). The positive of a copy of
    an image is its lowest score with a copy of its caption, and its negatives are copies of other
    captions; a copy of a caption likewise. Every true pair of a batch, of which an image may have
    several, gives 2h hinges. With one copy it is `HardestTripletLoss`, or `SumTripletLoss` against
    all. ESA warms up against all negatives:
    ``SwitchAfter(first=SelfExpandingLoss(against="all"), second=SelfExpandingLoss(), steps=...)``.

    Departs from the authors' code in: another caption of the same image is no negative (with
    positives on the diagonal alone it is the authors' value), and equally hard negatives share the
    gradient.

    Args:
        against: the "hardest" negative, the sum over "all", or their "mean".
        margin: in units of a score.
        reduction: see `Loss`; the "mean" is over anchor pairs, not over their copies.

    Raises:
        ValueError: an unknown value of `against`.

    >>> scores = torch.tensor([[0.9, 0.7, 0.6, 0.5], [0.8, 0.8, 0.1, 0.2],
    ...                        [0.1, 0.3, 0.9, 0.9], [0.2, 0.2, 0.8, 0.9]])
    >>> round(SelfExpandingLoss(margin=0.2)(scores, repeats=2).item(), 3)  # 2 items, 2 copies
    0.1
    """

    view = EXPANDED

    def __init__(
        self,
        *,
        against: ExpandedReference = "hardest",
        margin: float = 0.2,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        parse_literal(ExpandedReference, against, "what a copy is held against")
        self.against: ExpandedReference = against
        self.margin = margin

    def forward(self, scores: Scores) -> Tensor:
        matrix = self.matrix(scores)
        images, texts = self.directions(matrix)
        return self.reduce(images + texts, matrix)

    def directions(self, matrix: ScoreMatrix) -> tuple[Tensor, Tensor]:
        """Return the sums over copies of images against texts, and of texts against images."""
        copies = matrix.repeats
        text, image = matrix.positive[::copies, ::copies].T.nonzero(as_tuple=True)
        images, texts = (size // copies for size in matrix.scores.shape)
        blocks = matrix.scores.view(images, copies, texts, copies)[image, :, text]  # (P, h, h)
        wrong = negative_scores(matrix)
        rows = self._one_way(wrong.view(images, copies, -1)[image], blocks.amin(2))
        columns = self._one_way(wrong.T.reshape(texts, copies, -1)[text], blocks.amin(1))
        return rows, columns

    def _one_way(self, wrong: Tensor, true: Tensor) -> Tensor:
        """Loss of (P, h, C) candidates, -inf where none, against (P, h) positives."""
        if self.against == "hardest":
            return hinge(wrong.amax(2), true, self.margin).sum()
        costs = hinge(wrong, true.unsqueeze(2), self.margin)
        if self.against == "all":
            return costs.sum()
        return (costs.sum(2) / wrong.isfinite().sum(2).clamp(min=1)).sum()
