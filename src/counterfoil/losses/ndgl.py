"""NDGL's losses: the student's scores of all negatives, as its teachers see them.

Sources: the paper (Expanding the Scope of Negatives, AAAI 2025), Eq. 4 and 5. Its authors published
no code. Both terms judge the inference grid, whose `ScoreMatrix.guide` holds the teachers' mean
score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final, get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from counterfoil.core.config import unknown_name
from counterfoil.core.types import Role, ScoreMatrix, Scores
from counterfoil.losses.aoq import OFFLINE
from counterfoil.losses.base import Loss, Reduction, positive_scores

# A guided block of scores, one direction at a time, and how far student and teachers agree.


@final
class GuidedScores(NamedTuple):
    """A anchors of one direction and their C candidates.

    Attributes:
        student: (A, C) scores.
        teacher: (A, C) targets.
        wrong: (A, C) bool, the candidates that are an anchor's negatives.
        own: (A,) score of the anchor's positive.
        taught: (A,) target of the anchor's positive.
    """

    student: Tensor
    teacher: Tensor
    wrong: Tensor
    own: Tensor
    taught: Tensor

    def joined(self, student: Tensor, teacher: Tensor) -> GuidedScores:
        """With (A, N) more negatives of every anchor."""
        every = torch.ones_like(student, dtype=torch.bool)
        return self._replace(
            student=torch.cat([self.student, student], 1),
            teacher=torch.cat([self.teacher, teacher], 1),
            wrong=torch.cat([self.wrong, every], 1),
        )


@final
class GuidedDirections(NamedTuple):
    """Anchor images with their texts, and anchor texts with their images."""

    images: GuidedScores
    texts: GuidedScores


@final
@dataclass(frozen=True, slots=True)
class Agreement:
    """How a student stands to its teachers in one block.

    Attributes:
        disagree: percent of anchors whose hardest negative is another one for the teachers.
        divergence: mean over anchors of ``KL(student || teachers)``, softmax over negatives.
        outranked: percent of true pairs that stand below some negative in the teachers' eyes,
            counted once for each direction; many of them hint at false negatives.
    """

    disagree: Tensor
    divergence: Tensor
    outranked: Tensor


def expand_copies(grid: ScoreMatrix) -> Tensor:
    """(I, T) the guide of a grid, with as many copies of each item as its scores have."""
    assert grid.guide is not None, "the step saw to it"
    if grid.guide.shape == grid.scores.shape:
        return grid.guide
    return grid.guide.repeat_interleave(grid.repeats, 0).repeat_interleave(grid.repeats, 1)


def guided_directions(grid: ScoreMatrix, *, each_pair: bool) -> GuidedDirections:
    """Both directions of a block, in units of a cosine.

    Args:
        grid: the block; where its guide is -inf, the pair is no negative.
        each_pair: one anchor for each true pair; else one for each image and each text, without
            a positive of its own.
    """
    student, teacher = grid.scores / grid.scale, expand_copies(grid) / grid.scale
    unknown = teacher.isneginf()
    teacher, wrong = teacher.masked_fill(unknown, 0), ~(grid.positive | unknown)
    if not each_pair:
        rows, columns = (student.new_zeros(n) for n in student.shape)
        return GuidedDirections(
            GuidedScores(student, teacher, wrong, rows, rows),
            GuidedScores(student.T, teacher.T, wrong.T, columns, columns),
        )
    image, text, score = positive_scores(grid)
    own, taught = score / grid.scale, teacher[image, text]
    return GuidedDirections(
        GuidedScores(student[image], teacher[image], wrong[image], own, taught),
        GuidedScores(student.T[text], teacher.T[text], wrong.T[text], own, taught),
    )


def candidate_mask(side: GuidedScores) -> tuple[Tensor, Tensor]:
    """(A,) places of the student's and of the teachers' hardest negative; the first of equals."""
    own = side.student.detach().masked_fill(~side.wrong, -torch.inf).argmax(1)
    return own, side.teacher.masked_fill(~side.wrong, -torch.inf).argmax(1)


@torch.no_grad()
def guide_agreement(grid: ScoreMatrix) -> Agreement:
    """How far a guided block is from its guide; anchors without a negative are left out."""
    sides = guided_directions(grid, each_pair=True)
    counted = torch.cat([side.wrong.any(1) for side in sides])
    apart, above, distance = [], [], []
    for side in sides:
        own, taught = candidate_mask(side)
        apart.append(own != taught)
        above.append(side.teacher.masked_fill(~side.wrong, -torch.inf).amax(1) > side.taught)
        distance.append(_divergence(side))
    return Agreement(
        disagree=100 * _mean(torch.cat(apart), counted),
        divergence=_mean(torch.cat(distance), counted),
        outranked=100 * _mean(torch.cat(above), counted),
    )


def log_softmax(logits: Tensor, there: Tensor) -> Tensor:
    """Over what is there; rows in which nothing is stay finite."""
    kept = there | ~there.any(1, keepdim=True)
    return logits.masked_fill(~kept, -torch.inf).log_softmax(1)


def divergence(p: Tensor, q: Tensor, there: Tensor) -> Tensor:
    """(A,) Kullback-Leibler divergence of two `log_softmax`, over what is there."""
    return (p.exp() * (p - q).masked_fill(~there, 0)).sum(1)


def _divergence(side: GuidedScores) -> Tensor:
    student, teacher = log_softmax(side.student, side.wrong), log_softmax(side.teacher, side.wrong)
    return divergence(student, teacher, side.wrong)


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    return (values.float() * counted).sum() / counted.sum().clamp(min=1)


# How far a student's scores of an anchor's candidates are from its teachers': NDGL's Eq. 4, read.
#
# The paper prints ``KL(margin || margin of the teachers)`` and says neither of which distribution
# nor
# of which reduction, so every reading is here by name.


FormName = Literal["row_softmax", "flat_softmax", "bernoulli", "gaussian", "mse"]
Operand = Literal["margin", "similarity"]
Emphasis = Literal["auto", "hard", "easy"]
Direction = Literal["student_teacher", "teacher_student"]
Over = Literal["mean", "sum"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MarginForm:
    """One reading of the equation; the fields are arguments of `MarginDistillationLoss`."""

    form: FormName
    operand: Operand
    tau: float
    hard: bool
    direction: Direction
    include_positive: bool
    over: Over

    @property
    def reads_positive(self) -> bool:
        """Whether the score of an anchor's positive changes anything.

        It does not in a softmax over an anchor's negatives, where it is a common shift.
        """
        if self.form == "mse" or (self.operand == "similarity" and not self.include_positive):
            return False
        return self.form != "row_softmax" or self.include_positive

    def distances(self, side: GuidedScores) -> Tensor:
        """(A,) of each anchor, 0 where it has no negative; (1,) where one softmax holds all."""
        if self.form == "row_softmax":
            return self._divergence(*self._sets(side))
        if self.form == "flat_softmax":
            student, teacher, there = self._sets(side)
            return self._divergence(*(t.reshape(1, -1) for t in (student, teacher, there)))
        return self._elementwise(side)

    def _sets(self, side: GuidedScores) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of both, and which of them count."""
        student = self._logits(side.student, side.own)
        teacher = self._logits(side.teacher, side.taught)
        if not self.include_positive:
            return student, teacher, side.wrong
        student = torch.cat([student, self._logits(side.own[:, None], side.own)], 1)
        teacher = torch.cat([teacher, self._logits(side.taught[:, None], side.taught)], 1)
        also = side.wrong.any(1, keepdim=True)
        return student, teacher, torch.cat([side.wrong, also], 1)

    def _logits(self, scores: Tensor, own: Tensor) -> Tensor:
        if self.operand == "similarity":
            return scores / self.tau
        margin = own.unsqueeze(1) - scores
        return (-margin if self.hard else margin) / self.tau

    def _divergence(self, student: Tensor, teacher: Tensor, there: Tensor) -> Tensor:
        p, q = log_softmax(student, there), log_softmax(teacher, there)
        if self.direction == "teacher_student":
            p, q = q, p
        return divergence(p, q, there)

    def _elementwise(self, side: GuidedScores) -> Tensor:
        """(A,) of single pairs of numbers, each as a distribution of its own."""
        x, y = side.student, side.teacher
        if self.form != "mse" and self.operand == "margin":
            x, y = side.own.unsqueeze(1) - x, side.taught.unsqueeze(1) - y
        x, y = x / self.tau, y / self.tau
        each = self._bernoulli(x, y) if self.form == "bernoulli" else (x - y).square() / 2
        total = each.masked_fill(~side.wrong, 0).sum(1)
        return total / side.wrong.sum(1).clamp(min=1) if self.over == "mean" else total

    def _bernoulli(self, x: Tensor, y: Tensor) -> Tensor:
        if self.direction == "teacher_student":
            x, y = y, x
        p, q = x.sigmoid(), (-x).sigmoid()
        return p * (logsigmoid(x) - logsigmoid(y)) + q * (logsigmoid(-x) - logsigmoid(-y))


Candidates = Literal["batch", "offline"]
DRAWN = Role.HARD_TEXT, Role.HARD_IMAGE  # for the two sides


@final
class MarginDistillationLoss(Loss):
    """Divergence of the student's distribution over negatives from that of its teachers (Eq. 4).

    Every anchor image has a softmax over the negative texts of the batch, told by id, of how far
    its positive stands above each; every anchor text has one over images. The positive itself
    cancels out of that softmax, so what is matched are the negatives' relative scores: at tau 1 and
    with cosines nearly their mean squared error, up to a shift of each anchor's. Several texts of
    an image have identical terms, of which one counts. The paper weighs the term 100 beside a
    triplet summed over the batch; the gradient falls with the square of tau, so at another tau the
    weight wants to be multiplied by tau squared.

    Scores are divided by `ScoreMatrix.scale` first: tau is in units of a cosine.

    Args:
        form: "row_softmax" of each anchor; "flat_softmax" over all anchors of a direction (one
            divergence, whatever the reduction); "bernoulli" or "gaussian" of every margin by
            itself, which pin the margin's absolute size; "mse" of the similarities.
        operand: "margin", or "similarity" for the paper's SR ablation, in which nothing is
            subtracted from a positive.
        tau: temperature; the deviation of a Gaussian.
        emphasis: on which negatives a softmax of margins has its mass: "easy" is the equation to
            the letter, "hard" turns the sign. "auto" is easy at tau 1, where both are nearly
            alike, and hard elsewhere.
        direction: which distribution comes first, as in ``KL(student || teacher)``.
        include_positive: whether the positive stands among the candidates, with margin 0; then
            every true pair has a term of its own.
        over: "mean" or "sum" over an anchor's negatives, where form is none of the softmaxes.
        offline: whether drawn pairs, with their guides, join the anchor's negatives of the batch;
            every anchor pair then has a term of its own. One that is in the batch too counts twice.
        reduction: over the anchors of a direction; the model's.

    Raises:
        ValueError: an unknown option, or a temperature that is not above 0.

    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> guide = torch.tensor([[0.9, 0.5, 0.2], [0.5, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> grid = Grid(s, torch.eye(3).bool(), s.diagonal(), guide)
    >>> round(100 * MarginDistribution()(Scores({"inference": grid})).item(), 3)
    4.262
    """

    needs_guide = True

    def __init__(
        self,
        *,
        form: FormName = "row_softmax",
        operand: Operand = "margin",
        tau: float = 1.0,
        emphasis: Emphasis = "auto",
        direction: Direction = "student_teacher",
        include_positive: bool = False,
        over: Over = "mean",
        offline: bool = False,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        _known(form, FormName, "a form")
        _known(operand, Operand, "an operand")
        _known(emphasis, Emphasis, "an emphasis")
        _known(direction, Direction, "a direction")
        _known(over, Over, "a reduction over negatives")
        if not (tau > 0 and math.isfinite(tau)):
            raise ValueError(f"tau={tau} cannot be a temperature; use a number above 0, as in 1.0")
        self.form = MarginForm(
            form=form,
            operand=operand,
            tau=tau,
            hard=emphasis == "hard" or (emphasis == "auto" and tau != 1.0),
            direction=direction,
            include_positive=include_positive,
            over=over,
        )
        self.offline = offline
        self.needs = self.needs_guided = OFFLINE if offline else frozenset()

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        sides = guided_directions(grid, each_pair=self.form.reads_positive or self.offline)
        if self.offline:
            sides = _with_drawn(sides, scores, grid)
        return _total([self.form.distances(side) for side in sides], self.reduction)


@final
class HardNegativeRectificationLoss(Loss):
    """Lifts the teachers' hardest negative above the student's own (Eq. 5).

    The hinge is ``gamma - S(anchor, teachers' hardest) + S(anchor, student's hardest)``, and 0
    where both are the same one, told by its place. With candidates of the batch the student's is
    the highest of all by definition: the hinge is always open where the two differ, gamma adds a
    constant and changes no gradient, and what remains is a push of constant strength, down for the
    student's choice and up for the teachers'. Keep its weight (0.5 in the paper) below that of the
    triplet, which it works against. One term for each image and each text.

    Args:
        gamma: in units of a cosine: scores are divided by `ScoreMatrix.scale`.
        candidates: where the teachers' hardest is looked for: in the "batch", or among the drawn
            pairs of each anchor ("offline"), where gamma matters: the hinge then closes once the
            teachers' negative stands gamma above all of the batch.
        reduction: over the anchors of a direction; the model's.

    Raises:
        ValueError: unknown candidates.

    >>> s = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> guide = torch.tensor([[0.9, 0.5, 0.6], [0.5, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> grid = Grid(s, torch.eye(3).bool(), s.diagonal(), guide)
    >>> round(HardestRectified()(Scores({"inference": grid})).item(), 3)
    1.23
    """

    needs_guide = True

    def __init__(
        self,
        *,
        gamma: float = 0.01,
        candidates: Candidates = "batch",
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        _known(candidates, Candidates, "where candidates come from")
        self.gamma, self.candidates = gamma, candidates
        self.needs = self.needs_guided = OFFLINE if candidates == "offline" else frozenset()

    def forward(self, scores: Scores) -> Tensor:
        """Scalar loss."""
        grid = self.grid(scores)
        sides = guided_directions(grid, each_pair=self.candidates == "offline")
        if self.candidates == "batch":
            return _total([self.rectified(side) for side in sides], self.reduction)
        _check(sides, grid)
        hinges = [
            self._outside(side, scores.pairs[role] / grid.scale, scores.guides[role])
            for side, role in zip(sides, DRAWN, strict=True)
        ]
        return _total(hinges, self.reduction)

    def rectified(self, side: GuidedScores) -> Tensor:
        """(A,) where both are looked for among the same negatives."""
        own, taught = candidate_mask(side)
        at = torch.stack([own, taught], 1)
        highest, wanted = side.student.gather(1, at).unbind(1)
        hinge = (self.gamma - wanted + highest).clamp(min=0)
        return hinge.masked_fill((own == taught) | ~side.wrong.any(1), 0)

    def _outside(self, side: GuidedScores, drawn: Tensor, guide: Tensor) -> Tensor:
        """(A,) where the teachers choose among (A, N) drawn pairs."""
        wanted = drawn.gather(1, guide.argmax(1, keepdim=True)).squeeze(1)
        highest = side.student.masked_fill(~side.wrong, -torch.inf).amax(1)
        return (self.gamma - wanted + highest).clamp(min=0)


def _with_drawn(sides: GuidedDirections, scores: Scores, grid: ScoreMatrix) -> GuidedDirections:
    """With every anchor's drawn pairs among its negatives."""
    _check(sides, grid)
    scale = grid.scale
    drawn = [
        side.joined(scores.pairs[role] / scale, scores.guides[role] / scale)
        for side, role in zip(sides, DRAWN, strict=True)
    ]
    return GuidedDirections(*drawn)


def _check(sides: GuidedDirections, grid: ScoreMatrix) -> None:
    assert len(sides.texts.own) == len(grid.anchor), "every text of the block is one anchor's"


def _total(parts: list[Tensor], reduction: Reduction) -> Tensor:
    """Both directions, each over its own anchors."""
    return torch.stack([p.mean() if reduction == "mean" else p.sum() for p in parts]).sum()


def _known(value: str, options: Any, what: str) -> None:
    if value not in get_args(options):
        raise ValueError(unknown_name(value, list(get_args(options)), what))
