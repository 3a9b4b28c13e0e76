"""The k best counterparts of every query: a ranking, or hard negatives when told who owns whom."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from counterfoil import world
from counterfoil.engine.select import (
    LOWEST,
    NOTHING,
    best,
    descending,
    grouping,
    rank_keys,
    reaching,
    rows_of,
    scores_of,
)
from counterfoil.engine.sweep import Reducer
from counterfoil.engine.tiles import Side, Tile

_SLACK = 64  # least room for newcomers beside the k best
_AT_ONCE = 8192  # queries finished together


@final
class TopK(Reducer):
    """Keeps the k highest-scoring counterparts of every query; ties go to the lower row.

    A tile's scores are compared with what each query's k-th best was when its list was last cut
    down; the few that reach it are added, and full lists are cut down to the k best.
    Scores of -inf never qualify.

    Attributes:
        rows: (Q, k) int32 rows, best first, -1 where fewer exist; filled by `merge`.
        scores: (Q, k) float32, -inf where fewer exist; filled by `merge`.
    """

    rows: Tensor
    scores: Tensor

    def __init__(self, query: Side, queries: int, k: int, owner: Tensor | None = None) -> None:
        """A list of k for every query.

        Args:
            query: which side asks.
            queries: how many there are.
            k: how many counterparts to keep.
            owner: (T,) image row that each text describes, -1 for none; when given, true
                counterparts are left out and the lists hold hard negatives.

        Raises:
            ValueError: k is below 1.
        """
        if k < 1:
            raise ValueError(f"k is {k}, but at least 1 counterpart must be kept")
        self.query, self.queries, self.k, self.owner = query, queries, k, owner
        slack = max(k, _SLACK)
        self._room, self._nearly_full = k + slack, k + slack // 2

    def start(self, images: int, texts: int, device: torch.device) -> None:
        """Allocate the lists."""
        queries, answers = (images, texts) if self.query == "image" else (texts, images)
        assert self.queries == queries
        self._room = max(1, min(self._room, answers))  # no list is longer than that
        assert self.owner is None or len(self.owner) == texts
        self._keys = torch.full((self.queries, self._room), NOTHING, device=device)
        self._held = torch.zeros(self.queries, dtype=torch.long, device=device)
        self._floor = torch.full((self.queries,), LOWEST, device=device)
        self.owner = None if self.owner is None else self.owner.to(device)

    def update(self, tile: Tile) -> None:
        """Add what reaches the floors."""
        if self.owner is None:
            self._take(tile)
            return
        true = tile.true(self.owner)
        hidden = tile.scores[true]
        tile.scores[true] = -torch.inf  # a handful of writes instead of a mask over the tile
        self._take(tile)
        tile.scores[true] = hidden

    def merge(self) -> None:
        """Sort the lists of all processes into one."""
        shape = self.queries, self.k
        device = self._keys.device
        self.rows = torch.empty(shape, dtype=torch.int32, device=device)
        self.scores = torch.empty(shape, dtype=torch.float32, device=device)
        for start in range(0, self.queries, _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            lists = world.gather(best(self._keys[part], self.k).contiguous())
            keys = descending(best(lists.movedim(0, 1).flatten(1), self.k))
            keys = pad(keys, (0, self.k - keys.shape[1]), value=NOTHING)
            self.rows[part], self.scores[part] = rows_of(keys), scores_of(keys)
        del self._keys, self._held, self._floor

    def state(self) -> Tensor:
        """(Q, k) rank keys of the lists so far, in any order, for `absorb`."""
        for rows in self._parts():
            long = rows[self._held[rows] > self.k]
            if len(long):
                self._keep(long, best(self._keys[long], self.k))
        return self._keys[:, : self.k]

    def absorb(self, state: Tensor) -> None:
        """Add the lists of a reducer that has seen other tiles of the same matrix.

        Args:
            state: (Q, k) what its `state` was.
        """
        width = min(self.k, self._room)
        assert state.shape == (self.queries, width)
        for rows in self._parts():
            theirs = state[rows.to(state.device)].to(rows.device)
            keys = descending(torch.cat([self._keys[rows], theirs], 1))[:, :width]
            held = (keys != NOTHING).sum(1)
            floor = scores_of(keys[:, -1]).clamp(min=LOWEST)
            self._keys[rows] = pad(keys, (0, self._room - width), value=NOTHING)
            self._held[rows] = held
            self._floor[rows] = floor.where(held == self.k, LOWEST)

    def _take(self, tile: Tile) -> None:
        asked, answers = tile.images, tile.texts
        if self.query == "text":
            asked, answers = answers, asked
        scores, query, answer = self._reaching(tile.scores, asked)
        if not len(scores):
            return
        if self.query == "text":
            order = grouping(answer, len(asked))
            scores, query, answer = (x.index_select(0, order) for x in (scores, answer, query))
        self._add(asked, query, rank_keys(scores, answers.index_select(0, answer)))

    def _reaching(self, scores: Tensor, asked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, rows and columns that could be among the k best of the query they belong to."""
        side = 1 if self.query == "image" else 0
        self._trim(asked)
        floor = self._floor[asked]
        if floor[0] == LOWEST and self.k < scores.shape[side]:  # a first tile: all would get in
            lines = scores if side else scores.T
            by_query = lines.clone(memory_format=torch.contiguous_format)
            floor = torch.maximum(floor, best(by_query, self.k)[:, 0])
            self._floor[asked] = floor
        return reaching(scores, floor.unsqueeze(side))

    def _add(self, asked: Tensor, query: Tensor, keys: Tensor) -> None:
        """Add keys to lists, cutting down those without room.

        Args:
            asked: (q,) query rows.
            query: (n,) place in `asked` of each newcomer, ascending.
            keys: (n,) rank keys of the newcomers.
        """
        many = torch.bincount(query, minlength=len(asked))
        held = self._held[asked]
        first = many.cumsum(0) - many
        place = torch.arange(len(query), device=query.device)
        place += (held - first).index_select(0, query)
        full = held + many > self._room
        if bool(full.any()):
            stays = ~full.index_select(0, query)
            leaves = ~stays
            self._cut(asked, full, query[leaves], place[leaves], keys[leaves], many)
            query, place, keys = query[stays], place[stays], keys[stays]
            many = many.masked_fill(full, 0)
            held = self._held[asked]
        spot = (asked * self._room).index_select(0, query) + place
        self._keys.view(-1).scatter_(0, spot, keys)
        self._held[asked] = held + many

    def _parts(self) -> tuple[Tensor, ...]:
        return torch.split(torch.arange(self.queries, device=self._keys.device), _AT_ONCE)

    def _trim(self, asked: Tensor) -> None:
        """Cut down lists that are nearly full, so that their floors rise before they are used."""
        chosen = asked[self._held[asked] > self._nearly_full]
        if len(chosen):
            self._keep(chosen, best(self._keys[chosen], self.k))

    def _cut(
        self, asked: Tensor, full: Tensor, query: Tensor, place: Tensor, keys: Tensor, many: Tensor
    ) -> None:
        """Cut lists that would overflow, with all their newcomers."""
        chosen = asked[full]
        width = int((self._held[asked] + many).max())
        wide = torch.full((len(chosen), width), NOTHING, device=keys.device)
        wide[:, : self._room] = self._keys[chosen]
        line = full.cumsum(0) - 1
        wide.view(-1).scatter_(0, line.index_select(0, query) * width + place, keys)
        self._keep(chosen, best(wide, self.k))

    def _keep(self, chosen: Tensor, kept: Tensor) -> None:
        # unused places hold NOTHING, so that they can be cut down with the rest
        self._keys[chosen] = pad(kept, (0, self._room - kept.shape[1]), value=NOTHING)
        self._held[chosen] = kept.shape[1]
        self._floor[chosen] = scores_of(kept[:, 0])
