"""Picking the few from the many: what the reducers need of a machine.

On the CPU NumPy's vectorised partition, comparison and radix sort are several times faster than
torch's; elsewhere torch does the same. Both give the same values.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from counterfoil.core import distributed
from counterfoil.core.types import Pairs
from counterfoil.scoring.encode import ScoreTile, Side
from counterfoil.scoring.stream import ScoreReducer

NOTHING = -(2**63)
LOWEST = torch.finfo(torch.float32).min
_LAST = 2**32 - 1
_FLIP = 0x7FFFFFFF
_SHORT = 2**15


def rank_keys(scores: Tensor, rows: Tensor) -> Tensor:
    """Whole numbers that order like (score descending, row ascending), so that none can tie.

    The high half is the float32's bit pattern made monotone, the low half counts down the row.

    Args:
        scores: float32, without NaN.
        rows: long, same shape, below 2**32.
    """
    bits = (scores + 0.0).view(torch.int32)  # adding zero turns -0.0 into 0.0
    monotone = bits ^ ((bits >> 31) & _FLIP)
    return (monotone.long() << 32) + (_LAST - rows)


def scores_of(keys: Tensor) -> Tensor:
    """The float32 scores in rank keys; -inf where a key is `NOTHING`."""
    monotone = (keys >> 32).int()
    bits = monotone ^ ((monotone >> 31) & _FLIP)
    return bits.view(torch.float32).masked_fill(keys == NOTHING, -torch.inf)


def rows_of(keys: Tensor) -> Tensor:
    """The long rows in rank keys; -1 where a key is `NOTHING`."""
    return (_LAST - (keys & _LAST)).masked_fill(keys == NOTHING, -1)


def reach_threshold(scores: Tensor, floor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where a contiguous (i, t) block of scores is at least the floor, in row-major order.

    Args:
        scores: (i, t).
        floor: (i, 1) or (1, t).

    Returns:
        (n,) scores, (n,) long rows and (n,) long columns.
    """
    if scores.device.type == "cpu":
        found = np.flatnonzero(scores.numpy() >= floor.numpy())
        flat, row = torch.from_numpy(found), torch.from_numpy(found // scores.shape[1])
        column = flat - row * scores.shape[1]
    else:
        row, column = (scores >= floor).nonzero(as_tuple=True)
        flat = row * scores.shape[1] + column
    return scores.flatten().index_select(0, flat), row, column


def best_columns(values: Tensor, k: int) -> Tensor:
    """(Q, k) largest of (Q, C) values, the least of them first, the others in any order.

    All C of them where C is at most k. The values themselves are left in disorder.
    """
    k = min(k, values.shape[1])
    if values.device.type == "cpu":
        split = values.shape[1] - k
        values.numpy().partition(split, axis=1)
        return values[:, split:]
    return values.topk(k, 1).values.flip(1)


def sort_descending(values: Tensor) -> Tensor:
    """(Q, C) values sorted along each row, largest first."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=1)).flip(1)
    return values.sort(1, descending=True).values


def group_by_owner(labels: Tensor, groups: int) -> Tensor:
    """Places that bring equal labels together, in order of label and then of place.

    Args:
        labels: (n,) long, from 0 to `connected_groups` - 1.
        groups: how many labels there can be.
    """
    if labels.device.type == "cpu" and groups <= _SHORT:
        short = labels.numpy().astype(np.int16)  # two bytes are sorted by radix
        return torch.from_numpy(np.argsort(short, kind="stable"))
    return labels.sort(stable=True).indices


# The k best counterparts of every query: a ranking, or hard negatives when told who owns whom.


_SLACK = 64  # least room for newcomers beside the k best
_AT_ONCE = 8192  # queries finished together


@final
class TopK(ScoreReducer):
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

    def __init__(
        self, query: Side, queries: int, k: int, text_to_image: Tensor | None = None
    ) -> None:
        """A list of k for every query.

        Args:
            query: which side asks.
            queries: how many there are.
            k: how many counterparts to keep.
            text_to_image: (T,) image row that each text describes, -1 for none; when given, true
                counterparts are left out and the lists hold hard negatives.

        Raises:
            ValueError: k is below 1.
        """
        if k < 1:
            raise ValueError(f"k is {k}, but at least 1 counterpart must be kept")
        self.query, self.queries, self.k, self.text_to_image = query, queries, k, text_to_image
        slack = max(k, _SLACK)
        self._room, self._nearly_full = k + slack, k + slack // 2

    def start(self, images: int, texts: int, device: torch.device) -> None:
        """Allocate the lists."""
        queries, answers = (images, texts) if self.query == "image" else (texts, images)
        assert self.queries == queries
        self._room = max(1, min(self._room, answers))  # no list is longer than that
        assert self.text_to_image is None or len(self.text_to_image) == texts
        self._keys = torch.full((self.queries, self._room), NOTHING, device=device)
        self._held = torch.zeros(self.queries, dtype=torch.long, device=device)
        self._floor = torch.full((self.queries,), LOWEST, device=device)
        self.text_to_image = None if self.text_to_image is None else self.text_to_image.to(device)

    def update(self, tile: ScoreTile) -> None:
        """Add what reaches the floors."""
        if self.text_to_image is None:
            self._take(tile)
            return
        true = tile.true(self.text_to_image)
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
            lists = distributed.gather(best_columns(self._keys[part], self.k).contiguous())
            keys = sort_descending(best_columns(lists.movedim(0, 1).flatten(1), self.k))
            keys = pad(keys, (0, self.k - keys.shape[1]), value=NOTHING)
            self.rows[part], self.scores[part] = rows_of(keys), scores_of(keys)
        del self._keys, self._held, self._floor

    def state(self) -> Tensor:
        """(Q, k) rank keys of the lists so far, in any order, for `absorb`."""
        for rows in self._parts():
            long = rows[self._held[rows] > self.k]
            if len(long):
                self._keep(long, best_columns(self._keys[long], self.k))
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
            keys = sort_descending(torch.cat([self._keys[rows], theirs], 1))[:, :width]
            held = (keys != NOTHING).sum(1)
            floor = scores_of(keys[:, -1]).clamp(min=LOWEST)
            self._keys[rows] = pad(keys, (0, self._room - width), value=NOTHING)
            self._held[rows] = held
            self._floor[rows] = floor.where(held == self.k, LOWEST)

    def _take(self, tile: ScoreTile) -> None:
        asked, answers = tile.images, tile.texts
        if self.query == "text":
            asked, answers = answers, asked
        scores, query, answer = self._reaching(tile.scores, asked)
        if not len(scores):
            return
        if self.query == "text":
            order = group_by_owner(answer, len(asked))
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
            floor = torch.maximum(floor, best_columns(by_query, self.k)[:, 0])
            self._floor[asked] = floor
        return reach_threshold(scores, floor.unsqueeze(side))

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
            self._keep(chosen, best_columns(self._keys[chosen], self.k))

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
        self._keep(chosen, best_columns(wide, self.k))

    def _keep(self, chosen: Tensor, kept: Tensor) -> None:
        # unused places hold NOTHING, so that they can be cut down with the rest
        self._keys[chosen] = pad(kept, (0, self._room - kept.shape[1]), value=NOTHING)
        self._held[chosen] = kept.shape[1]
        self._floor[chosen] = scores_of(kept[:, 0])


# The rank of every query's best true counterpart, counted without sorting anything.


Ties: TypeAlias = Literal["optimistic", "pessimistic", "row"]


@final
class Ranks(ScoreReducer):
    """Counts how many counterparts rank before the best true one of each query.

    The tiles with true pairs are looked at first, so the score to beat has the very bits it has
    in the pass; then a pass counts what is above it. One pass answers every tie rule.
    """

    def __init__(
        self, query: Side, queries: int, text_to_image: Tensor, besides: Pairs | None = None
    ) -> None:
        """A count for every query.

        Args:
            query: which side asks.
            queries: how many there are.
            text_to_image: (T,) image row that each text describes, -1 for none.
            besides: rows of pairs that are true besides.
        """
        self.query, self.queries, self.ahead, self.besides = query, queries, text_to_image, besides

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

    def look(self, tile: ScoreTile) -> None:
        """Remember the best true score, and the lowest row that has it."""
        row, column = tile.true(self._owner, self.besides)
        asked, answer = tile.images[row], tile.texts[column]
        if self.query == "text":
            asked, answer = answer, asked
        keys = rank_keys(tile.scores[row, column], answer)
        self._best.scatter_reduce_(0, asked, keys, "amax")

    def agree(self) -> None:
        """Take the best of all processes."""
        self._best = distributed.gather(self._best).amax(0)
        self._level = scores_of(self._best)
        self._row = rows_of(self._best)
        self._level[self._row < 0] = torch.inf  # nothing true: nothing to count

    def update(self, tile: ScoreTile) -> None:
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
            distributed.gather(count).sum(0) for count in (self._greater, self._tied, self._before)
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

    def _count_ties(self, tile: ScoreTile, same: Tensor) -> None:
        same[tile.true(self._owner, self.besides)] = False
        row, column = same.nonzero(as_tuple=True)
        asked, answer = tile.images[row], tile.texts[column]
        if self.query == "text":
            asked, answer = answer, asked
        self._tied.index_add_(0, asked, torch.ones_like(asked))
        self._before.index_add_(0, asked, (answer < self._row[asked]).long())


# The rank of every true pair among the wrong counterparts that share its image.


@final
class PairRanks(ScoreReducer):
    """Counts, for every text, the wrong texts that its image prefers to it.

    `RankStatistics` looks at the best true text of an image; here each of them has a rank of its
    own, and
    the others count neither for nor against it. The wrong images that a text prefers to its own are
    what ``Ranks("text", ...)`` counts, since a text has one image.
    """

    def __init__(self, text_to_image: Tensor) -> None:
        """A count for every text.

        Args:
            text_to_image: (T,) image row that each text describes, -1 for none.
        """
        self.ahead = text_to_image

    def start(self, images: int, texts: int, device: torch.device) -> None:
        """Allocate the counts, and group the texts by their image."""
        assert self.ahead is not None
        assert len(self.ahead) == texts
        text_to_image = self.ahead = self.ahead.to(device)
        self._level = torch.full((texts,), -torch.inf, device=device)
        self._count = torch.zeros(texts, dtype=torch.long, device=device)
        self._many = torch.bincount(text_to_image[text_to_image >= 0], minlength=images)
        self._order = text_to_image.argsort(stable=True)
        self._first = self._many.cumsum(0) - self._many + (text_to_image < 0).sum()

    def look(self, tile: ScoreTile) -> None:
        """Remember the scores of true pairs, with the very bits they have in the pass."""
        row, column = tile.true(self._owner)
        self._level[tile.texts[column]] = tile.scores[row, column]

    def agree(self) -> None:
        """Take the levels of whoever saw them."""
        self._level = distributed.gather(self._level).amax(0)

    def update(self, tile: ScoreTile) -> None:
        """Count what is above each true text of the tile's images, and level with a lower row."""
        true = tile.true(self._owner)
        hidden = tile.scores[true]
        tile.scores[true] = -torch.inf
        many = self._many[tile.images]
        for place in range(int(many.max())):
            rows = (many > place).nonzero().squeeze(1)
            self._add(tile, rows, self._order[self._first[tile.images[rows]] + place])
        tile.scores[true] = hidden

    def merge(self) -> None:
        """Add the counts of all processes."""
        self._count = distributed.gather(self._count).sum(0)

    def ranks(self) -> Tensor:
        """(T,) long 0-based rank of each text among its image's wrong texts, -1 for one of none.

        Of equal scores the lower row comes first, as in `TopK`.
        """
        return self._count.masked_fill(self._owner < 0, -1)

    @property
    def _owner(self) -> Tensor:
        assert self.ahead is not None
        return self.ahead

    def _add(self, tile: ScoreTile, rows: Tensor, text: Tensor) -> None:
        """Count for one text of each of these rows of the tile."""
        level, scores = self._level[text].unsqueeze(1), tile.scores[rows]
        before = scores > level
        before |= (scores == level) & (tile.texts < text.unsqueeze(1))
        before &= scores > -torch.inf  # a level of -inf must not count the true texts hidden here
        self._count[text] += before.sum(1)


# The score of every true pair, as it stands in the matrix.


@final
class TrueScores(ScoreReducer):
    """Keeps the score of each text with the image it describes.

    Attributes:
        scores: (T,) float32, -inf for a text of no image; filled by `merge`.
    """

    scores: Tensor

    def __init__(self, text_to_image: Tensor) -> None:
        """A score for every text.

        Args:
            text_to_image: (T,) image row that each text describes, -1 for none.
        """
        self.text_to_image = text_to_image

    def start(self, images: int, texts: int, device: torch.device) -> None:
        """Make room for the scores."""
        assert len(self.text_to_image) == texts
        self.text_to_image = self.text_to_image.to(device)
        self.scores = torch.full((texts,), -torch.inf, device=device)

    def update(self, tile: ScoreTile) -> None:
        """Pick the true pairs of the tile."""
        row, column = tile.true(self.text_to_image)
        self.scores[tile.texts[column]] = tile.scores[row, column]

    def merge(self) -> None:
        """Take each score from whoever saw it."""
        self.scores = distributed.gather(self.scores).amax(0)


# The whole score matrix, for when it is small.


@final
class DenseScores(ScoreReducer):
    """Keeps every score.

    Attributes:
        scores: (I, T) float32.
    """

    scores: Tensor

    def __init__(self, images: int, texts: int) -> None:
        """Room for `cxc_images` x `texts` scores, 4 bytes each."""
        self.images, self.texts = images, texts

    def start(self, images: int, texts: int, device: torch.device) -> None:
        """Allocate the matrix."""
        assert (images, texts) == (self.images, self.texts)
        self.scores = torch.zeros(images, texts, device=device)

    def update(self, tile: ScoreTile) -> None:
        """Copy the tile to its place."""
        self.scores[tile.images.unsqueeze(1), tile.texts] = tile.scores

    def merge(self) -> None:
        """Put the processes' tiles together; each tile is zero on all processes but one."""
        self.scores = distributed.gather(self.scores).sum(0)
