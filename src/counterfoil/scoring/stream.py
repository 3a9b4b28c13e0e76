"""One pass over a score matrix that is never held whole.

Mining, evaluation and search all read the matrix through here; they differ in the reducer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import final

import torch
from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.console import progress
from counterfoil.core.types import Embeddings, Pairs
from counterfoil.scoring.checkpoint import StreamCheckpoint
from counterfoil.scoring.encode import (
    EmbeddedDataset,
    ScoreTile,
    assign_tiles,
    check_finite,
    cut_tiles,
    device_of,
    evaluation_mode,
    pick_tiles,
    tile_shape,
)

MEMORY = 512 * 2**20


class ScoreReducer(ABC):
    """Folds tiles into something small, the same whatever their size, order and number.

    Attributes:
        ahead: (T,) owner of each text; when given, every tile that holds a true pair is shown to
            `look` before any tile is shown to `update`.
        besides: rows of pairs that are true besides, for the same purpose.
    """

    ahead: Tensor | None = None
    besides: Pairs | None = None

    @abstractmethod
    def start(self, images: int, texts: int, device: torch.device) -> None:
        """Make room for a matrix of this size, where its tiles will be."""

    def look(self, tile: ScoreTile) -> None:  # noqa: B027 - most reducers need no look ahead
        """See a tile with true pairs before the pass."""

    def agree(self) -> None:  # noqa: B027
        """Exchange what was seen ahead with every other process."""

    @abstractmethod
    def update(self, tile: ScoreTile) -> None:
        """Fold in a tile; every one comes once, on one of the processes."""

    @abstractmethod
    def merge(self) -> None:
        """Combine with the same reducer on every other process."""


def stream_scores(
    members: Sequence[EmbeddedDataset],
    reducers: Sequence[ScoreReducer],
    *,
    memory: int = MEMORY,
    device: torch.device | str | None = None,
    tile: tuple[int, int] | None = None,
    keeper: StreamCheckpoint | None = None,
) -> None:
    """Show every tile of the score matrix to every reducer, then merge across processes.

    The score is the mean over members. Tiles lie on a grid that depends on the members alone (or
    is given), so results depend neither on `memory` nor on the number of processes; those deal
    out the image blocks among themselves.

    Args:
        members: models with their encodings of the same images and texts.
        reducers: what to make of the matrix.
        memory: bytes for encodings on the device and tiles kept for a second look.
        device: where to compute; by default where the first member's parameters are, or its
            encodings if it has none.
        tile: images and texts per tile.
        keeper: saves on the way, and takes up what an earlier sweep has saved.

    Raises:
        ValueError: no member, members of different sizes, a score that is not a number, or what
            was saved is of something else.
        WorkStopped: the keeper was asked to stop.
    """
    images, texts = _sizes(members)
    where = device_of(members[0]) if device is None else torch.device(device)
    for reducer in reducers:
        reducer.start(images, texts, where)
    with evaluation_mode(member.model for member in members):
        high, wide = tile or tile_shape(members, where)
        _Pass(members, reducers, high, wide, memory, where, keeper).run()


def _sizes(members: Sequence[EmbeddedDataset]) -> tuple[int, int]:
    sizes = {(len(member.images), len(member.texts)) for member in members}
    if len(sizes) != 1:
        found = ", ".join(f"{i} x {t}" for i, t in sorted(sizes)) or "none"
        raise ValueError(
            f"members must have encoded the same images and texts, but their sizes are {found}; "
            "encode one split with every member"
        )
    return sizes.pop()


@final
class _Pass:
    """One sweep: the grid, the tiles of this process, and those kept from the look ahead."""

    def __init__(
        self,
        members: Sequence[EmbeddedDataset],
        reducers: Sequence[ScoreReducer],
        high: int,
        wide: int,
        memory: int,
        device: torch.device,
        keeper: StreamCheckpoint | None,
    ) -> None:
        images, texts = _sizes(members)
        self.keeper = keeper
        self.members, self.reducers, self.device = members, reducers, device
        self.high, self.wide, self.memory = high, wide, memory
        self.aheads = [r.ahead for r in reducers if r.ahead is not None]
        self.blocks = cut_tiles(torch.arange(images), high)
        self.columns = cut_tiles(self._order(texts), wide)
        self.kept: dict[tuple[int, int], ScoreTile] = {}

    def run(self) -> None:
        """Look ahead where a reducer asks for it, then pass over all that is not done."""
        done = self._begin()
        if self.aheads:
            self._look()
            for reducer in self.reducers:
                reducer.agree()
        tiles = self._tiles(self.todo, self.mine)
        with progress("tiles scored", done.numel(), int(done.sum())) as advance:
            left = int((~done).sum())
            for many in self.keeper.rounds(len(self.todo)) if self.keeper else (left,):
                for place, tile in islice(tiles, many):
                    self._visit(place, tile)
                    advance(min(left, distributed.size()))  # the first process stands for all
                    left -= min(left, distributed.size())
            advance(left)  # of those with more to do
        for reducer in self.reducers:
            reducer.merge()

    def _begin(self) -> Tensor:
        """Deal out the image blocks with tiles left, and the others; (blocks, columns) done."""
        shape = len(self.blocks), len(self.columns)
        done = torch.zeros(shape, dtype=torch.bool)
        if self.keeper:
            done = self.keeper.begin(shape, (self.high, self.wide))
        full = done.all(1).tolist() if self.keeper else [False] * shape[0]
        share = slice(distributed.rank(), None, distributed.size())
        self.mine = [block for block in assign_tiles(shape[0]) if not full[block]][share]
        self.past = [block for block in assign_tiles(shape[0]) if full[block]][share]
        self.todo = {(b, c) for b in self.mine for c in range(shape[1]) if not done[b, c]}
        return done

    def _visit(self, place: tuple[int, int], tile: ScoreTile) -> None:
        for reducer in self.reducers:
            reducer.update(tile)
        if self.keeper:
            self.keeper.did(place)

    def _order(self, texts: int) -> Tensor:
        """Text rows, those of one image together where true pairs must be found ahead."""
        if not self.aheads:
            return torch.arange(texts)
        text_to_image = self.aheads[0].cpu()
        return torch.where(text_to_image < 0, texts + len(text_to_image), text_to_image).argsort(
            stable=True
        )

    def _look(self) -> None:
        """Show the tiles with true pairs, and keep those for which there is memory."""
        room = self.memory // 2 // (4 * self.high * self.wide)
        looking = [reducer for reducer in self.reducers if reducer.ahead is not None]
        for place, tile in self._tiles(self._true_tiles(), self.mine + self.past):
            for reducer in looking:
                reducer.look(tile)
            if place in self.todo and len(self.kept) < room:
                self.kept[place] = tile

    def _true_tiles(self) -> set[tuple[int, int]]:
        mine = {*self.mine, *self.past}
        found: set[tuple[int, int]] = set()
        for text_to_image in self.aheads:
            for column, rows in enumerate(self.columns):
                owners = text_to_image.cpu()[rows]
                blocks = set((owners[owners >= 0] // self.high).tolist())
                found |= {(block, column) for block in blocks if block in mine}
        for besides in (r.besides for r in self.reducers if r.besides is not None):
            found |= {place for place in self._places(besides) if place[0] in mine}
        return found

    def _places(self, pairs: Pairs) -> set[tuple[int, int]]:
        """The tiles that hold some of these pairs."""
        column = torch.empty(sum(map(len, self.columns)), dtype=torch.long)
        for place, rows in enumerate(self.columns):
            column[rows] = place
        blocks, columns = pairs.image.cpu() // self.high, column[pairs.text.cpu()]
        return set(zip(blocks.tolist(), columns.tolist(), strict=True))

    def _tiles(
        self, wanted: set[tuple[int, int]], blocks: list[int]
    ) -> Iterator[tuple[tuple[int, int], ScoreTile]]:
        """The wanted tiles; texts are fetched once for as many image blocks as memory holds."""
        for group in self._groups(blocks):
            images = {
                block: self._fetch([m.images for m in self.members], self.blocks[block], self.high)
                for block in group
            }
            for column in assign_tiles(len(self.columns)):
                todo = [block for block in group if (block, column) in wanted]
                texts: list[Embeddings] = []
                for block in todo:
                    place = (block, column)
                    if place in self.kept:
                        yield place, self.kept.pop(place)
                        continue
                    texts = texts or self._fetch(
                        [m.texts for m in self.members], self.columns[column], self.wide
                    )
                    yield place, self._tile(place, images[block], texts)

    def _groups(self, blocks: list[int]) -> list[list[int]]:
        size = sum(
            part.numel() * part.element_size()
            for m in self.members
            for part in (
                m.images.tokens[:1],
                *(() if m.images.gram is None else (m.images.gram[:1],)),
            )
        )
        many = max(1, self.memory // 2 // max(1, size * self.high))
        return [blocks[start : start + many] for start in range(0, len(blocks), many)]

    def _fetch(self, sides: list[Embeddings], rows: Tensor, size: int) -> list[Embeddings]:
        return [pick_tiles(side, rows, size, self.device) for side in sides]

    def _tile(
        self, place: tuple[int, int], images: list[Embeddings], texts: list[Embeddings]
    ) -> ScoreTile:
        rows, columns = self.blocks[place[0]], self.columns[place[1]]
        total: Tensor | None = None
        for member, left, right in zip(self.members, images, texts, strict=True):
            scores = member.model.score_matrix(left, right).float()
            total = scores if total is None else total + scores
        assert total is not None
        mean = total if len(self.members) == 1 else total / len(self.members)
        mean = mean[: len(rows), : len(columns)].contiguous()
        _refuse_nan(mean, rows, columns)
        return ScoreTile(mean, rows.to(self.device), columns.to(self.device))


def _refuse_nan(scores: Tensor, rows: Tensor, columns: Tensor) -> None:
    if not bool(scores.amax().isnan()):  # a maximum passes NaN on
        return
    image, text = scores.isnan().nonzero()[0].tolist()
    raise check_finite(int(rows[image]), int(columns[text]))
