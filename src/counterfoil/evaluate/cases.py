"""Which written captions show best how two models differ (TAGS-DC, Figure 4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, slots=True)
class Picked:
    """Rows of written captions, no two of one picture.

    Attributes:
        second: where the second model is most on the side of the caption that was changed, compared
            with the first; the greatest difference first.
        first: where the first is, likewise.
        random: drawn from the rest.
    """

    second: tuple[int, ...]
    first: tuple[int, ...]
    random: tuple[int, ...]


def differences(first: Tensor, second: Tensor) -> Tensor:
    """(N,) double, second model's margins less the first's, each in units of their own spread.

    Args:
        first: (N,) score of the caption less that of what was written of it, by the first model.
        second: (N,) the same by the second.
    """
    return _scaled(second) - _scaled(first)


def picked(gaps: Tensor, images: Tensor, count: int, *, seed: int = 0) -> Picked:
    """The largest differences both ways, and some at random.

    Args:
        gaps: (N,) see `differences`.
        images: (N,) long, which picture each is about.
        count: of each kind, at most.
        seed: of the draw.
    """
    used: set[int] = set()
    down = gaps.argsort(descending=True, stable=True).tolist()
    up = gaps.argsort(stable=True).tolist()
    drawn = torch.randperm(len(gaps), generator=torch.Generator().manual_seed(seed)).tolist()
    return Picked(
        _first((row for row in down if gaps[row] > 0), images, count, used),
        _first((row for row in up if gaps[row] < 0), images, count, used),
        _first(drawn, images, count, used),
    )


def _scaled(margins: Tensor) -> Tensor:
    margins = margins.double()
    spread = margins.std(correction=0)
    return margins / spread if spread > 0 else margins


def _first(rows: Iterable[int], images: Tensor, count: int, used: set[int]) -> tuple[int, ...]:
    """The first rows about pictures that were not used."""
    found: list[int] = []
    for row in rows:
        image = int(images[row])
        if len(found) < count and image not in used:
            used.add(image)
            found.append(row)
    return tuple(found)
