"""A side of an index as it will be, written beside what counts now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from counterfoil.engine.index_finder import Finder, Vectors
from counterfoil.engine.index_parts import Entry, write_part
from counterfoil.engine.index_shelf import Shelf
from counterfoil.engine.index_state import ShelfState

_PARTS = 16  # more are joined to one
_FREE = 64  # rows that may lie dead however few live


@final
@dataclass(frozen=True, eq=False)
class New:
    """Items to keep.

    Attributes:
        entries: what they are.
        vectors: (N, D) float.
    """

    entries: Sequence[Entry]
    vectors: Tensor


@final
@dataclass(frozen=True, eq=False)
class Draft:
    """What one side will be.

    Attributes:
        state: that counts once it is written.
        gone: (n,) long numbers that will be dead.
    """

    state: ShelfState
    gone: Tensor


@final
@dataclass(frozen=True, slots=True)
class Desk:
    """Where a draft is written.

    Attributes:
        folder: of the index.
        name: of the files, not used before.
        width: D.
        half: whether vectors are kept in float16.
    """

    folder: Path
    name: str
    width: int
    half: bool


def draft(
    desk: Desk, shelf: Shelf, state: ShelfState, new: New | None, rows: Sequence[int]
) -> Draft:
    """Write what a side lacks of what it will be.

    Args:
        desk: where.
        shelf: the side as it is.
        state: of it.
        new: what comes.
        rows: what goes.
    """
    gone = shelf.numbers[torch.tensor(list(rows), dtype=torch.long)]
    if new is not None and not len(new.entries):
        new = None
    if new is None and not len(gone):
        return Draft(state, gone)
    more = None if new is None else _numbered(new, state.next)
    if new is not None and more is not None:
        state = _added(desk, state, new, more)
    dead = tuple(sorted({*state.dead, *gone.tolist()}))
    state = _joined(desk, state.model_copy(update={"dead": dead}))
    if shelf.finder is not None:
        found = _found(desk, shelf.finder, state, more)
        state = state.model_copy(update={"finder": found})
    return Draft(state, gone)


def _numbered(new: New, first: int) -> Vectors:
    vectors = new.vectors.detach().cpu().float()
    assert len(vectors) == len(new.entries)
    if not bool(vectors.isfinite().all()):
        row = int((~vectors.isfinite().all(1)).nonzero()[0])
        raise ValueError(
            f"the vector of {new.entries[row].id!r} is not a number; look for NaN in the data"
        )
    return torch.arange(first, first + len(vectors)), vectors


def _added(desk: Desk, state: ShelfState, new: New, more: Vectors) -> ShelfState:
    numbers, vectors = more
    if vectors.dim() != 2 or vectors.shape[1] != desk.width:
        raise ValueError(
            f"vectors of shape {tuple(vectors.shape)} were given to an index of width {desk.width}"
        )
    large = vectors.abs().amax(1) > torch.finfo(torch.half).max
    if desk.half and bool(large.any()):
        raise ValueError(
            f"the vector of {new.entries[int(large.nonzero()[0])].id!r} has numbers that 16 bits "
            "do not hold; make the index without --half"
        )
    _written(desk, desk.name, numbers, vectors, new.entries)
    parts = (*state.parts, desk.name)
    return state.model_copy(update={"parts": parts, "next": int(numbers[-1]) + 1})


def _joined(desk: Desk, state: ShelfState) -> ShelfState:
    """The same in one part, where there are many parts or most of what they hold is dead."""
    shelf = Shelf(desk.folder, state, desk.width)
    dead = len(shelf.numbers) - len(shelf)
    if len(state.parts) <= _PARTS and dead <= max(_FREE, len(shelf)):
        return state
    if not len(shelf):
        return state.model_copy(update={"parts": (), "dead": ()})
    rows = shelf.alive.nonzero().squeeze(1)
    entries, name = [shelf.entry(row) for row in rows.tolist()], f"{desk.name}-joined"
    _written(desk, name, shelf.numbers[rows], shelf.vectors(rows), entries)
    return state.model_copy(update={"parts": (name,), "dead": ()})


def _found(desk: Desk, finder: Finder, state: ShelfState, more: Vectors | None) -> str:
    shelf = Shelf(desk.folder, state, desk.width)

    def living() -> Vectors:
        rows = shelf.alive.nonzero().squeeze(1)
        return shelf.numbers[rows], shelf.vectors(rows)

    return finder.update(len(shelf), living, more, desk.name)


def _written(
    desk: Desk, name: str, numbers: Tensor, vectors: Tensor, entries: Sequence[Entry]
) -> None:
    kind = np.float16 if desk.half else np.float32
    write_part(desk.folder, name, numbers.numpy(), vectors.numpy().astype(kind), entries)
