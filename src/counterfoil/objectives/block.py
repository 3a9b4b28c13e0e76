"""What is true and what is wrong in a block of scores: told by its mask, never by place."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor

from counterfoil.records import Grid


@final
class Positives(NamedTuple):
    """All P true pairs of a grid, text after text, and their scores.

    Where every text has one image, as in a batch of captions, these are the anchor pairs in order.
    """

    image: Tensor
    text: Tensor
    score: Tensor


@final
class Hardest(NamedTuple):
    """(P,) highest score of a wrong text and of a wrong image; -inf where there is none."""

    text: Tensor
    image: Tensor


def hinge(negative: Tensor, positive: Tensor, margin: float) -> Tensor:
    """How far a negative is from staying `margin` below its positive, at least 0."""
    return (margin + negative - positive).clamp(min=0)


def positives(grid: Grid) -> Positives:
    """The true pairs of a grid."""
    text, image = grid.positive.T.nonzero(as_tuple=True)
    return Positives(image, text, grid.scores[image, text])


def negatives(grid: Grid) -> Tensor:
    """(I, T) scores, -inf where the pair is true."""
    return grid.scores.masked_fill(grid.positive, -torch.inf)


def hardest(grid: Grid, true: Positives) -> Hardest:
    """The online hard negatives of each true pair; equal ones share the gradient."""
    wrong = negatives(grid)
    return Hardest(wrong.amax(1)[true.image], wrong.amax(0)[true.text])
