"""One side of an index, the images or the texts: vectors compared exactly, and what they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from counterfoil.engine.index_finder import Finder
from counterfoil.engine.index_parts import Entry, Part
from counterfoil.engine.index_state import ShelfState
from counterfoil.engine.select import NOTHING, best, descending, rank_keys, rows_of, scores_of

_QUERIES = 16  # every product has this shape, so that equal vectors score equally wherever they lie
_ROWS = 4096
_SPARE = 10  # candidates of a finder for each that is wanted
_LEAST = 64  # candidates


@final
class Shelf:
    """Vectors of one side, read from its parts.

    A *row* is a place on the shelf. Rows are in the order of numbers, and stay as they are until
    the index is written to.

    Args:
        folder: of the index.
        state: what counts.
        width: D.
        finder: proposes candidates; None for comparing with everything.

    Raises:
        ValueError: a file is missing or damaged.

    Attributes:
        numbers: (R,) long, ascending.
        alive: (R,) bool, False where a row was deleted.
    """

    def __init__(
        self, folder: Path, state: ShelfState, width: int, finder: Finder | None = None
    ) -> None:
        self.finder, self._width = finder, width
        self._parts = [Part(folder, name, width) for name in state.parts]
        self._starts = np.cumsum([0, *(len(part) for part in self._parts)])
        joined = np.concatenate([np.empty(0, np.int64), *(part.numbers for part in self._parts)])
        self.numbers = torch.from_numpy(joined)
        if bool((self.numbers.diff() <= 0).any()):
            raise ValueError(f"the parts of {folder} do not fit together; make the index again")
        self.alive = ~torch.isin(self.numbers, torch.tensor(state.dead, dtype=torch.long))
        self._count = int(self.alive.sum())

    def __len__(self) -> int:
        return self._count

    @property
    def parts(self) -> Sequence[Part]:
        """The parts it is made of."""
        return self._parts

    def entry(self, row: int) -> Entry:
        """What a row is."""
        place = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._parts[place].entries[row - int(self._starts[place])]

    def find(self, name: str) -> int | None:
        """The living row of an id; None where there is none."""
        return self.rows.get(name)

    @cached_property
    def rows(self) -> dict[str, int]:
        """The living row of every id."""
        return {self.entry(row).id: row for row in self.alive.nonzero().squeeze(1).tolist()}

    @cached_property
    def about(self) -> dict[str, list[int]]:
        """Living rows of the texts that describe an image, by its id."""
        found: dict[str, list[int]] = {}
        for row in self.alive.nonzero().squeeze(1).tolist():
            found.setdefault(self.entry(row).image, []).append(row)
        return found

    def vectors(self, rows: Tensor) -> Tensor:
        """(n, D) float32 vectors of (n,) rows."""
        wanted = rows.numpy()
        part = np.searchsorted(self._starts, wanted, side="right") - 1
        out = np.empty((len(wanted), self._width), np.float32)
        for place in np.unique(part):
            here = part == place
            out[here] = self._parts[place].vectors[wanted[here] - self._starts[place]]
        return torch.from_numpy(out)

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best of each query by inner product, best first; ties go to the lower row.

        Args:
            queries: (Q, D) float.
            k: how many.

        Returns:
            (Q, k) long rows, -1 where fewer exist, and (Q, k) float32 scores, -inf there.

        Raises:
            ValueError: k is below 1, or the queries are of another width.
        """
        given, wanted = _asked(queries, k, self._width), max(_SPARE * k, _LEAST)
        while self.finder is not None and wanted < len(self):
            rows = self._living(self.finder.propose(given, wanted))
            if bool(((rows >= 0).sum(1) >= k).all()):
                keys = self._among(given, rows, k)
                return rows_of(keys), scores_of(keys)
            wanted *= 4  # too many of them were dead
        keys = self._all(given, k)
        return rows_of(keys), scores_of(keys)

    def _living(self, numbers: Tensor) -> Tensor:
        """(Q, K) rows of what a finder proposed, -1 for none, the dead and the unknown."""
        rows = torch.searchsorted(self.numbers, numbers).clamp_(max=len(self.numbers) - 1)
        real = (self.numbers[rows] == numbers) & self.alive[rows]
        return rows.masked_fill(~real, -1)

    def _among(self, queries: Tensor, rows: Tensor, k: int) -> Tensor:
        """(Q, k) rank keys of the best of some rows, best first."""
        found = []
        for query, own in zip(queries, rows):
            own = torch.unique(own[own >= 0])
            scores = (self.vectors(own) * query).sum(1)  # whoever else is a candidate
            found.append(descending(rank_keys(scores, own).unsqueeze(0))[:, :k])
        return torch.cat(found)

    def _all(self, queries: Tensor, k: int) -> Tensor:
        """(Q, k) rank keys of the best of all, best first."""
        groups = torch.split(pad(queries, (0, 0, 0, -len(queries) % _QUERIES)), _QUERIES)
        kept = [torch.full((_QUERIES, k), NOTHING) for _ in groups]
        for start, part in zip(self._starts.tolist(), self._parts):
            for low in range(0, len(part), _ROWS):
                block = torch.from_numpy(part.vectors[low : low + _ROWS]).float()
                rows = torch.arange(start + low, start + low + len(block))
                whole = block if len(block) == _ROWS else pad(block, (0, 0, 0, _ROWS - len(block)))
                for place, group in enumerate(groups):
                    scores = (group @ whole.T)[:, : len(block)]
                    kept[place] = self._better(kept[place], scores, rows)
        return descending(torch.cat(kept)[: len(queries)])

    def _better(self, kept: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
        """(q, k) rank keys of the best so far, with a block of scores."""
        floor = scores_of(kept.amin(1, keepdim=True))
        reach = (scores >= floor).any(0) & self.alive[rows]
        keys = rank_keys(scores[:, reach], rows[reach].expand(len(scores), -1))
        return best(torch.cat([kept, keys], 1), kept.shape[1]).contiguous()


def _asked(queries: Tensor, k: int, width: int) -> Tensor:
    """Queries as float32 on the CPU."""
    if k < 1:
        raise ValueError(f"k is {k}, but at least 1 answer must be asked for")
    if queries.dim() != 2 or queries.shape[1] != width:
        raise ValueError(
            f"queries of shape {tuple(queries.shape)} were given to an index of width {width}"
        )
    return queries.detach().cpu().float()
