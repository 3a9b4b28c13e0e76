"""The rank of every query's best true counterpart, counted without sorting anything."""

from __future__ import annotations

from typing import Literal, TypeAlias, final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.engine.select import NOTHING, rank_keys, rows_of, scores_of
from counterfoil.engine.sweep import Reducer
from counterfoil.engine.tiles import Side, Tile
from counterfoil.records import Pairs

Ties: TypeAlias = Literal["optimistic", "pessimistic", "row"]


@final
class Ranks(Reducer):
    """Counts how many counterparts rank before the best true one of each query.

    The tiles with true pairs are looked at first, so the score to beat has the very bits it has
    in the pass; then a pass counts what is above it. One pass answers every tie rule.
    """

    def __init__(
        self, query: Side, queries: int, owner: Tensor, besides: Pairs | None = None
    ) -> None:
        """A count for every query.

        Args:
            query: which side asks.
            queries: how many there are.
            owner: (T,) image row that each text describes, -1 for none.
            besides: rows of pairs that are true besides.
        """
        self.query, self.queries, self.ahead, self.besides = query, queries, owner, besides

    def start(self, images: int, texts: int, device: torch.device) -> None:
        """Allocate the counts."""
        assert self.queries == (images if self.query == "image" else texts)
        assert len(self._owner) == texts
        self.ahead = self._owner.to(device)
        self.besides = None if self.besides is None else self.besides.to(device)
        self._best = torch.full((self.queries,), NOTHING, device=device)
        self._greater, self._tied, self._before = (
            torch.zeros(self.queries, dtype=torch.long, device=device) for _ in range(3)
        )

    def look(self, tile: Tile) -> None:
        """Remember the best true score, and the lowest row that has it."""
        row, column = tile.true(self._owner, self.besides)
        asked, answer = tile.images[row], tile.texts[column]
        if self.query == "text":
            asked, answer = answer, asked
        keys = rank_keys(tile.scores[row, column], answer)
        self._best.scatter_reduce_(0, asked, keys, "amax")

    def agree(self) -> None:
        """Take the best of all processes."""
        self._best = world.gather(self._best).amax(0)
        self._level = scores_of(self._best)
        self._row = rows_of(self._best)
        self._level[self._row < 0] = torch.inf  # nothing true: nothing to count

    def update(self, tile: Tile) -> None:
        """Count what is above the best true score, and what is level with it."""
        side = 1 if self.query == "image" else 0
        asked = tile.images if side else tile.texts
        level = self._level[asked].unsqueeze(side)
        above = torch.gt(tile.scores, level, out=torch.empty_like(tile.scores))
        self._greater.index_add_(0, asked, above.sum(side).long())  # exact: tiles are small
        same = torch.eq(tile.scores, level, out=above)
        if bool(same.any()):
            self._count_ties(tile, same.bool())

    def merge(self) -> None:
        """Add the counts of all processes."""
        self._greater, self._tied, self._before = (
            world.gather(count).sum(0) for count in (self._greater, self._tied, self._before)
        )

    def ranks(self, ties: Ties = "row") -> Tensor:
        """(Q,) long 0-based rank of the best true counterpart, -1 where a query has none.

        Args:
            ties: what comes before the best true counterpart besides all that score higher:
                "optimistic" nothing, "pessimistic" every false one with the same score, "row"
                the false ones with the same score and a lower row, as in `TopK`.

        Raises:
            ValueError: an unknown tie rule.
        """
        if ties not in ("optimistic", "pessimistic", "row"):
            raise ValueError(f"tie rule {ties!r} is unknown; choose optimistic, pessimistic or row")
        none = torch.zeros_like(self._tied)
        more = {"optimistic": none, "pessimistic": self._tied, "row": self._before}[ties]
        return (self._greater + more).masked_fill(self._row < 0, -1)

    @property
    def _owner(self) -> Tensor:
        assert self.ahead is not None
        return self.ahead

    def _count_ties(self, tile: Tile, same: Tensor) -> None:
        same[tile.true(self._owner, self.besides)] = False
        row, column = same.nonzero(as_tuple=True)
        asked, answer = tile.images[row], tile.texts[column]
        if self.query == "text":
            asked, answer = answer, asked
        self._tied.index_add_(0, asked, torch.ones_like(asked))
        self._before.index_add_(0, asked, (answer < self._row[asked]).long())
