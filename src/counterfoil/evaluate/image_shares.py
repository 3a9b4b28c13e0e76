"""Shares and means over items of which several belong to one image, with intervals.

Images are what is drawn anew, each with all its items, as in `counterfoil.evaluate.intervals`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.evaluate.intervals import CELLS, Interval

RESAMPLES = 1000


@final
@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """What each of N items gains of what it could, in one column or in several.

    Attributes:
        gained: (N,) or (N, C) double.
        possible: the same shape; all ones for a mean over items.
    """

    gained: Tensor
    possible: Tensor

    @classmethod
    def where(cls, right: Tensor, among: Tensor | None = None) -> Counted:
        """Items that are right, of those that count.

        Args:
            right: (N,) bool.
            among: (N,) bool; None for all.
        """
        counted = torch.ones_like(right) if among is None else among
        return cls((right & counted).double(), counted.double())

    @classmethod
    def mean(cls, values: Tensor) -> Counted:
        """(N,) values, each once."""
        return cls(values.double(), torch.ones_like(values, dtype=torch.double))


@final
@dataclass(frozen=True, slots=True)
class Share:
    """What was gained of what was possible, and its percentile bootstrap interval of 95 %.

    Attributes:
        value: the mean over the columns; NaN where nothing was possible.
        interval: of the value.
        count: what was possible, over all columns.
    """

    value: float
    interval: Interval
    count: int

    def plain(self) -> dict[str, Any]:
        """JSON-ready form; None in place of what is not a number."""
        if not self.count:
            return {"value": None, "interval": None, "count": 0}
        return asdict(self)


def shares(
    counted: Sequence[Counted],
    images: Tensor,
    *,
    scale: float = 1.0,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> tuple[Share, ...]:
    """Share of each quantity, all under the same draws of images.

    Args:
        counted: quantities of the same N items.
        images: (N,) long, the image of each item.
        scale: 100 for percent.
        seed: of the draws.
        resamples: how many times to draw.
    """
    there, rows = images.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    sums = [_by_image(one, rows, len(there)) for one in counted]
    once = torch.ones(1, len(there), dtype=torch.double)
    spread: list[list[Tensor]] = [[] for _ in counted]
    for counts in _draws(len(there), resamples, seed):
        for found, (gained, possible) in zip(spread, sums, strict=True):
            found.append(_share(counts, gained, possible))
    return tuple(
        Share(
            scale * _share(once, gained, possible).item(),
            _percentiles(scale * torch.cat(found)),
            int(possible.sum()),
        )
        for (gained, possible), found in zip(sums, spread, strict=True)
    )


def _by_image(one: Counted, rows: Tensor, images: int) -> tuple[Tensor, Tensor]:
    """(I, C) what the items of each image gain, and could gain."""
    empty = torch.zeros(images, 1 if one.gained.dim() == 1 else one.gained.shape[1]).double()
    gained, possible = (
        empty.index_add(0, rows, part.double().view(len(rows), empty.shape[1]))
        for part in (one.gained, one.possible)
    )
    return gained, possible


def _draws(images: int, resamples: int, seed: int) -> Iterator[Tensor]:
    """(R, I) how often each image is drawn, some resamples at a time."""
    rng = torch.Generator().manual_seed(seed)
    at_once = max(1, CELLS // max(1, images))
    for start in range(0, resamples, at_once):
        counts = torch.zeros(min(at_once, resamples - start), images, dtype=torch.double)
        if images:
            rows = torch.randint(images, counts.shape, generator=rng)
            counts.scatter_add_(1, rows, torch.ones_like(rows, dtype=torch.double))
        yield counts


def _share(counts: Tensor, gained: Tensor, possible: Tensor) -> Tensor:
    """(R,) mean over the columns of which something was drawn."""
    return ((counts @ gained) / (counts @ possible)).nanmean(1)


def _percentiles(spread: Tensor) -> Interval:
    edges = torch.tensor([0.025, 0.975], dtype=torch.double)
    low, high = spread.nanquantile(edges).tolist()
    return Interval(low, high)
