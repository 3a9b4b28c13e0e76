"""What counts as right in a set of foils, item by item. Ties are wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor

Ties: TypeAlias = Literal["wrong", "aro"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """What each item gains of what it could.

    Attributes:
        name: in tables.
        gained: (N,) double.
        possible: (N,) double.
        chance: (N,) double, gained on average by guessing.
    """

    name: str
    gained: Tensor
    possible: Tensor
    chance: Tensor


@final
@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Captions one by one.

    Attributes:
        item: (M,) long, which item each belongs to.
        scores: (M,) double.
        true: (M,) bool.
    """

    item: Tensor
    scores: Tensor
    true: Tensor


def chosen(scores: Tensor, *, ties_right: bool = False, name: str = "accuracy") -> Measure:
    """Whether the caption in column 0 scores above all others.

    Args:
        scores: (N, K) of each caption with the picture; -inf where there is none.
        ties_right: a tie with the best of the others counts.
        name: of the measure.
    """
    best = scores[:, 1:].amax(1)
    right = scores[:, 0] >= best if ties_right else scores[:, 0] > best
    options = (scores > -torch.inf).sum(1).double()
    return Measure(name, right.double(), torch.ones_like(options), 1 / options)


def pairwise(scores: Tensor, *, ties_right: bool = False) -> Measure:
    """How many of its foils the caption in column 0 scores above; arguments as in `chosen`."""
    there = scores[:, 1:] > -torch.inf
    first = scores[:, :1]
    above = (first >= scores[:, 1:]) if ties_right else (first > scores[:, 1:])
    foils = there.sum(1).double()
    return Measure("pairwise", (above & there).sum(1).double(), foils, foils / 2)


def crossed(scores: Tensor) -> tuple[Measure, Measure, Measure]:
    """Winoground's text, image and group scores (Thrush et al., CVPR 2022, section 3.2).

    Text: each picture prefers its caption. Image: each caption prefers its picture. Group: both.

    Args:
        scores: (N, 2, 2) of each picture with each caption; the diagonal is true.
    """
    own = scores.diagonal(dim1=1, dim2=2)
    text = (own > scores.flip(2).diagonal(dim1=1, dim2=2)).all(1)
    image = (own > scores.flip(1).diagonal(dim1=1, dim2=2)).all(1)
    ones = torch.ones(len(scores), dtype=torch.double)
    return (
        Measure("text", text.double(), ones, ones / 4),
        Measure("image", image.double(), ones, ones / 4),
        Measure("group", (text & image).double(), ones, ones / 6),
    )


def by_threshold(judged: Judged, half: Tensor, items: int) -> Measure | None:
    """Whether captions are judged rightly, true above a threshold.

    The threshold of one half of the items is the one that is right most often in the other half;
    of several the lowest.

    Args:
        judged: the captions.
        half: (N,) bool, which half each item is in.
        items: N.

    Returns:
        None where a half is empty.
    """
    side = half[judged.item]
    if bool(side.all()) or not bool(side.any()):
        return None
    right = torch.zeros(len(side), dtype=torch.double)
    for mine in (side, ~side):
        level = threshold(judged.scores[~mine], judged.true[~mine])
        right[mine] = ((judged.scores[mine] > level) == judged.true[mine]).double()
    empty = torch.zeros(items, dtype=torch.double)
    possible = empty.index_add(0, judged.item, torch.ones_like(right))
    return Measure("by threshold", empty.index_add(0, judged.item, right), possible, possible / 2)


def threshold(scores: Tensor, true: Tensor) -> float:
    """The level above which "true" is right most often; of several the lowest.

    Args:
        scores: (M,) double.
        true: (M,) bool.
    """
    values, place = scores.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    many = torch.zeros(len(values), dtype=torch.long)
    false_upto = many.index_add(0, place, (~true).long()).cumsum(0)
    true_upto = many.index_add(0, place, true.long()).cumsum(0)
    right = torch.cat([true.sum().view(1), false_upto + (true.sum() - true_upto)])
    best = int(right.argmax())
    if best == 0:
        return -torch.inf
    after = values[best] if best < len(values) else values[best - 1] + 1
    return float((values[best - 1] + after) / 2)


def area(scores: Tensor, true: Tensor, weights: Tensor) -> Tensor:
    """(R,) area under the ROC curve: share of true and false captions in order, a tie is wrong.

    Args:
        scores: (M,) double.
        true: (M,) bool.
        weights: (R, M) double, how often each caption counts.
    """
    order = scores.argsort(stable=True)
    ranked, true, weights = scores[order], true[order], weights[:, order]
    false = (weights * ~true).cumsum(1)
    below = torch.searchsorted(ranked, ranked, right=False)  # captions that score less
    lower = torch.cat([torch.zeros(len(weights), 1, dtype=torch.double), false], 1)[:, below]
    positive = weights * true
    return (positive * lower).sum(1) / (positive.sum(1) * false[:, -1])
