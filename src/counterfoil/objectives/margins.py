"""NDGL's losses: the student's scores of all negatives, as its teachers see them.

Sources: the paper (Expanding the Scope of Negatives, AAAI 2025), Eq. 4 and 5. Its authors published
no code. Both terms judge the inference grid, whose `Grid.guide` holds the teachers' mean score.
"""

from __future__ import annotations

import math
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor

from counterfoil.objectives.guided import Side, Sides, choices, sides_of
from counterfoil.objectives.margin_forms import (
    Direction,
    Emphasis,
    Form,
    FormName,
    Operand,
    Over,
)
from counterfoil.objectives.offline import OFFLINE
from counterfoil.objectives.term import Reduction, Term
from counterfoil.records import Grid, Role, Scores
from counterfoil.spec import unknown

Candidates = Literal["batch", "offline"]
DRAWN = Role.HARD_TEXT, Role.HARD_IMAGE  # for the two sides


@final
class MarginDistribution(Term):
    """Divergence of the student's distribution over negatives from that of its teachers (Eq. 4).

    Every anchor image has a softmax over the negative texts of the batch, told by id, of how far
    its positive stands above each; every anchor text has one over images. The positive itself
    cancels out of that softmax, so what is matched are the negatives' relative scores: at tau 1 and
    with cosines nearly their mean squared error, up to a shift of each anchor's. Several texts of
    an image have identical terms, of which one counts. The paper weighs the term 100 beside a
    triplet summed over the batch; the gradient falls with the square of tau, so at another tau the
    weight wants to be multiplied by tau squared.

    Scores are divided by `Grid.scale` first: tau is in units of a cosine.

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
        reduction: over the anchors of a direction; the host's.

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
        self.form = Form(
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
        sides = sides_of(grid, each_pair=self.form.reads_positive or self.offline)
        if self.offline:
            sides = _with_drawn(sides, scores, grid)
        return _total([self.form.distances(side) for side in sides], self.reduction)


@final
class HardestRectified(Term):
    """Lifts the teachers' hardest negative above the student's own (Eq. 5).

    The hinge is ``gamma - S(anchor, teachers' hardest) + S(anchor, student's hardest)``, and 0
    where both are the same one, told by its place. With candidates of the batch the student's is
    the highest of all by definition: the hinge is always open where the two differ, gamma adds a
    constant and changes no gradient, and what remains is a push of constant strength, down for the
    student's choice and up for the teachers'. Keep its weight (0.5 in the paper) below that of the
    triplet, which it works against. One term for each image and each text.

    Args:
        gamma: in units of a cosine: scores are divided by `Grid.scale`.
        candidates: where the teachers' hardest is looked for: in the "batch", or among the drawn
            pairs of each anchor ("offline"), where gamma matters: the hinge then closes once the
            teachers' negative stands gamma above all of the batch.
        reduction: over the anchors of a direction; the host's.

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
        sides = sides_of(grid, each_pair=self.candidates == "offline")
        if self.candidates == "batch":
            return _total([self.rectified(side) for side in sides], self.reduction)
        _check(sides, grid)
        hinges = [
            self._outside(side, scores.pairs[role] / grid.scale, scores.guides[role])
            for side, role in zip(sides, DRAWN, strict=True)
        ]
        return _total(hinges, self.reduction)

    def rectified(self, side: Side) -> Tensor:
        """(A,) where both are looked for among the same negatives."""
        own, taught = choices(side)
        at = torch.stack([own, taught], 1)
        highest, wanted = side.student.gather(1, at).unbind(1)
        hinge = (self.gamma - wanted + highest).clamp(min=0)
        return hinge.masked_fill((own == taught) | ~side.wrong.any(1), 0)

    def _outside(self, side: Side, drawn: Tensor, guide: Tensor) -> Tensor:
        """(A,) where the teachers choose among (A, N) drawn pairs."""
        wanted = drawn.gather(1, guide.argmax(1, keepdim=True)).squeeze(1)
        highest = side.student.masked_fill(~side.wrong, -torch.inf).amax(1)
        return (self.gamma - wanted + highest).clamp(min=0)


def _with_drawn(sides: Sides, scores: Scores, grid: Grid) -> Sides:
    """With every anchor's drawn pairs among its negatives."""
    _check(sides, grid)
    scale = grid.scale
    drawn = [
        side.joined(scores.pairs[role] / scale, scores.guides[role] / scale)
        for side, role in zip(sides, DRAWN, strict=True)
    ]
    return Sides(*drawn)


def _check(sides: Sides, grid: Grid) -> None:
    assert len(sides.texts.own) == len(grid.anchor), "every text of the block is one anchor's"


def _total(parts: list[Tensor], reduction: Reduction) -> Tensor:
    """Both directions, each over its own anchors."""
    return torch.stack([p.mean() if reduction == "mean" else p.sum() for p in parts]).sum()


def _known(value: str, options: Any, what: str) -> None:
    if value not in get_args(options):
        raise ValueError(unknown(value, list(get_args(options)), what))
