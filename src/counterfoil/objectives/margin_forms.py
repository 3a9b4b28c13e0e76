"""How far a student's scores of an anchor's candidates are from its teachers': NDGL's Eq. 4, read.

The paper prints ``KL(margin || margin of the teachers)`` and says neither of which distribution nor
of which reduction, so every reading is here by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from counterfoil.objectives.guided import Side, divergence, log_softmax

FormName = Literal["row_softmax", "flat_softmax", "bernoulli", "gaussian", "mse"]
Operand = Literal["margin", "similarity"]
Emphasis = Literal["auto", "hard", "easy"]
Direction = Literal["student_teacher", "teacher_student"]
Over = Literal["mean", "sum"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One reading of the equation; the fields are arguments of `MarginDistribution`."""

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

    def distances(self, side: Side) -> Tensor:
        """(A,) of each anchor, 0 where it has no negative; (1,) where one softmax holds all."""
        if self.form == "row_softmax":
            return self._divergence(*self._sets(side))
        if self.form == "flat_softmax":
            student, teacher, there = self._sets(side)
            return self._divergence(*(t.reshape(1, -1) for t in (student, teacher, there)))
        return self._elementwise(side)

    def _sets(self, side: Side) -> tuple[Tensor, Tensor, Tensor]:
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

    def _elementwise(self, side: Side) -> Tensor:
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
