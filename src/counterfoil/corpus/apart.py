"""Orders in which what must not meet is drawn in different batches."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.relation import Relation
from counterfoil.records import Pairs


def apart(rows: Tensor, clashes: Pairs, batch: int) -> Tensor:
    """The same rows in nearly the same order, no two that clash in a batch.

    Who clashes changes places with the next that may stand there. Where nobody may, as in data of
    a batch or two, they meet.

    Args:
        rows: (N,) in the order in which they are drawn, each once.
        clashes: rows that must not meet.
        batch: how many are drawn together.

    >>> apart(torch.tensor([3, 1, 0, 2]), Pairs(torch.tensor([3]), torch.tensor([1])), 2)
    tensor([3, 0, 1, 2])
    """
    order = _Order(rows, clashes, batch)
    for row in sorted(order.against):
        order.move(row)
    return torch.tensor(order.rows, dtype=torch.long)


def texts_apart(relation: Relation) -> Pairs | None:
    """Captions that must not meet: those judged true of an image, and its own ones."""
    besides = relation.besides
    if besides is None:
        return None
    own, counts = relation.captions(besides.image)
    return Pairs(besides.text.repeat_interleave(counts), own)


def images_apart(relation: Relation) -> Pairs | None:
    """Images that must not meet, for a caption of the one was judged true of the other."""
    besides = relation.besides
    if besides is None:
        return None
    own = relation.owner[besides.text]
    return Pairs(own[own >= 0], besides.image[own >= 0])


def against(clashes: Pairs | None) -> dict[int, set[int]]:
    """Of every row that clashes with any, with whom.

    >>> against(Pairs(torch.tensor([3, 2]), torch.tensor([1, 2])))
    {3: {1}, 1: {3}}
    """
    found: dict[int, set[int]] = {}
    if clashes is None:
        return found
    for one, other in zip(clashes.image.tolist(), clashes.text.tolist(), strict=True):
        if one != other:
            found.setdefault(one, set()).add(other)
            found.setdefault(other, set()).add(one)
    return found


@final
class _Order:
    """Rows on their places, and who must not stand in a batch with whom."""

    def __init__(self, rows: Tensor, clashes: Pairs, batch: int) -> None:
        self.rows, self.batch = rows.tolist(), batch
        self.place = {row: place for place, row in enumerate(self.rows)}
        self.against = {
            row: here
            for row, foes in against(clashes).items()
            if row in self.place and (here := foes & self.place.keys())
        }

    def move(self, row: int) -> None:
        """Exchange a row with another one, if somebody is in its batch who must not be."""
        here, many = self.place[row], len(self.rows)
        if not self._clashes(row, here):
            return
        for step in range(1, many):
            there = (here + step) % many
            other = self.rows[there]
            if there // self.batch == here // self.batch:
                continue
            if not self._clashes(row, there, other) and not self._clashes(other, here, row):
                self.rows[here], self.rows[there] = other, row
                self.place[row], self.place[other] = there, here
                return

    def _clashes(self, row: int, place: int, but: int = -1) -> bool:
        """Whether somebody who must not be stands in the batch of a place, one of them apart."""
        batch = place // self.batch
        foes = self.against.get(row, set())
        return any(foe != but and self.place[foe] // self.batch == batch for foe in foes)
