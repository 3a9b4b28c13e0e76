"""NDGL's losses: distil the teachers' similarity of all negatives into a student.

Sources: the paper (Expanding the Scope of Negatives, AAAI 2025), Eq. 4 and 5. Its authors published
no code. Both losses read the inference matrix, whose `ScoreMatrix.guide` holds the teachers' mean
score; both divide scores and guide by `ScoreMatrix.scale` first, so that temperatures and margins
are in units of a cosine. A triplet beside them is not: on CHAN, whose scores are ten times a
cosine, the paper's weights then count about 8 times less beside it than on other models.
``units="score"`` takes scores as they come.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from counterfoil.core.config import parse_literal
from counterfoil.core.types import Needs, Role, ScoreMatrix, Scores
from counterfoil.losses.aoq import OFFLINE
from counterfoil.losses.base import Loss, Reduction, positive_scores

__all__ = [
    "HardNegativeRectificationLoss",
    "MarginDistillationLoss",
]


# of losses that read the teachers' scores of mined pairs too
_MINED = Needs(roles=OFFLINE, targets=True, pair_targets=OFFLINE)


@final
class GuidedScores(NamedTuple):
    """Scores and targets of A anchors of one direction with their C candidates."""

    student: Tensor  # (A, C) scores
    teacher: Tensor  # (A, C) targets
    negative: Tensor  # (A, C) bool, True for the negatives of an anchor
    student_positive: Tensor  # (A,) score of the anchor's positive
    teacher_positive: Tensor  # (A,) target of the anchor's positive

    def joined(self, student: Tensor, teacher: Tensor) -> GuidedScores:
        """Append (A, N) negatives, but for those of which a score is -inf."""
        none = student.isneginf() | teacher.isneginf()
        return self._replace(
            student=torch.cat([self.student, student.masked_fill(none, 0)], 1),
            teacher=torch.cat([self.teacher, teacher.masked_fill(none, 0)], 1),
            negative=torch.cat([self.negative, ~none], 1),
        )


@final
class GuidedDirections(NamedTuple):
    """Anchor images with their texts, and anchor texts with their images."""

    images: GuidedScores
    texts: GuidedScores


def expand_copies(matrix: ScoreMatrix) -> Tensor:
    """Return the guide in the shape of the scores, which may hold several copies of each item."""
    assert matrix.guide is not None, "Loss.__call__ checks that there is a guide"
    if matrix.guide.shape == matrix.scores.shape:
        return matrix.guide
    return matrix.guide.repeat_interleave(matrix.repeats, 0).repeat_interleave(matrix.repeats, 1)


def in_units(matrix: ScoreMatrix, units: Units) -> ScoreMatrix:
    """Return the score matrix with the scale for these units."""
    return replace(matrix, scale=1.0) if units == "score" else matrix


def guided_directions(matrix: ScoreMatrix, *, each_pair: bool) -> GuidedDirections:
    """Return both directions of a score matrix, in units of a cosine.

    Where a score or the guide is -inf, the pair is no negative. With `each_pair` there is one
    anchor for each true pair; else one for each image and each text, whose positive is left at 0
    because nothing reads it.
    """
    student, teacher = matrix.scores / matrix.scale, expand_copies(matrix) / matrix.scale
    unknown = teacher.isneginf() | student.isneginf()
    negative = ~(matrix.positive | unknown)
    student, teacher = student.masked_fill(unknown, 0), teacher.masked_fill(unknown, 0)
    if not each_pair:
        rows, columns = (student.new_zeros(n) for n in student.shape)
        return GuidedDirections(
            GuidedScores(student, teacher, negative, rows, rows),
            GuidedScores(student.T, teacher.T, negative.T, columns, columns),
        )
    image, text, score = positive_scores(matrix)
    positives = score / matrix.scale, teacher[image, text]
    return GuidedDirections(
        GuidedScores(student[image], teacher[image], negative[image], *positives),
        GuidedScores(student.T[text], teacher.T[text], negative.T[text], *positives),
    )


def hardest_candidates(side: GuidedScores) -> tuple[Tensor, Tensor]:
    """Return (A,) columns of the student's and of the teachers' hardest negative.

    Of equal scores the first.
    """
    student = side.student.detach().masked_fill(~side.negative, -torch.inf).argmax(1)
    return student, side.teacher.masked_fill(~side.negative, -torch.inf).argmax(1)


@torch.no_grad()
def guide_agreement(matrix: ScoreMatrix) -> dict[str, Tensor]:
    """Measure how far scores are from their guide; anchors without a negative are left out.

    "disagree" is the percentage of anchors whose hardest negative is another one for the teachers;
    "kl" the mean over anchors of KL(student || teachers), softmax over negatives; "outranked" the
    percentage of true pairs that the teachers score below some negative, counted once for each
    direction: many of them hint at false negatives.
    """
    sides = guided_directions(matrix, each_pair=True)
    counted = torch.cat([side.negative.any(1) for side in sides])
    apart, above, distance = [], [], []
    for side in sides:
        student, teacher = hardest_candidates(side)
        apart.append(student != teacher)
        above.append(
            side.teacher.masked_fill(~side.negative, -torch.inf).amax(1) > side.teacher_positive
        )
        distance.append(_divergence(side))
    return {
        "disagree": 100 * _mean(torch.cat(apart), counted),
        "kl": _mean(torch.cat(distance), counted),
        "outranked": 100 * _mean(torch.cat(above), counted),
    }


def log_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Return the log-softmax of each row over the columns of a mask, finite for an empty row."""
    # a row without any column is taken whole: softmax of nothing is NaN, and so is its gradient
    columns = mask | ~mask.any(1, keepdim=True)
    return logits.masked_fill(~columns, -torch.inf).log_softmax(1)


def divergence(p: Tensor, q: Tensor, mask: Tensor) -> Tensor:
    """Return (A,) Kullback-Leibler divergences of two `log_softmax` over the same mask."""
    # outside the mask p - q is -inf - -inf, NaN: masked before the product with exp(-inf) = 0
    return (p.exp() * (p - q).masked_fill(~mask, 0)).sum(1)


def _divergence(side: GuidedScores) -> Tensor:
    student, teacher = (
        log_softmax(side.student, side.negative),
        log_softmax(side.teacher, side.negative),
    )
    return divergence(student, teacher, side.negative)


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    return (values.float() * counted).sum() / counted.sum().clamp(min=1)


FormName = Literal["row_softmax", "flat_softmax", "bernoulli", "gaussian", "mse"]
Operand = Literal["margin", "similarity"]
Emphasis = Literal["auto", "hard", "easy"]
Direction = Literal["student_teacher", "teacher_student", "both"]


Candidates = Literal["batch", "offline"]
Units = Literal["cosine", "score"]
MINED_ROLES = Role.HARD_TEXT, Role.HARD_IMAGE  # of anchor images, and of anchor texts


@final
class MarginDistillationLoss(Loss):
    """Divergence of the student's distribution over negatives from that of its teachers.

    NDGL, Eq. 4 ("MR"). The paper prints ``KL(margin || margin of the teachers)`` and names neither
    the distribution nor the reduction; every reading has an option here. By default every anchor
    image has a softmax over the negative texts of the batch, of the margin by which its positive
    outscores each; every anchor text has one over images. The positive itself cancels out of that
    softmax, so the negatives' relative scores are matched: at tau 1 and with cosines this is nearly
    their mean squared error, up to a shift of each anchor's. Several texts of an image have
    identical terms, of which one counts. The paper weighs the loss 100 beside a triplet summed over
    the batch; the gradient falls with the square of tau, so at another tau multiply the weight by
    tau squared.

    Args:
        form: "row_softmax" of each anchor; "flat_softmax" over all anchors of a direction (one
            divergence, whatever the reduction); "bernoulli" or "gaussian" of every margin by
            itself, which pin the margin's absolute size; "mse" of the similarities.
        operand: "margin", or "similarity" for the paper's SR ablation, in which nothing is
            subtracted from a positive.
        tau: temperature, in units of a cosine; the deviation of a Gaussian.
        teacher_tau: that of the teachers' scores where it is another, as of a re-ranker's logits.
        emphasis: on which negatives a softmax of margins has its mass: "easy" is the equation to
            the letter, "hard" turns the sign. "auto" is easy at tau 1, where both are nearly
            alike, and hard elsewhere.
        direction: which distribution comes first, as in ``KL(student || teacher)``; "both" is the
            mean of the two (UniME-V2, https://arxiv.org/abs/2510.13515).
        include_positive: whether the positive is one of the candidates, with margin 0; then
            every true pair has a term of its own.
        over: "mean" or "sum" over an anchor's negatives, where form is none of the softmaxes.
        offline: whether mined pairs, with their guides, join the anchor's negatives of the batch;
            every anchor pair then has a term of its own. One that is in the batch too counts twice.
            Where the guide knows the pairs of lists alone, the candidates are these, see
            `listwise_settings`.
        units: "cosine" divides scores and guide by the score's scale; "score" leaves them as they
            are, the equation to the letter. They differ on CHAN only, whose scale is 10.
        reduction: "sum" or "mean" over the anchors of each direction, as the model's own loss.

    Raises:
        ValueError: an unknown option, or a temperature that is not above 0.

    >>> scores = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> guide = torch.tensor([[0.9, 0.5, 0.2], [0.5, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> round(100 * MarginDistillationLoss()(scores, guide=guide).item(), 3)
    4.262
    """

    needs = Needs(targets=True)

    def __init__(
        self,
        *,
        form: FormName = "row_softmax",
        operand: Operand = "margin",
        tau: float = 1.0,
        teacher_tau: float | None = None,
        emphasis: Emphasis = "auto",
        direction: Direction = "student_teacher",
        include_positive: bool = False,
        over: Reduction = "mean",
        offline: bool = False,
        units: Units = "cosine",
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        parse_literal(FormName, form, "a form")
        parse_literal(Operand, operand, "an operand")
        parse_literal(Emphasis, emphasis, "an emphasis")
        parse_literal(Direction, direction, "a direction")
        parse_literal(Reduction, over, "a reduction over negatives")
        self.units = parse_literal(Units, units, "units")
        self.teacher_tau = tau if teacher_tau is None else teacher_tau
        for name, value in (("tau", tau), ("teacher_tau", self.teacher_tau)):
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(
                    f"{name}={value} cannot be a temperature; use a number above 0, as in 1.0"
                )
        self.form, self.operand, self.direction, self.over = form, operand, direction, over
        self.tau, self.include_positive, self.offline = tau, include_positive, offline
        self.hard = emphasis == "hard" or (emphasis == "auto" and tau != 1.0)
        self.needs = _MINED if offline else type(self).needs

    def forward(self, scores: Scores) -> Tensor:
        matrix = in_units(self.matrix(scores), self.units)
        sides = guided_directions(matrix, each_pair=self.reads_positive or self.offline)
        if self.offline:
            sides = _with_mined(sides, scores, matrix)
        return _sum_of_directions([self.distances(side) for side in sides], self.reduction)

    @property
    def reads_positive(self) -> bool:
        """True if the score of an anchor's positive changes the loss.

        It does not in a softmax over an anchor's negatives, where it is a common shift.
        """
        if self.form == "mse" or (self.operand == "similarity" and not self.include_positive):
            return False
        return self.form != "row_softmax" or self.include_positive

    def distances(self, side: GuidedScores) -> Tensor:
        """Return (A,) distances, 0 for an anchor without a negative; (1,) of a flat softmax."""
        if self.form == "row_softmax":
            return self._kl(*self._sets(side))
        if self.form == "flat_softmax":
            return self._kl(*(tensor.reshape(1, -1) for tensor in self._sets(side)))
        return self._elementwise(side)

    def _sets(self, side: GuidedScores) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the student and of the teachers, and the mask of those that count."""
        student, teacher, mask = side.student, side.teacher, side.negative
        if self.include_positive:
            student = torch.cat([student, side.student_positive[:, None]], 1)
            teacher = torch.cat([teacher, side.teacher_positive[:, None]], 1)
            # a positive alone is no distribution to match
            mask = torch.cat([mask, mask.any(1, keepdim=True)], 1)
        return (
            self._logits(student, side.student_positive) / self.tau,
            self._logits(teacher, side.teacher_positive) / self.teacher_tau,
            mask,
        )

    def _logits(self, scores: Tensor, own: Tensor) -> Tensor:
        if self.operand == "similarity":
            return scores
        margin = own.unsqueeze(1) - scores
        return -margin if self.hard else margin

    def _kl(self, student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
        p, q = log_softmax(student, mask), log_softmax(teacher, mask)
        if self.direction == "both":
            return (divergence(p, q, mask) + divergence(q, p, mask)) / 2
        if self.direction == "teacher_student":
            p, q = q, p
        return divergence(p, q, mask)

    def _elementwise(self, side: GuidedScores) -> Tensor:
        """(A,) distances in which every pair of numbers is a distribution of its own."""
        x, y = side.student, side.teacher
        if self.form != "mse" and self.operand == "margin":
            x, y = side.student_positive.unsqueeze(1) - x, side.teacher_positive.unsqueeze(1) - y
        x, y = x / self.tau, y / self.teacher_tau
        distances = self._bernoulli(x, y) if self.form == "bernoulli" else (x - y).square() / 2
        total = distances.masked_fill(~side.negative, 0).sum(1)
        return total / side.negative.sum(1).clamp(min=1) if self.over == "mean" else total

    def _bernoulli(self, x: Tensor, y: Tensor) -> Tensor:
        if self.direction == "both":
            return (_bernoulli(x, y) + _bernoulli(y, x)) / 2
        return _bernoulli(y, x) if self.direction == "teacher_student" else _bernoulli(x, y)


def _bernoulli(x: Tensor, y: Tensor) -> Tensor:
    """Divergence of two Bernoulli distributions, given their logits."""
    # logsigmoid of both signs instead of log(p) and log(1 - p): exact where p is nearly 0 or 1
    p, q = x.sigmoid(), (-x).sigmoid()
    return p * (logsigmoid(x) - logsigmoid(y)) + q * (logsigmoid(-x) - logsigmoid(-y))


def distillation_settings(
    *, temperature: float = 0.01, reduction: Reduction = "mean"
) -> dict[str, Any]:
    """Arguments of the `MarginDistillationLoss` that keeps a model near its original.

    The divergence KL(original || model) of the softmaxes of every row and every column of the
    score matrix, at the temperature of CLIP's own training: the two contrastive terms of ZSCL
    (Zheng et al., ICCV 2023, https://arxiv.org/abs/2303.06628). Departs from the authors' code in:
    the pairs are those of the batch, not of a reference data set; other captions of an image are
    left out of a row; weights are not averaged.

    >>> scores = torch.tensor([[0.30, 0.20], [0.10, 0.25]])
    >>> loss = MarginDistillationLoss(**distillation_settings())
    >>> loss(scores, guide=scores).item()
    0.0
    """
    return {
        "operand": "similarity",
        "include_positive": True,
        "tau": temperature,
        "direction": "teacher_student",
        "reduction": reduction,
    }


def listwise_settings(
    *,
    temperature: float = 0.02,
    teacher_temperature: float = 1.0,
    direction: Direction = "teacher_student",
    reduction: Reduction = "mean",
) -> dict[str, Any]:
    """Arguments of the `MarginDistillationLoss` by which a re-ranker teaches over mined lists.

    The divergence KL(re-ranker || model) of the softmaxes over a positive and its k listed
    candidates, of every anchor image and every anchor text, is up to a constant the cross-entropy
    of Qwen3-VL-Embedding, Eq. 3, where queries alone have a term and the re-ranker's logits stay
    as they are. UniME-V2 (https://arxiv.org/abs/2510.13515) has ``direction="both"``, a
    judge's probabilities and 0.02 for either temperature. The guide is that of
    `counterfoil.training.mined.MinedTeacher`, which knows no other pair of the batch.

    >>> loss = MarginDistillationLoss(**listwise_settings(temperature=0.1))
    >>> scores, guide = torch.eye(2), torch.eye(2).log() + 5.0  # 5 for the true pairs alone
    >>> mined = {"hard_text": torch.full((2, 1), 0.9), "hard_text_guide": torch.full((2, 1), 4.0)}
    >>> mined |= {"hard_image": torch.full((2, 1), 0.2), "hard_image_guide": torch.zeros(2, 1)}
    >>> round(loss(scores, guide=guide, **mined).item(), 3)
    0.014
    """
    return {
        "operand": "similarity",
        "include_positive": True,
        "offline": True,
        "tau": temperature,
        "teacher_tau": teacher_temperature,
        "direction": direction,
        "reduction": reduction,
    }


@final
class HardNegativeRectificationLoss(Loss):
    """Hinge that lifts the teachers' hardest negative above the student's own.

    NDGL, Eq. 5 ("HNR"): ``gamma - S(anchor, teachers' hardest) + S(anchor, student's hardest)``,
    and 0 where both are the same item. With candidates of the batch the student's is the highest of
    all by definition: the hinge is always open where the two differ, gamma adds a constant and
    changes no gradient, and what remains is a push of constant strength, down for the student's
    choice and up for the teachers'. Keep its weight (0.5 in the paper) below that of the triplet,
    which it works against. One term for each image and each text.

    Args:
        gamma: how far the teachers' choice should be above the student's.
        candidates: where the teachers choose: in the "batch", or among the mined pairs of each
            anchor ("offline"), where gamma matters: the hinge then closes once the teachers'
            negative scores gamma above all of the batch.
        units: see `MarginDistillationLoss`; gamma is in the same.
        reduction: "sum" or "mean" over the anchors of each direction, as the model's own loss.

    Raises:
        ValueError: unknown candidates.

    >>> scores = torch.tensor([[0.9, 0.8, 0.2], [0.8, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> guide = torch.tensor([[0.9, 0.5, 0.6], [0.5, 0.7, 0.6], [0.1, 0.2, 0.9]])
    >>> round(HardNegativeRectificationLoss()(scores, guide=guide).item(), 3)
    1.23
    """

    needs = Needs(targets=True)

    def __init__(
        self,
        *,
        gamma: float = 0.01,
        candidates: Candidates = "batch",
        units: Units = "cosine",
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__(reduction=reduction)
        parse_literal(Candidates, candidates, "where candidates come from")
        self.units = parse_literal(Units, units, "units")
        self.gamma, self.candidates = gamma, candidates
        self.needs = _MINED if candidates == "offline" else type(self).needs

    def forward(self, scores: Scores) -> Tensor:
        matrix = in_units(self.matrix(scores), self.units)
        sides = guided_directions(matrix, each_pair=self.candidates == "offline")
        if self.candidates == "batch":
            return _sum_of_directions([self.rectified(side) for side in sides], self.reduction)
        hinges = [
            self._offline(side, scores.pairs[role] / matrix.scale, scores.guides[role])
            for side, role in zip(sides, MINED_ROLES, strict=True)
        ]
        return _sum_of_directions(hinges, self.reduction)

    def rectified(self, side: GuidedScores) -> Tensor:
        """Return (A,) hinges where student and teachers choose among the same negatives."""
        student, teacher = hardest_candidates(side)
        student_score, teacher_score = side.student.gather(
            1, torch.stack([student, teacher], 1)
        ).unbind(1)
        hinge = (self.gamma - teacher_score + student_score).clamp(min=0)
        return hinge.masked_fill((student == teacher) | ~side.negative.any(1), 0)

    def _offline(self, side: GuidedScores, mined: Tensor, guide: Tensor) -> Tensor:
        """(A,) hinges where the teachers choose among (A, N) mined pairs."""
        none = mined.isneginf()
        choice = guide.masked_fill(none, -torch.inf).argmax(1, keepdim=True)
        teacher_score = mined.masked_fill(none, torch.inf).gather(1, choice).squeeze(1)
        student_score = side.student.masked_fill(~side.negative, -torch.inf).amax(1)
        return (self.gamma - teacher_score + student_score).clamp(min=0)


def _with_mined(sides: GuidedDirections, scores: Scores, matrix: ScoreMatrix) -> GuidedDirections:
    """Append every anchor's mined pairs to its negatives."""
    scale = matrix.scale
    joined = [
        side.joined(scores.pairs[role] / scale, scores.guides[role] / scale)
        for side, role in zip(sides, MINED_ROLES, strict=True)
    ]
    return GuidedDirections(*joined)


def _sum_of_directions(parts: list[Tensor], reduction: Reduction) -> Tensor:
    """The sum of both directions, each reduced over its own anchors."""
    return torch.stack([p.mean() if reduction == "mean" else p.sum() for p in parts]).sum()


# the names in the papers
