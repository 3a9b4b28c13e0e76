"""Where every true counterpart of a query stands, for measures that the best one cannot give.

The scores of true pairs are kept, sorted, and every false score is counted between them: memory
grows with the true pairs, never with the matrix. Which pairs are true is a list of pairs, or a
predicate that is asked for each tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.config import parse_literal
from counterfoil.core.types import Pairs
from counterfoil.scoring.encode import ScoreTile, Side
from counterfoil.scoring.reducers import Tie, rank_keys
from counterfoil.scoring.stream import ScoreReducer

# (i,) image rows and (t,) text rows to (i, t) bool, the true pairs among them
TrueInTile: TypeAlias = Callable[[Tensor, Tensor], Tensor]
_LAST = 2**32 - 1


@final
@dataclass(frozen=True, slots=True, eq=False)
class TruePlaces:
    """The true counterparts of each query among its false ones.

    There is one entry for each true pair, by query and from the best to the last.

    Attributes:
        query: (P,) long, ascending.
        answer: (P,) long, rows of the counterparts.
        above: (P,) long, false counterparts that rank before, by the rule of ties.
        outscored: (P,) double, false counterparts that score higher, and half of those that tie.
        false: (Q,) long, number of false counterparts of each query.
        tied: (Q,) bool, whether a false one scores as the best true one.
    """

    query: Tensor
    answer: Tensor
    above: Tensor
    outscored: Tensor
    false: Tensor
    tied: Tensor

    @property
    def counts(self) -> Tensor:
        """(Q,) long, true counterparts of each query."""
        return torch.bincount(self.query, minlength=len(self.false))

    @property
    def order(self) -> Tensor:
        """(P,) long, number of better true counterparts of the same query."""
        counts = self.counts
        return torch.arange(len(self.query)) - (counts.cumsum(0) - counts)[self.query]

    @property
    def place(self) -> Tensor:
        """(P,) long, rank from 0 among all counterparts that are true or false."""
        return self.above + self.order

    def only(self, chosen: Tensor) -> TruePlaces:
        """The same without some true pairs, which are left out as if they were not known.

        Args:
            chosen: (P,) bool, pairs that stay.
        """
        return TruePlaces(
            self.query[chosen],
            self.answer[chosen],
            self.above[chosen],
            self.outscored[chosen],
            self.false,
            self.tied,
        )

    def sum(self, values: Tensor) -> Tensor:
        """(Q,) double, sums over the true counterparts of each query of (P,) values."""
        total = torch.zeros(len(self.false), dtype=torch.float64)
        return total.index_add_(0, self.query, values.double())


@final
class TruePlacesReducer(ScoreReducer):
    """Count the false scores above every true one, in one direction.

    Args:
        query: the side of the queries.
        true: rows of the true pairs, or a predicate.
        text_to_image: (T,) image row that each text describes, -1 for none: the order of the pass.
        false: rows of the pairs that are known to be false, none of them true; None for all that
            are not true.
    """

    concurrent = True
    cost = 20.0

    def __init__(
        self,
        query: Side,
        true: Pairs | TrueInTile,
        text_to_image: Tensor,
        false: Pairs | None = None,
    ) -> None:
        self.query, self.true, self.false = query, true, false
        self.look_ahead = text_to_image
        self.everywhere = not isinstance(true, Pairs)
        self.extra_positives = true if isinstance(true, Pairs) else None

    def prepare(self, images: int, texts: int, device: torch.device) -> None:
        self._queries = images if self.query == "image" else texts
        self._found: list[Tensor] = []  # (n, 3) query, answer, bits of the score
        self._device = device
        if isinstance(self.true, Pairs):
            self.true = self.extra_positives = self.true.to(device)
        self.false = self.false and self.false.to(device)

    def observe(self, tile: ScoreTile) -> None:
        """Note the scores of the true pairs."""
        if isinstance(self.true, Pairs):
            row, column = tile.places(self.true)
        else:
            row, column = self.true(tile.images, tile.texts).nonzero(as_tuple=True)
        if len(row):
            query, answer = self._sides(tile.images[row], tile.texts[column])
            flat = self._flat(query, tile.scores[row, column])
            self._found.append(torch.stack([flat, answer], 1))

    def synchronize(self) -> None:
        """Take the true scores of all processes, and sort them."""
        here = torch.cat([torch.zeros(0, 2, dtype=torch.long, device=self._device), *self._found])
        most = distributed.all_reduce_max(len(here))
        padded = here.new_full((most, 2), -1)
        padded[: len(here)] = here
        found = distributed.gather(padded).flatten(0, 1)
        found = found[found[:, 0] >= 0]
        # ascending: query, then score; of equal scores the higher row first, which ranks behind
        found = found[found[:, 1].argsort(descending=True, stable=True)]
        found = found[found[:, 0].argsort(stable=True)]
        self._levels, self._answers = found[:, 0].contiguous(), found[:, 1].contiguous()
        self._owner = self._levels >> 32
        group = torch.unique_consecutive(self._levels, return_inverse=True)[1]
        self._group, self._in_group = group, (group << 32) + (_LAST - self._answers)
        # a false score stands behind the n lowest true ones of all queries: in the slot of its
        # query and n, one for each true score and one above them
        slots = len(self._levels) + self._queries
        self._counted = torch.zeros(3, slots, dtype=torch.long, device=self._device)
        del self._found

    def update(self, tile: ScoreTile) -> None:
        """Count the false scores of a tile."""
        query, answer, scores = self._false_in(tile)
        flat = self._flat(query, scores)
        below = torch.searchsorted(self._levels, flat)
        self._count(0, below + query)
        if not len(self._levels):
            return
        at = below.clamp(max=len(self._levels) - 1)
        tied = self._levels[at] == flat
        if bool(tied.any()):
            query, at, flat = query[tied], at[tied], flat[tied]
            reach = (self._group[at] << 32) + (_LAST - answer[tied])
            by_row = torch.searchsorted(self._in_group, reach)
            last = torch.searchsorted(self._levels, flat, right=True)
            for rule, places in ((1, by_row), (2, last)):
                self._count(rule, places + query)
                self._count(rule, at + query, -1)

    def merge(self) -> None:
        self._counted = distributed.gather(self._counted).sum(0)

    def places(self, tie: Tie = "row") -> TruePlaces:
        """Return the places by a rule of ties, see `Ranks`.

        Raises:
            ValueError: an unknown tie rule.
        """
        parse_literal(Tie, tie, "a tie rule")
        optimistic = self._counted[0].cpu()
        by_row, pessimistic = (optimistic + moved.cpu() for moved in self._counted[1:])
        query, numbers = self._owner.cpu(), torch.arange(len(self._owner))
        counts = torch.bincount(query, minlength=self._queries)
        ends = counts.cumsum(0) + torch.arange(self._queries)  # last slot of each query
        above = []
        for counted in (optimistic, by_row, pessimistic):
            total = counted.cumsum(0)
            above.append(total[ends[query]] - total[numbers + query])
        total = torch.cat([torch.zeros(1, dtype=torch.long), optimistic.cumsum(0)])
        false = total[ends + 1] - total[ends - counts]
        chosen = above[("optimistic", "row", "pessimistic").index(tie)]
        order = (query * (len(query) + 1) - numbers).argsort()  # by query, the best first
        tied = torch.zeros(self._queries, dtype=torch.bool)
        highest = (counts.cumsum(0) - 1)[counts > 0]
        tied[query[highest]] = above[2][highest] > above[0][highest]
        outscored = (above[0] + above[2]).double() / 2
        answers = self._answers.cpu()
        return TruePlaces(
            query[order], answers[order], chosen[order], outscored[order], false, tied
        )

    def _sides(self, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Query and counterpart."""
        return (images, texts) if self.query == "image" else (texts, images)

    def _flat(self, query: Tensor, scores: Tensor) -> Tensor:
        """One number that orders by query, then by score."""
        return (query << 32) + ((rank_keys(scores, torch.zeros_like(query)) >> 32) + 2**31)

    def _false_in(self, tile: ScoreTile) -> tuple[Tensor, Tensor, Tensor]:
        """Query, counterpart and score of every false pair of a tile."""
        if self.false is not None:
            row, column = tile.places(self.false)
            query, answer = self._sides(tile.images[row], tile.texts[column])
            return query, answer, tile.scores[row, column]
        false = torch.ones_like(tile.scores, dtype=torch.bool)
        answers = self._answers
        images, texts = self._sides(self._owner, answers)
        false[tile.places(Pairs(images, texts))] = False
        row, column = false.nonzero(as_tuple=True)
        query, answer = self._sides(tile.images[row], tile.texts[column])
        return query, answer, tile.scores[row, column]

    def _count(self, rule: int, slots: Tensor, number: int = 1) -> None:
        self._counted[rule].index_add_(0, slots, torch.full_like(slots, number))
