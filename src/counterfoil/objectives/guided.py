"""A guided block of scores, one direction at a time, and how far student and teachers agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from counterfoil.objectives.block import positives
from counterfoil.records import Grid


@final
class Side(NamedTuple):
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

    def joined(self, student: Tensor, teacher: Tensor) -> Side:
        """With (A, N) more negatives of every anchor."""
        every = torch.ones_like(student, dtype=torch.bool)
        return self._replace(
            student=torch.cat([self.student, student], 1),
            teacher=torch.cat([self.teacher, teacher], 1),
            wrong=torch.cat([self.wrong, every], 1),
        )


@final
class Sides(NamedTuple):
    """Anchor images with their texts, and anchor texts with their images."""

    images: Side
    texts: Side


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


def expanded(grid: Grid) -> Tensor:
    """(I, T) the guide of a grid, with as many copies of each item as its scores have."""
    assert grid.guide is not None, "the step saw to it"
    if grid.guide.shape == grid.scores.shape:
        return grid.guide
    return grid.guide.repeat_interleave(grid.copies, 0).repeat_interleave(grid.copies, 1)


def sides_of(grid: Grid, *, each_pair: bool) -> Sides:
    """Both directions of a block, in units of a cosine.

    Args:
        grid: the block; where its guide is -inf, the pair is no negative.
        each_pair: one anchor for each true pair; else one for each image and each text, without
            a positive of its own.
    """
    student, teacher = grid.scores / grid.scale, expanded(grid) / grid.scale
    unknown = teacher.isneginf()
    teacher, wrong = teacher.masked_fill(unknown, 0), ~(grid.positive | unknown)
    if not each_pair:
        rows, columns = (student.new_zeros(n) for n in student.shape)
        return Sides(
            Side(student, teacher, wrong, rows, rows),
            Side(student.T, teacher.T, wrong.T, columns, columns),
        )
    image, text, score = positives(grid)
    own, taught = score / grid.scale, teacher[image, text]
    return Sides(
        Side(student[image], teacher[image], wrong[image], own, taught),
        Side(student.T[text], teacher.T[text], wrong.T[text], own, taught),
    )


def choices(side: Side) -> tuple[Tensor, Tensor]:
    """(A,) places of the student's and of the teachers' hardest negative; the first of equals."""
    own = side.student.detach().masked_fill(~side.wrong, -torch.inf).argmax(1)
    return own, side.teacher.masked_fill(~side.wrong, -torch.inf).argmax(1)


@torch.no_grad()
def agreement(grid: Grid) -> Agreement:
    """How far a guided block is from its guide; anchors without a negative are left out."""
    sides = sides_of(grid, each_pair=True)
    counted = torch.cat([side.wrong.any(1) for side in sides])
    apart, above, distance = [], [], []
    for side in sides:
        own, taught = choices(side)
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


def _divergence(side: Side) -> Tensor:
    student, teacher = log_softmax(side.student, side.wrong), log_softmax(side.teacher, side.wrong)
    return divergence(student, teacher, side.wrong)


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    return (values.float() * counted).sum() / counted.sum().clamp(min=1)
