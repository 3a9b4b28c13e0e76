"""Reducers of a score matrix: top-k lists, ranks, scores of true pairs, the dense matrix.

A top-k list must not depend on how the matrix was cut, in which order its tiles came, or how many
processes scored them: that is what rank keys are for. Float scores alone cannot promise that: the
order of equal scores is an implementation detail of `topk` and `sort`. So each (score, row) is
packed into one int64, and the lists hold, compare and merge these keys only:

    bit   63 ............... 32 | 31 ................ 0
          score, order-preserving | 2**32 - 1 - row

*High half.* The bits of a positive float32, read as an int32, already order like the float. Those
of a negative float have the sign bit set and grow with its magnitude, so they order backwards;
flipping their other 31 bits turns them round. The result is a signed int32 that orders exactly
like the float, and the flip undoes itself, so a key gives back the score bit for bit. Adding zero
first turns -0.0 into 0.0: two equal floats must not have two keys.

*Low half.* Counting down the row makes the lower row the larger key. "Largest key first" therefore
means "score descending, then row ascending".

The order is total: the rows of one query differ, so no two of its keys are equal, and every
correct partition, top-k or sort (NumPy, torch, CUDA) returns the same k keys. And it does not
depend on tiles or processes, because the k largest of a union are the k largest of the parts' k
largest: cutting a list early, or merging the lists of processes, cannot change the result.
-2**63 would be the key of a NaN, which no matrix here holds, and stands for an empty place.

On the CPU, NumPy's vectorised partition, comparison and radix sort are several times faster than
torch's, so the helpers below use them there; the values are the same.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from counterfoil.core import distributed
from counterfoil.core.config import parse_literal
from counterfoil.core.types import Pairs
from counterfoil.scoring.encode import ScoreTile, Side
from counterfoil.scoring.stream import ScoreReducer

NOTHING = -(2**63)  # key of an empty place: below the key of every score, -inf included
LOWEST = torch.finfo(torch.float32).min  # the floor of an empty list: all but -inf reach it
_LAST = 2**32 - 1  # low half of a key: the row counted down from here
_FLIP = 0x7FFFFFFF  # all bits of an int32 but the sign
_SHORT = 2**15  # labels below this fit an int16


def rank_keys(scores: Tensor, rows: Tensor) -> Tensor:
    """Pack score and row into one int64: the larger key has the higher score, then the lower row.

    See the head of this file.

    Args:
        scores: float32, without NaN.
        rows: long, same shape, below 2**32.
    """
    bits = (scores + 0.0).view(torch.int32)  # adding zero turns -0.0 into 0.0
    monotone = bits ^ ((bits >> 31) & _FLIP)  # the shift gives -1 for negative floats, else 0
    return (monotone.long() << 32) + (_LAST - rows)


def scores_of(keys: Tensor) -> Tensor:
    """Unpack the float32 scores of rank keys; -inf where a key is `NOTHING`."""
    monotone = (keys >> 32).int()
    bits = monotone ^ ((monotone >> 31) & _FLIP)  # the flip is its own inverse
    return bits.view(torch.float32).masked_fill(keys == NOTHING, -torch.inf)


def rows_of(keys: Tensor) -> Tensor:
    """Unpack the long rows of rank keys; -1 where a key is `NOTHING`."""
    return (_LAST - (keys & _LAST)).masked_fill(keys == NOTHING, -1)


def at_least(scores: Tensor, floor: Tensor) -> tuple[Tensor, int]:
    """Compare a contiguous (i, t) block with a floor, (i, 1) or (1, t).

    Returns:
        (i, t) bool, and how many are True.
    """
    if scores.device.type == "cpu":
        reached = scores.numpy() >= floor.numpy()
        return torch.from_numpy(reached), int(np.count_nonzero(reached))
    on_device = scores >= floor
    return on_device, int(on_device.sum())


def entries_at(scores: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the chosen entries of a contiguous block, row by row: (n,) scores, rows, columns."""
    if scores.device.type == "cpu":
        places = np.flatnonzero(chosen.numpy())
        flat, row = torch.from_numpy(places), torch.from_numpy(places // scores.shape[1])
        column = flat - row * scores.shape[1]
    else:
        row, column = chosen.nonzero(as_tuple=True)
        flat = row * scores.shape[1] + column
    return scores.flatten().index_select(0, flat), row, column


def best_columns(values: Tensor, k: int) -> Tensor:
    """Return the (Q, k) largest of (Q, C) values: the least of them first, the others in any order.

    All C of them where C is at most k. On the CPU `values` is reordered in place.
    """
    k = min(k, values.shape[1])
    if values.device.type == "cpu":
        split = values.shape[1] - k
        values.numpy().partition(split, axis=1)
        return values[:, split:]
    return values.topk(k, 1).values.flip(1)


def sort_descending(values: Tensor) -> Tensor:
    """Sort (Q, C) values along each row, largest first."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=1)).flip(1)
    return values.sort(1, descending=True).values


def group_by_owner(labels: Tensor, groups: int) -> Tensor:
    """Return the (n,) stable argsort of labels, from 0 to `groups` - 1: equal ones together."""
    if labels.device.type == "cpu" and groups <= _SHORT:
        short = labels.numpy().astype(np.int16)  # two bytes are sorted by radix
        return torch.from_numpy(np.argsort(short, kind="stable"))
    return labels.sort(stable=True).indices


_SLACK = 64  # least number of spare places beside the k best
_QUERIES_AT_ONCE = 8192  # bounds the memory of the final sort


@final
class TopK(ScoreReducer):
    """The k highest-scoring counterparts of every query; ties go to the lower row.

    Almost all scores of a tile are far below the k best, so the work is to reject them cheaply.
    Each query has a list of rank keys with more than k places and a *floor*: the score of its k-th
    best when the list was last cut down to k. The k-th best only rises, so a score below the floor
    can never belong to the result, and one comparison per score rejects it. Those at or above the
    floor (at: an equal score with a lower row still counts) are appended unsorted; a list
    without room is cut down to its k largest keys, which raises its floor. Scores of -inf never
    qualify.

    Args:
        query: the side of the queries; the other side is ranked.
        queries: number of queries.
        k: length of each list.
        text_to_image: (T,) image row that each text describes, -1 for none; when given, true
            pairs are left out and the lists hold hard negatives.

    Attributes:
        rows: (Q, k) int32 rows, best first, -1 where fewer exist; filled by `merge`.
        scores: (Q, k) float32, -inf where fewer exist; filled by `merge`.

    Raises:
        ValueError: k is below 1.
    """

    concurrent = True
    cost = 2.5
    rows: Tensor
    scores: Tensor

    def __init__(
        self, query: Side, queries: int, k: int, text_to_image: Tensor | None = None
    ) -> None:
        if k < 1:
            raise ValueError(f"k is {k}, but at least 1 counterpart is needed")
        self.query, self.queries, self.k, self.text_to_image = query, queries, k, text_to_image
        slack = max(k, _SLACK)
        self._room, self._nearly_full = k + slack, k + slack // 2

    def prepare(self, images: int, texts: int, device: torch.device) -> None:
        queries, answers = (images, texts) if self.query == "image" else (texts, images)
        assert self.queries == queries
        self._room = max(1, min(self._room, answers))  # no list is longer than that
        assert self.text_to_image is None or len(self.text_to_image) == texts
        self._keys = torch.full((self.queries, self._room), NOTHING, device=device)
        self._lengths = torch.zeros(self.queries, dtype=torch.long, device=device)
        self._floor = torch.full((self.queries,), LOWEST, device=device)
        self.text_to_image = None if self.text_to_image is None else self.text_to_image.to(device)

    def update(self, tile: ScoreTile) -> None:
        if self.text_to_image is None:
            self._collect(tile)
            return
        true = tile.true_pairs(self.text_to_image)
        # A handful of writes instead of a mask over the tile; other reducers see the same tile
        # next, so the scores are put back.
        true_scores = tile.scores[true]
        tile.scores[true] = -torch.inf
        self._collect(tile)
        tile.scores[true] = true_scores

    def merge(self) -> None:
        shape = self.queries, self.k
        device = self._keys.device
        self.rows = torch.empty(shape, dtype=torch.int32, device=device)
        self.scores = torch.empty(shape, dtype=torch.float32, device=device)
        for start in range(0, self.queries, _QUERIES_AT_ONCE):
            part = slice(start, start + _QUERIES_AT_ONCE)
            lists = distributed.gather(best_columns(self._keys[part], self.k).contiguous())
            keys = sort_descending(best_columns(lists.movedim(0, 1).flatten(1), self.k))
            keys = pad(keys, (0, self.k - keys.shape[1]), value=NOTHING)
            self.rows[part], self.scores[part] = rows_of(keys), scores_of(keys)
        del self._keys, self._lengths, self._floor

    def state(self) -> Tensor:
        """Return the (Q, k) rank keys of the lists so far, in any order, for `absorb`."""
        for rows in self._query_parts():
            self._trim(rows[self._lengths[rows] > self.k])
        return self._keys[:, : self.k]

    def absorb(self, state: Tensor) -> None:
        """Add the `state` of a reducer of other tiles of the same matrix, (Q, k) rank keys."""
        width = min(self.k, self._room)
        assert state.shape == (self.queries, width)
        for rows in self._query_parts():
            saved_keys = state[rows.to(state.device)].to(rows.device)
            keys = sort_descending(torch.cat([self._keys[rows], saved_keys], 1))[:, :width]
            lengths = (keys != NOTHING).sum(1)
            floor = scores_of(keys[:, -1]).clamp(min=LOWEST)
            self._keys[rows] = pad(keys, (0, self._room - width), value=NOTHING)
            self._lengths[rows] = lengths
            self._floor[rows] = floor.where(lengths == self.k, LOWEST)

    def _collect(self, tile: ScoreTile) -> None:
        queries, answers = tile.images, tile.texts
        if self.query == "text":
            queries, answers = answers, queries
        scores, query, answer = self._candidates(tile.scores, queries)
        if not len(scores):
            return
        if self.query == "text":
            # Entries come row by row of the tile, so those of one text have to be brought together.
            order = group_by_owner(answer, len(queries))
            scores, query, answer = (x.index_select(0, order) for x in (scores, answer, query))
        self._append(queries, query, rank_keys(scores, answers.index_select(0, answer)))

    def _candidates(self, scores: Tensor, queries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores, rows and columns of the entries at or above the floor of their query."""
        side = 1 if self.query == "image" else 0
        # Nearly full lists are cut first, so that this tile already meets their higher floor.
        self._trim(queries[self._lengths[queries] > self._nearly_full])
        floor = self._floor[queries]
        reached, count = at_least(scores, floor.unsqueeze(side))
        if count > 2 * self.k * len(queries):
            # A first tile would enter its lists whole, and so would one whose scores are far above
            # all before. But k counterparts reach the k-th best score of the tile, so that is a
            # valid floor, and selecting it is cheaper than listing what will be cut again.
            lines = scores if side else scores.T
            by_query = lines.clone(memory_format=torch.contiguous_format)
            floor = torch.maximum(floor, best_columns(by_query, self.k)[:, 0])
            self._floor[queries] = floor
            reached, _ = at_least(scores, floor.unsqueeze(side))
        return entries_at(scores, reached)

    def _append(self, queries: Tensor, query: Tensor, keys: Tensor) -> None:
        """Append keys to the lists; lists that would overflow are cut down to the k best.

        `queries` are the (q,) query rows of the tile; `query` is the (n,) place in them of each of
        the (n,) keys, ascending.
        """
        counts = torch.bincount(query, minlength=len(queries))
        lengths = self._lengths[queries]
        # The j-th new key of a query goes behind its list: place = length + j, where j counts from
        # the query's first entry in the sorted `query`.
        first = counts.cumsum(0) - counts
        place = torch.arange(len(query), device=query.device)
        place += (lengths - first).index_select(0, query)
        full = lengths + counts > self._room
        if bool(full.any()):
            fits = ~full.index_select(0, query)
            over = ~fits
            self._cut(queries, full, query[over], place[over], keys[over], counts)
            query, place, keys = query[fits], place[fits], keys[fits]
            counts = counts.masked_fill(full, 0)
            lengths = self._lengths[queries]
        spot = (queries * self._room).index_select(0, query) + place
        self._keys.view(-1).scatter_(0, spot, keys)
        self._lengths[queries] = lengths + counts

    def _query_parts(self) -> tuple[Tensor, ...]:
        rows = torch.arange(self.queries, device=self._keys.device)
        return torch.split(rows, _QUERIES_AT_ONCE)

    def _trim(self, queries: Tensor) -> None:
        """Cut the lists of these queries down to the k best."""
        if len(queries):
            self._replace(queries, best_columns(self._keys[queries], self.k))

    def _cut(
        self,
        queries: Tensor,
        full: Tensor,
        query: Tensor,
        place: Tensor,
        keys: Tensor,
        counts: Tensor,
    ) -> None:
        """Cut lists that would overflow together with all their new keys."""
        chosen = queries[full]
        width = int((self._lengths[queries] + counts).max())
        wide = torch.full((len(chosen), width), NOTHING, device=keys.device)
        wide[:, : self._room] = self._keys[chosen]
        line = full.cumsum(0) - 1  # row in `wide` of each full query
        wide.view(-1).scatter_(0, line.index_select(0, query) * width + place, keys)
        self._replace(chosen, best_columns(wide, self.k))

    def _replace(self, queries: Tensor, best: Tensor) -> None:
        # Unused places hold NOTHING, the least key, so that they can be cut with the rest.
        self._keys[queries] = pad(best, (0, self._room - best.shape[1]), value=NOTHING)
        self._lengths[queries] = best.shape[1]
        self._floor[queries] = scores_of(best[:, 0])  # `best_columns` puts the least first


Tie: TypeAlias = Literal["row", "optimistic", "pessimistic"]


@final
class Ranks(ScoreReducer):
    """The rank of every query's best true counterpart, counted without sorting.

    The look-ahead finds the best true score of each query, then the pass counts the scores above
    it. Both read the same tiles, so the score to beat has the same bits as in the pass; scored on
    its own, it could differ in the last bit and be counted above itself. One pass serves every tie
    rule. Arguments are those of `TopK`.
    """

    concurrent = True

    def __init__(
        self,
        query: Side,
        queries: int,
        text_to_image: Tensor,
        extra_positives: Pairs | None = None,
    ) -> None:
        self.query, self.queries = query, queries
        self.text_to_image = self.look_ahead = text_to_image
        self.extra_positives = extra_positives

    def prepare(self, images: int, texts: int, device: torch.device) -> None:
        assert self.queries == (images if self.query == "image" else texts)
        assert len(self.text_to_image) == texts
        self.text_to_image = self.look_ahead = self.text_to_image.to(device)
        if self.extra_positives is not None:
            self.extra_positives = self.extra_positives.to(device)
        self._best = torch.full((self.queries,), NOTHING, device=device)
        self._greater, self._tied, self._before = (
            torch.zeros(self.queries, dtype=torch.long, device=device) for _ in range(3)
        )

    def observe(self, tile: ScoreTile) -> None:
        """Note the best true score of each query, and the lowest row that has it."""
        row, column = tile.true_pairs(self.text_to_image, self.extra_positives)
        query, answer = tile.images[row], tile.texts[column]
        if self.query == "text":
            query, answer = answer, query
        keys = rank_keys(tile.scores[row, column], answer)
        self._best.scatter_reduce_(0, query, keys, "amax")

    def synchronize(self) -> None:
        """Take the best true score over all processes."""
        self._best = distributed.gather(self._best).amax(0)
        self._level = scores_of(self._best)
        self._row = rows_of(self._best)
        self._level[self._row < 0] = torch.inf  # no true counterpart: count nothing

    def update(self, tile: ScoreTile) -> None:
        """Count the scores above the best true score, and the false ones equal to it."""
        side = 1 if self.query == "image" else 0
        queries = tile.images if side else tile.texts
        level = self._level[queries].unsqueeze(side)
        # Comparing into a float tensor makes the sum a plain float reduction, much faster than
        # that of booleans; it is exact, since a tile has far fewer than 2**24 entries a line.
        above = torch.gt(tile.scores, level, out=torch.empty_like(tile.scores))
        self._greater.index_add_(0, queries, above.sum(side).long())
        equal = torch.eq(tile.scores, level, out=above)
        if bool(equal.amax()):  # eight times as fast as `any`
            self._count_ties(tile, equal.bool())

    def merge(self) -> None:
        self._greater, self._tied, self._before = (
            distributed.gather(count).sum(0) for count in (self._greater, self._tied, self._before)
        )

    def ranks(self, ties: Tie = "row") -> Tensor:
        """Return the (Q,) 0-based rank of each best true counterpart, -1 where there is none.

        Args:
            ties: which false counterparts with the same score rank before the true one: none
                ("optimistic"), all ("pessimistic"), or those of a lower row ("row"), as in `TopK`.

        Raises:
            ValueError: an unknown tie rule.
        """
        parse_literal(Tie, ties, "a tie rule")
        none = torch.zeros_like(self._tied)
        before = {"optimistic": none, "pessimistic": self._tied, "row": self._before}[ties]
        return (self._greater + before).masked_fill(self._row < 0, -1)

    @property
    def tied(self) -> Tensor:
        """(Q,) bool, queries with a false counterpart that scores as their best true one."""
        return self._tied > 0

    def _count_ties(self, tile: ScoreTile, equal: Tensor) -> None:
        equal[tile.true_pairs(self.text_to_image, self.extra_positives)] = False
        row, column = equal.nonzero(as_tuple=True)
        query, answer = tile.images[row], tile.texts[column]
        if self.query == "text":
            query, answer = answer, query
        self._tied.index_add_(0, query, torch.ones_like(query))
        self._before.index_add_(0, query, (answer < self._row[query]).long())


@final
class PairRanks(ScoreReducer):
    """The rank of every text among the wrong texts of its image.

    `Ranks` looks at the best true text of an image; here each true text has a rank of its own, and
    the image's other true texts count neither for nor against it. The wrong images that a text
    prefers to its own are what ``Ranks("text", ...)`` counts, since a text has one image.
    """

    concurrent = True

    def __init__(self, text_to_image: Tensor) -> None:
        self.text_to_image = self.look_ahead = text_to_image

    def prepare(self, images: int, texts: int, device: torch.device) -> None:
        assert len(self.text_to_image) == texts
        text_to_image = self.text_to_image = self.look_ahead = self.text_to_image.to(device)
        self._level = torch.full((texts,), -torch.inf, device=device)
        self._count = torch.zeros(texts, dtype=torch.long, device=device)
        # The texts of image i: `_order` from `_first[i]` on, `_captions[i]` of them.
        self._captions = torch.bincount(text_to_image[text_to_image >= 0], minlength=images)
        self._order = text_to_image.argsort(stable=True)
        self._first = self._captions.cumsum(0) - self._captions + (text_to_image < 0).sum()

    def observe(self, tile: ScoreTile) -> None:
        """Note the scores of true pairs, with the same bits as in the pass."""
        row, column = tile.true_pairs(self.text_to_image)
        self._level[tile.texts[column]] = tile.scores[row, column]

    def synchronize(self) -> None:
        """Take each true score from the process that has its tile."""
        self._level = distributed.gather(self._level).amax(0)

    def update(self, tile: ScoreTile) -> None:
        """For each true text of the tile's images, count the wrong texts that rank before it."""
        true = tile.true_pairs(self.text_to_image)
        true_scores = tile.scores[true]
        tile.scores[true] = -torch.inf
        captions = self._captions[tile.images]
        for number in range(int(captions.max())):  # the first text of every image, the second, ...
            rows = (captions > number).nonzero().squeeze(1)
            self._add(tile, rows, self._order[self._first[tile.images[rows]] + number])
        tile.scores[true] = true_scores

    def merge(self) -> None:
        self._count = distributed.gather(self._count).sum(0)

    def ranks(self) -> Tensor:
        """Return the (T,) 0-based rank of each text among its image's wrong texts.

        -1 for a text of no image. Of equal scores the lower row comes first, as in `TopK`.
        """
        return self._count.masked_fill(self.text_to_image < 0, -1)

    def _add(self, tile: ScoreTile, rows: Tensor, text: Tensor) -> None:
        """Count for one text of each of these rows of the tile."""
        level, scores = self._level[text].unsqueeze(1), tile.scores[rows]
        before = scores > level
        before |= (scores == level) & (tile.texts < text.unsqueeze(1))
        before &= scores > -torch.inf  # a level of -inf must not count the true texts hidden here
        self._count[text] += before.sum(1)


@final
class TrueScores(ScoreReducer):
    """The score of each text with the image it describes."""

    concurrent = True
    scores: Tensor  # (T,) float32, -inf for a text of no image; filled by `merge`

    def __init__(self, text_to_image: Tensor) -> None:
        self.text_to_image = text_to_image

    def prepare(self, images: int, texts: int, device: torch.device) -> None:
        assert len(self.text_to_image) == texts
        self.text_to_image = self.text_to_image.to(device)
        self.scores = torch.full((texts,), -torch.inf, device=device)

    def update(self, tile: ScoreTile) -> None:
        row, column = tile.true_pairs(self.text_to_image)
        self.scores[tile.texts[column]] = tile.scores[row, column]

    def merge(self) -> None:
        """Take each score from the process that has its tile."""
        self.scores = distributed.gather(self.scores).amax(0)


@final
class DenseScores(ScoreReducer):
    """The whole score matrix, for small data sets and tests."""

    concurrent = True
    scores: Tensor  # (I, T) float32

    def __init__(self, images: int, texts: int) -> None:
        self.images, self.texts = images, texts

    def prepare(self, images: int, texts: int, device: torch.device) -> None:
        assert (images, texts) == (self.images, self.texts)
        self.scores = torch.zeros(images, texts, device=device)

    def update(self, tile: ScoreTile) -> None:
        self.scores[tile.images.unsqueeze(1), tile.texts] = tile.scores

    def merge(self) -> None:
        """Sum the processes' matrices; each tile is zero on all processes but one."""
        self.scores = distributed.gather(self.scores).sum(0)
