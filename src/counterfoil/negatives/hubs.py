"""Hubs: items that are on far more lists of negatives than others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, slots=True)
class Hubs:
    """How often each of C candidates is among the first k of a list.

    Attributes:
        first: k.
        skewness: third standardised moment of these counts (Radovanović et al., "Hubs in space",
            JMLR 2010); 0 where all are listed as often, and about 1 / sqrt(mean) by chance.
        never: percent of the candidates that are on no list.
        crowd: percent of all places that the most listed hundredth of the candidates takes.
        largest: rows of the most listed candidates and how often they are, most first.
    """

    first: int
    skewness: float
    never: float
    crowd: float
    largest: tuple[tuple[int, int], ...]


def hubs(lists: Tensor, candidates: int, *, first: int = 10, largest: int = 5) -> Hubs:
    """Count who is listed.

    Args:
        lists: (Q, h) rows, hardest first, -1 where short.
        candidates: C, how many rows there are.
        first: k; all of a shorter list.
        largest: how many hubs to name.

    >>> hubs(torch.tensor([[0, 1], [0, 2], [0, -1]]), 4, largest=1)
    Hubs(first=2, skewness=0.652..., never=25.0, crowd=60.0, largest=((0, 3),))
    """
    first = min(first, lists.shape[1])
    rows = lists[:, :first].flatten()
    counts = torch.bincount(rows[rows >= 0].long(), minlength=candidates)
    number = counts.double()
    spread = float(number.std(correction=0))
    skewness = float(((number - number.mean()) ** 3).mean()) / spread**3 if spread else 0.0
    order = counts.argsort(descending=True, stable=True)
    most = order[: max(1, candidates // 100)]
    return Hubs(
        first=first,
        skewness=skewness,
        never=100 * float((counts == 0).double().mean()),
        crowd=100 * int(counts[most].sum()) / max(1, int(counts.sum())),
        largest=tuple((int(row), int(counts[row])) for row in order[:largest]),
    )


def overlap(lists: Tensor, groups: Iterable[Tensor], *, first: int = 10) -> float | None:
    """How alike the lists of related queries are: mean Jaccard index of their first k rows.

    Args:
        lists: (Q, h) rows, -1 where short.
        groups: rows of related queries, as the captions of one image.
        first: k.

    Returns:
        The mean over all pairs within a group, in percent; None where there is no pair.

    >>> overlap(torch.tensor([[1, 2], [2, 3], [4, 5]]), [torch.tensor([0, 1]), torch.tensor([2])])
    33.3...
    """
    shares = []
    for group in groups:
        sets = [{row for row in line if row >= 0} for line in lists[group, :first].tolist()]
        shares += [len(a & b) / max(1, len(a | b)) for a, b in combinations(sets, 2)]
    return 100 * sum(shares) / len(shares) if shares else None
