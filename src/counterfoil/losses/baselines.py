"""Hinges whose margin grows with how near the wrong caption is in meaning (LSEH)."""

from __future__ import annotations

import math
from typing import Literal, final, get_args

import torch
from torch import Tensor
from torch.nn.functional import softplus

from counterfoil.core.config import parse_choice, parse_literal
from counterfoil.core.types import INFERENCE, Role, ScoreMatrix, Scores
from counterfoil.losses.base import (
    Loss,
    PositiveScores,
    Reduction,
    hardest_negatives,
    hinge,
    negative_mask,
    positive_scores,
    step_generator,
)

LSEHReference = Literal["hardest", "sum"]
SameImage = Literal["excluded", "no margin"]


@final
class LSEHLoss(Loss):
    """Hinge with the margin alpha + lam * F, where F is the guide, in both directions.

    LSEH (Gong and Cosma, "Improving visual-semantic embeddings by learning semantically-enhanced
    hard negatives", Pattern Recognition 2023). A nearer caption has to stay further below the true
    one. The negative is chosen with its margin, so the guide says too which one is hardest.
    Departs from the authors' code in: pairs that are true by id are no negatives, even where the
    batch calls them wrong; theirs are, at margin 0: ``same_image="no margin"``, which wants
    "diagonal" positives. A guide of -inf marks such pairs.

    Args:
        alpha: margin of a caption that has nothing in common, in units of a score.
        lam: what the nearest caption adds to it.
        against: the "hardest" negative of the batch, or the "sum" over all.
        same_image: what becomes of pairs that the guide marks.
        reduction: see `Loss`.

    Raises:
        ValueError: a word that is not known.

    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> near = torch.tensor([[1.0, 0.2, 0.4], [0.2, 1.0, 0.0], [0.4, 0.0, 1.0]])
    >>> grid = Grid(scores=s, positive=torch.eye(3).bool(), anchor=s.diagonal(), guide=near)
    >>> scores = Scores({"inference": grid})
    >>> round(SemanticMargin(alpha=0.2, lam=0.0)(scores).item(), 3)
    0.8
    >>> round(SemanticMargin(alpha=0.2, lam=0.1)(scores).item(), 3)
    0.88
    """

    needs_guide = True

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
        for name, given, kinds in (
            ("against", against, get_args(LSEHReference)),
            ("same_image", same_image, get_args(SameImage)),
        ):
            parse_choice(kinds, given, f"a value of {name!r}")
        self.alpha, self.lam = alpha, lam
        self.against, self.same_image = against, same_image

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        texts, images = self.directions(grid)
        return self.reduced(texts + images, grid)

    def directions(self, grid: ScoreMatrix) -> tuple[Tensor, Tensor]:
        """Sums of the hinges against wrong texts and against wrong images."""
        true = positive_scores(grid)
        wrong = (grid.scores + self.margin(grid)).masked_fill(self._left_out(grid), -torch.inf)
        if self.against == "hardest":
            texts, images = wrong.amax(1)[true.image], wrong.amax(0)[true.text]
            return hinge(texts, true.score, 0).sum(), hinge(images, true.score, 0).sum()
        positive = true.score.unsqueeze(1)
        return (
            hinge(wrong[true.image], positive, 0).sum(),
            hinge(wrong.T[true.text], positive, 0).sum(),
        )

    def margin(self, grid: ScoreMatrix) -> Tensor:
        """(I, T) margins, 0 for true pairs."""
        assert grid.guide is not None, "the step checks that there is a guide"
        none = grid.positive | grid.guide.isneginf()
        return (self.alpha + self.lam * grid.guide).masked_fill(none, 0)

    def _left_out(self, grid: ScoreMatrix) -> Tensor:
        """(I, T) bool, True for pairs that are no negatives."""
        assert grid.guide is not None, "the step checks that there is a guide"
        if self.same_image == "no margin":
            return grid.positive
        return grid.positive | grid.guide.isneginf()


# Hinges of anchors against what was edited for them (CFM).


@final
class SelfAdjustedCFMLoss(Loss):
    """Hinge of every edited counterpart against its anchor pair: sum over both directions.

    CFM (Wei et al., MM 2022), self-adjustment: the positive with its most important regions or
    words overwritten by those of the hardest negative. An anchor for which nothing was edited,
    with a score of -inf, costs nothing.

    Args:
        margin: in units of a score.
        reduction: see `Loss`.

    >>> import torch
    >>> from counterfoil.core.types import ScoreMatrix
    >>> s = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> grid = Grid(scores=s, positive=torch.eye(2).bool(), anchor=s.diagonal())
    >>> pairs = {Role.EDITED: torch.tensor([[0.9, 0.85], [-torch.inf, 0.3]])}
    >>> round(SelfAdjusted(margin=0.1)(Scores({"inference": grid}, pairs)).item(), 3)
    0.15
    """

    needs = frozenset({Role.EDITED})
    needs_block = False

    def __init__(self, *, margin: float = 0.1, reduction: Reduction = "sum") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        edited = scores.pairs[Role.EDITED]
        return self.reduced(hinge(edited, grid.anchor.unsqueeze(1), self.margin).sum(), grid)


@final
class SelfExploredCFMLoss(Loss):
    """Hinge of the masked negative against the masked positive: sum over both directions.

    CFM (Wei et al., MM 2022), self-exploration: both have lost their most important regions or
    words, so others have to tell them apart. An anchor for which nothing was masked, with scores of
    -inf, costs nothing.

    Args:
        margin: in units of a score.
        reduction: see `Loss`.

    >>> import torch
    >>> from counterfoil.core.types import ScoreMatrix
    >>> s = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> grid = Grid(scores=s, positive=torch.eye(2).bool(), anchor=s.diagonal())
    >>> pairs = {
    ...     Role.MASKED_POSITIVE: torch.tensor([[0.5, 0.6], [-torch.inf, 0.3]]),
    ...     Role.MASKED_NEGATIVE: torch.tensor([[0.5, 0.4], [-torch.inf, 0.4]]),
    ... }
    >>> round(SelfExplored(margin=0.1)(Scores({"inference": grid}, pairs)).item(), 3)
    0.3
    """

    needs = frozenset({Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE})
    needs_block = False

    def __init__(self, *, margin: float = 0.1, reduction: Reduction = "sum") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        positive, negative = (
            scores.pairs[role] for role in (Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE)
        )
        none = negative.isneginf()
        cost = hinge(negative, positive.masked_fill(none, 0), self.margin)
        return self.reduced(cost.sum(), self.grid(scores))


# Contrastive losses that know of false negatives, or that weigh negatives by how hard they are.


EVEN = 1e-6  # so near, what is left of the negatives has no finite logarithm


@final
class DebiasedContrastiveLoss(Loss):
    """InfoNCE whose sum over N negatives is corrected, or weighed, or both.

    DCL (https://arxiv.org/abs/2007.00224): of the negatives a share `tau_plus` is false and looks
    like the positive, so that much is taken off, down to what N negatives of the lowest score would
    give. HCL (https://arxiv.org/abs/2010.04592): before that, a negative is weighed by its own
    exponential to the power `beta`, with weights of 1 on average. With both at 0 this is
    `InfoNCELoss`; with a growing `beta` only the hardest negative is left, N times.

    Departs from the authors' code in: images and texts face each other, in both directions;
    negatives are told by id; everything stays logarithms, so no temperature overflows.

    Args:
        temperature: scores are divided by it.
        tau_plus: how likely a negative is a true pair; 0 for no correction. The authors take 0.1
            for ten classes; among captions far fewer are false.
        beta: how strongly hard negatives are preferred; 0 for not at all. The authors take 0.5 to
            2.
        lowest: the lowest score there is, -1 for a cosine; asked for with `tau_plus` only.
        reduction: see `Loss`.

    Raises:
        ValueError: a temperature that is not positive, a share that is none, or a negative `beta`.

    >>> from counterfoil.core.types import ScoreMatrix
    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> scores = Scores({"inference": Grid(s, torch.eye(3).bool(), anchor=s.diagonal())})
    >>> terms = Debiased(), Debiased(tau_plus=0.1), Debiased(beta=1.0)
    >>> [round(term(scores).item(), 3) for term in terms]
    [1.888, 1.756, 2.617]
    """

    def __init__(
        self,
        *,
        temperature: float = 0.07,
        tau_plus: float = 0.0,
        beta: float = 0.0,
        lowest: float = -1.0,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        if not temperature > 0:
            raise ValueError(f"a temperature of {temperature} was given; it must be positive")
        if not 0 <= tau_plus < 1:
            raise ValueError(
                f"tau_plus={tau_plus} was given; it is the share of negatives that are false, "
                "from 0 to below 1"
            )
        if not beta >= 0:
            raise ValueError(f"beta={beta} was given; use 0 for equal weights, or more")
        self.temperature, self.lowest = temperature, lowest
        self.tau_plus, self.beta = tau_plus, beta

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        true = positive_scores(grid)
        texts = self._one_way(grid.scores[true.image], ~grid.positive[true.image], true)
        images = self._one_way(grid.scores.T[true.text], ~grid.positive.T[true.text], true)
        return self.reduced((texts + images) / 2, grid)

    def _one_way(self, scores: Tensor, wrong: Tensor, true: PositiveScores) -> Tensor:
        """Of (P, C) scores against P positives; a row without a wrong one is free."""
        some = wrong.any(1)
        wrong = wrong[some]
        logits, positive = scores[some] / self.temperature, true.score[some] / self.temperature
        hard = (logits * self.beta).masked_fill(~wrong, -torch.inf)
        both = (logits * (1 + self.beta)).masked_fill(~wrong, -torch.inf)
        count = wrong.sum(1).to(logits).log()
        excess = both.logsumexp(1) - hard.logsumexp(1) + count - positive
        return softplus(self._corrected(excess, count, positive)).sum()

    def _corrected(self, excess: Tensor, count: Tensor, positive: Tensor) -> Tensor:
        """(P,) logarithms of negatives over positive, without the false ones."""
        if not self.tau_plus:
            return excess
        false = count + math.log(self.tau_plus) - excess
        all_false = false > -EVEN
        left = (-false.masked_fill(all_false, -torch.inf).exp()).log1p() + excess
        floor = count + self.lowest / self.temperature - positive
        return torch.where(all_false, floor, floor.maximum(left - math.log1p(-self.tau_plus)))


# Triplets whose negatives are drawn so that every distance is seen alike.


@final
class DistanceWeightedTripletLoss(Loss):
    """Hinge against one negative for each true pair, drawn by its distance from the anchor.

    On a sphere most items lie at a right angle. A negative is drawn with the inverse of the density
    of its distance, in both directions, so near ones come first: of scores around 0.4 the highest
    one nearly always. Wu et al., ICCV 2017 (https://arxiv.org/abs/1706.07567), with a
    fixed margin as HREM has it (https://github.com/CrossmodalGroup/HREM).

    Scores are read as cosines: a distance is sqrt(2 - 2 score / scale), see `ScoreMatrix.scale`.

    Departs from the authors' code in: negatives beyond `furthest` do not count when the weights are
    scaled, where theirs may leave no legal one any weight; an anchor without a legal negative costs
    nothing, where theirs then drops the loss of the whole direction.

    Args:
        margin: in units of a score.
        nearest: distances below it count as this one.
        furthest: negatives from here on are never drawn; HREM has 1.7 on Flickr30K, 1.9 on COCO.
        dimensions: of the sphere.
        reduction: see `Loss`.
        grid: name of the grid it judges.

    Raises:
        ValueError: distances or dimensions that are not possible.

    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> grid = Grid(scores=s, positive=torch.eye(3).bool(), anchor=s.diagonal())
    >>> round(DistanceWeighted(margin=0.2)(Scores({"inference": grid})).item(), 3)
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
        grid: str = INFERENCE,
    ) -> None:
        super().__init__(reduction=reduction)
        if not 0 < nearest < furthest < 2:
            raise ValueError(
                f"distances from {nearest} to {furthest} are not possible between unit vectors; "
                "give two between 0 and 2, the nearest first"
            )
        if dimensions < 3:
            raise ValueError(f"a sphere of {dimensions} dimensions is too small; give 3 or more")
        self.margin, self.needs_grid = margin, grid
        self.nearest, self.furthest, self.dimensions = nearest, furthest, dimensions

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        rng = step_generator(scores, f"distance-weighted negatives of {grid.name}")
        return self.judged(grid, torch.rand(2 * int(grid.positive.sum()), generator=rng))

    def judged(self, grid: ScoreMatrix, uniforms: Tensor) -> Tensor:
        """The loss with given draws.

        Args:
            grid: what is judged.
            uniforms: (2 P,) from 0 to 1, of the P true pairs image after image, then of those text
                after text.
        """
        by_images, by_texts = uniforms.to(grid.scores.device).chunk(2)
        texts = self._one_way(grid.scores, grid, grid.positive, by_images)
        images = self._one_way(grid.scores.T, grid, grid.positive.T, by_texts)
        return self.reduced(texts + images, grid)

    @torch.no_grad()
    def chances(self, scores: Tensor, positive: Tensor) -> Tensor:
        """(A, C) with which each anchor draws each candidate; zeros where none may be drawn.

        Args:
            scores: (A, C) cosines.
            positive: (A, C) bool.
        """
        distance = (2 - 2 * scores).clamp(min=0).sqrt().clamp(min=self.nearest)
        legal = ~positive & (distance < self.furthest)
        near = distance.clamp(max=self.furthest)
        log = (2 - self.dimensions) * near.log()
        log = log - (self.dimensions - 3) / 2 * (1 - near.square() / 4).log()
        return log.masked_fill(~legal, -torch.inf).softmax(1).masked_fill(~legal, 0)

    def _one_way(
        self, scores: Tensor, grid: ScoreMatrix, positive: Tensor, uniforms: Tensor
    ) -> Tensor:
        anchor, true = positive.nonzero(as_tuple=True)
        chances = self.chances(scores / grid.scale, positive)[anchor]
        negative = draw_by_distance(chances, uniforms)
        wrong = scores[anchor, negative].masked_fill(~chances.any(1), -torch.inf)
        return hinge(wrong, scores[anchor, true], self.margin).sum()


def draw_by_distance(chances: Tensor, uniforms: Tensor) -> Tensor:
    """(P,) one column of each row, the first whose chances up to it reach the row's uniform.

    Args:
        chances: (P, C) that sum to 1; of a row of zeros the first column is drawn.
        uniforms: (P,) from 0 to 1.
    """
    reached = chances.cumsum(1)
    # a sum of rounded chances may end below 1, and no column of chance 0 is to be drawn
    wanted = torch.minimum(uniforms.to(chances.dtype), reached[:, -1]).unsqueeze(1)
    return ((reached >= wanted) & (chances > 0)).long().argmax(1)


# Negatives chosen by how likely they are to be wrong.


Choice = Literal["sampled", "expected"]
PRIOR = 1 / 9999  # odds that a negative is a true pair
SUSPECT = 1e-3  # posterior above which it may well be one


@final
class PosteriorTripletLoss(Loss):
    """Hinge against a negative that is hard, but is probably no true pair.

    The false-negative elimination of FNE (Li et al., ACM Multimedia 2023,
    https://arxiv.org/abs/2308.04380). A negative weighs exp(-d² / 2), where d is how far it scores
    from the positive. Anchor pairs that rank first in both directions tell how positives and
    hardest negatives are distributed, two Gaussians; once more than `enough` are known, a negative
    that is a true pair with posterior p > 0.001 weighs exp(-p / 2) instead. One that scores more
    than the margin below the mean positive weighs nothing, and where nothing is left the hardest is
    taken. The weights follow the authors' code; p begins at odds of 1 to 9999, so that only a score
    far out among the negatives is suspected.

    Departs from the authors' code in: negatives are told by id, and come from the batch, not from
    queues of a momentum encoder; the variance is taken around the mean, not around the means that
    came before; scores are brought to the range of a cosine; and "expected" has no variance of its
    own.

    In training it learns the two distributions as it goes; they are buffers, saved with it.

    Args:
        margin: in units of a score.
        choice: one negative is "sampled" by weight, as the authors do, or the "expected" hinge is
            taken over all of them.
        sharpness: k in the weights exp(-k d²) and exp(-k p).
        enough: pairs that must be known before the posterior is trusted.
        period: after so many steps the distributions are learnt anew; the authors take an epoch. 0
            for never.
        reduction: see `Loss`.

    Raises:
        ValueError: another choice, or a negative number.

    >>> from counterfoil.core.types import ScoreMatrix
    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> scores = Scores({"inference": Grid(s, torch.eye(3).bool(), anchor=s.diagonal())})
    >>> round(PosteriorTriplet(margin=0.5, choice="expected")(scores).item(), 3)
    2.1
    """

    learnt: Tensor

    def __init__(
        self,
        *,
        margin: float = 0.2,
        choice: Choice = "sampled",
        sharpness: float = 0.5,
        enough: int = 200,
        period: int = 0,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        parse_literal(Choice, choice, "how a negative is chosen")
        for name, number in (("sharpness", sharpness), ("enough", enough), ("period", period)):
            if number < 0:
                raise ValueError(f"{name}={number} was given; use 0 or more")
        self.choice: Choice = choice
        self.margin, self.sharpness = margin, sharpness
        self.enough, self.period = enough, period
        self._anew = -1  # step at which they were last learnt anew
        # of positives and of hardest negatives: how many, their mean, their squared deviations
        self.register_buffer("learnt", torch.zeros(2, 3))

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss. In training, what this batch says of the distributions is learnt first."""
        grid = self.grid(scores)
        true, wrong = positive_scores(grid), negative_mask(grid)
        if self.training:
            self._learn(grid, true, scores.step)
        texts = self._one_way(wrong[true.image], true.score, grid, scores, "texts")
        images = self._one_way(wrong.T[true.text], true.score, grid, scores, "images")
        return self.reduced(texts + images, grid)

    def _one_way(
        self, wrong: Tensor, positive: Tensor, grid: ScoreMatrix, scores: Scores, what: str
    ) -> Tensor:
        """Of (P, C) candidates, -inf where none, against (P,) positives."""
        positive = positive.unsqueeze(1)
        weights = self._weights(wrong.detach(), positive.detach(), grid.scale)
        costs = hinge(wrong, positive, self.margin)
        if self.choice == "expected":
            return (costs * weights / weights.sum(1, keepdim=True).clamp(min=1e-30)).sum()
        noise = torch.empty(weights.shape).exponential_(
            generator=step_generator(scores, f"posterior {what}")
        )
        place = (weights / noise.to(weights)).argmax(1, keepdim=True)  # one by weight in each row
        return costs.gather(1, place).sum()

    def _weights(self, wrong: Tensor, positive: Tensor, scale: float) -> Tensor:
        """(P, C) how much each negative weighs; 0 for what is none."""
        none = wrong == -torch.inf
        far = ((wrong - positive) / scale).masked_fill(none, 0)
        weights = (-self.sharpness * far.square()).exp()
        count, mean, _ = self.learnt[0]
        match = self._match(wrong.masked_fill(none, 0))
        suspect = (match > SUSPECT) & (count > self.enough)
        weights = torch.where(suspect, (-self.sharpness * match).exp(), weights)
        low = (wrong <= mean - self.margin) & (count > 0)
        weights = weights.masked_fill(none | low, 0)
        lost = ~(weights > 0).any(1, keepdim=True)
        return torch.where(lost & (wrong == wrong.amax(1, keepdim=True)) & ~none, 1, weights)

    def _match(self, score: Tensor) -> Tensor:
        """Posterior that pairs of these scores are true ones; NaN before any were seen."""
        (_, mean, _), (_, other, _) = self.learnt
        spread, against = (self.learnt[:, 2] / self.learnt[:, 0]).clamp(min=1e-8)
        for_it, for_other = (score - mean).square() / spread, (score - other).square() / against
        odds: Tensor = (for_other - for_it + (against / spread).log()) / 2 + math.log(PRIOR)
        return odds.sigmoid()

    @torch.no_grad()
    def _learn(self, grid: ScoreMatrix, true: PositiveScores, step: int) -> None:
        """From true pairs that score higher than every wrong one of their row and column."""
        if self.period and step % self.period == 0 and step != self._anew:
            self.learnt.zero_()  # once, however often a step is judged
            self._anew = step
        hard = hardest_negatives(grid, true)
        first = (true.score > hard.text) & (true.score > hard.image)
        seen = torch.cat((hard.text[first], hard.image[first]))
        for row, new in zip(self.learnt, (true.score[first], seen[seen > -torch.inf])):
            if len(new):
                row.copy_(_merged(row, new.to(row)))


def _merged(known: Tensor, new: Tensor) -> Tensor:
    """Count, mean and squared deviations with those of (N,) new values."""
    count, mean, squares = known
    both = count + len(new)
    away = new.mean() - mean
    around = (new - new.mean()).square().sum()
    moved = mean + away * len(new) / both
    return torch.stack((both, moved, squares + around + away**2 * count * len(new) / both))


# The hardest negative, unless its gradient would vanish.


Otherwise = Literal["mean", "sum"]


@final
class SelectiveHardNegativeLoss(Loss):
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
        reduction: see `Loss`.

    Raises:
        ValueError: a negative `epsilon`, or something else otherwise.

    >>> from counterfoil.core.types import ScoreMatrix
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
        true, wrong = positive_scores(grid), negative_mask(grid)
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


# Several copies of every item in one batch, each judged against its hardest true partner.


EXPANDED = "expanded"
ExpandedReference = Literal["hardest", "all", "mean"]


@final
class SelfExpandingLoss(Loss):
    """Triplet over h copies of each image and of each text: h images, h texts and h x h pairs each.

    A copy of an image is compared with the copy of its caption that it likes least, and with copies
    of other captions as negatives; a copy of a caption likewise. Every true pair of a batch, of
    which an image may have several, gives 2h hinges. With one copy it is `HardestTripletLoss`, or
    `SumTripletLoss` against all.

    The self-expanding triplet loss of ESA (Zhu et al., IEEE TCSVT 2023), which warms up against all
    negatives: ``Then(first=SelfExpanding(against="all"), second=SelfExpanding(), steps=...)``.
    Departs from the authors' code in: negatives are told by id ("diagonal" positives give the
    authors' value), and equally hard ones share the gradient.

    Args:
        against: the "hardest" negative, the sum over "all", or their "mean".
        margin: in units of a score.
        reduction: see `Loss`; the "mean" is over anchor pairs, not over their copies.

    Raises:
        ValueError: against something else.

    >>> import torch
    >>> from counterfoil.core.types import ScoreMatrix
    >>> s = torch.tensor([[0.9, 0.7, 0.6, 0.5], [0.8, 0.8, 0.1, 0.2],
    ...                   [0.1, 0.3, 0.9, 0.9], [0.2, 0.2, 0.8, 0.9]])
    >>> positive = torch.eye(2).bool().repeat_interleave(2, 0).repeat_interleave(2, 1)
    >>> grid = Grid(s, positive, anchor=torch.tensor([0.7, 0.8]), copies=2)
    >>> round(SelfExpanding(margin=0.2)(Scores({"expanded": grid})).item(), 3)
    0.1
    """

    needs_grid = EXPANDED

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
        """Scalar loss."""
        grid = self.grid(scores)
        images, texts = self.directions(grid)
        return self.reduced(images + texts, grid)

    def directions(self, grid: ScoreMatrix) -> tuple[Tensor, Tensor]:
        """Sums over copies of images, for which texts are wrong, and over copies of texts."""
        copies = grid.repeats
        text, image = grid.positive[::copies, ::copies].T.nonzero(as_tuple=True)
        images, texts = (size // copies for size in grid.scores.shape)
        blocks = grid.scores.view(images, copies, texts, copies)[image, :, text]  # (P, h, h)
        wrong = negative_mask(grid)
        rows = self._one_way(wrong.view(images, copies, -1)[image], blocks.amin(2))
        columns = self._one_way(wrong.T.reshape(texts, copies, -1)[text], blocks.amin(1))
        return rows, columns

    def _one_way(self, wrong: Tensor, true: Tensor) -> Tensor:
        """Of (P, h, C) candidates, -inf where none, against (P, h) positives."""
        if self.against == "hardest":
            return hinge(wrong.amax(2), true, self.margin).sum()
        costs = hinge(wrong, true.unsqueeze(2), self.margin)
        if self.against == "all":
            return costs.sum()
        return (costs.sum(2) / wrong.isfinite().sum(2).clamp(min=1)).sum()
