"""One pass over a score matrix that is never held whole.

Mining, evaluation and search all read the matrix through `stream_scores`; they differ in the
reducer.

The pass
--------
*Before any score.* `tile_shape` cuts the matrix into a grid that depends on the models' encodings
and the kind of device only. Rows of tiles ("blocks", of images) are dealt out to the processes.

*Phase 1, look-ahead*, if a reducer asks for it (`ScoreReducer.look_ahead`): ranks and relative
filters compare every score with the score of the query's true pair, so they must know that one
first. The tiles that hold a true pair are scored and shown to `observe`; `synchronize` then
exchanges the results, and from there on the thresholds are fixed. Texts are sorted by their image
beforehand, which moves the true pairs close to a diagonal: the look-ahead scores about as many
tiles as there are blocks and columns, not all of their product. Tiles for which there is memory
are kept for phase 2. (Scoring the true pairs on their own would be simpler, but a product of
another shape may round differently, and a true score that is off by one bit is a rank that is off
by one.)

*Phase 2, the pass.* Every tile is scored, or taken from those kept, on exactly one process, and
shown to `update` once. `merge` combines the processes.

*On several cores* of a CPU, where items have one vector each, a product is so fast that the
reducers, which use one core, may take most of the time. Then each core scores tiles of its own and
folds them in. Tiles that are being scored at the same time share neither images nor texts, and a
reducer changes only what belongs to a tile's images or to its texts: no thread waits for another's
lists. For that, `_turns` walks along the diagonals of as many columns as there are cores:

    columns        1  2  3         turn 1: (A, 1) (B, 2) (C, 3)
    blocks    A    1  3  2         turn 2: (B, 1) (C, 2) (A, 3)
              B    2  1  3         turn 3: (C, 1) (A, 2) (B, 3)
              C    3  2  1

Why the result does not depend on memory, processes or interruptions: a pair is always scored in
the same tile, by a product of the same shape (the last tiles are padded), so its score has the
same bits in both phases, on every process and after a restart. `memory` decides only how often
texts are copied to the device and how many tiles are scored twice. Reducers depend neither on the
order of the tiles nor on who folds them in. Tiles of another *size* may round scores differently
in the last bit; given equal scores, the results are the same for any grid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import groupby, islice
from typing import Protocol, TypeAlias, TypeVar, final

import torch
from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.console import progress
from counterfoil.core.types import Embeddings, Pairs
from counterfoil.scoring.checkpoint import StreamCheckpoint
from counterfoil.scoring.encode import (
    EmbeddedDataset,
    ScoreTile,
    cut_tiles,
    device_of,
    evaluation_mode,
    nan_error,
    spread_order,
    take_rows,
    tile_shape,
)

MEMORY = 512 * 2**20
_MULTIPLY = 50  # products of two numbers in a ns, on one core
_CROWDED = 1.25  # slowdown of a core's product while the others compute products of their own
_Place: TypeAlias = tuple[int, int]  # of a tile in the grid: image block, text column
_Job: TypeAlias = tuple[_Place, Callable[[], "ScoreTile"]]
_A = TypeVar("_A")
_B = TypeVar("_B")


class ScoreReducer(ABC):
    """Folds the tiles of a score matrix into a small result, the same for any size and order.

    Called in this order: `prepare`; with a look-ahead, `observe` for every tile that holds a true
    pair, then `synchronize`; `update` for every tile; `merge`.

    Attributes:
        concurrent: whether `update` may run in several threads on tiles that share neither images
            nor texts.
        cost: roughly the ns in which one core takes in a score by `update`.
        look_ahead: (T,) image row that each text describes, -1 for none; when given, `observe` sees
            every tile that holds a true pair before `update` sees any tile.
        extra_positives: rows of further true pairs to look ahead to.
        everywhere: whether a tile anywhere may hold a true pair; the look-ahead sees all of them.
    """

    concurrent: bool = False
    cost: float = 0.5
    look_ahead: Tensor | None = None
    extra_positives: Pairs | None = None
    everywhere: bool = False

    @abstractmethod
    def prepare(self, images: int, texts: int, device: torch.device) -> None:
        """Allocate for a matrix of this size whose tiles are on `device`."""

    def observe(self, tile: ScoreTile) -> None:  # noqa: B027 - most reducers need no look-ahead
        """Read a tile with true pairs before the pass."""

    def synchronize(self) -> None:  # noqa: B027
        """Exchange the result of the look-ahead with the other processes."""

    @abstractmethod
    def update(self, tile: ScoreTile) -> None:
        """Fold in a tile; each one comes once, on one of the processes."""

    @abstractmethod
    def merge(self) -> None:
        """Combine with the same reducer on the other processes."""


def stream_scores(
    members: Sequence[EmbeddedDataset],
    reducers: Sequence[ScoreReducer],
    *,
    memory: int = MEMORY,
    device: torch.device | str | None = None,
    tile: tuple[int, int] | None = None,
    checkpoint: StreamCheckpoint | None = None,
) -> None:
    """Show every tile of the score matrix to every reducer, then merge across processes.

    The score is the mean over members.

    Args:
        members: models with their encodings of the same images and texts.
        reducers: what to compute from the matrix.
        memory: bytes for encodings on the device and tiles kept from the look-ahead.
        device: where to compute; by default where the first member's parameters are, or its
            encodings if it has none.
        tile: images and texts per tile.
        checkpoint: saves progress on the way, and resumes from what an earlier pass has saved.

    Raises:
        ValueError: no member, members of different sizes, a NaN score, or a checkpoint of another
            pass.
        WorkStopped: the checkpoint's `stop` asked for it.
    """
    images, texts = _sizes(members)
    where = device_of(members[0]) if device is None else torch.device(device)
    for reducer in reducers:
        reducer.prepare(images, texts, where)
    with evaluation_mode(member.model for member in members):
        high, wide = tile or tile_shape(members, where)
        _Pass(members, reducers, high, wide, memory, where, checkpoint).run()


def _sizes(members: Sequence[EmbeddedDataset]) -> tuple[int, int]:
    sizes = {(len(member.images), len(member.texts)) for member in members}
    if len(sizes) != 1:
        listed = ", ".join(f"{i} x {t}" for i, t in sorted(sizes)) or "none"
        raise ValueError(
            f"members must have encoded the same images and texts, but their sizes are {listed}; "
            "encode one split with every member"
        )
    return sizes.pop()


@final
class _Pass:
    """One pass of this process."""

    def __init__(
        self,
        members: Sequence[EmbeddedDataset],
        reducers: Sequence[ScoreReducer],
        high: int,
        wide: int,
        memory: int,
        device: torch.device,
        checkpoint: StreamCheckpoint | None,
    ) -> None:
        images, texts = _sizes(members)
        self.members, self.reducers, self.device = members, reducers, device
        self.high, self.wide, self.memory = high, wide, memory
        self.checkpoint = checkpoint
        self.relations = [r.look_ahead for r in reducers if r.look_ahead is not None]
        self.blocks = cut_tiles(torch.arange(images), high)  # image rows of each row of tiles
        self.columns = cut_tiles(self._text_order(texts), wide)  # text rows of each column
        self.open_blocks: list[int] = []  # this process's blocks with tiles left
        # its share of the blocks that a checkpoint has finished; only the look-ahead scores these
        # again: thresholds are not saved, they are the same when read anew
        self.done_blocks: list[int] = []
        self.todo: set[_Place] = set()  # tiles that this process has to show to `update`
        # tiles of the look-ahead that wait for phase 2; each is released when it is used
        self.saved: dict[_Place, ScoreTile] = {}
        self.workers = self._workers()

    def run(self) -> None:
        """Look ahead if a reducer needs it, then pass over all tiles that are not done."""
        done = self._begin()
        with _threads(self.workers) as run_all:
            if self.relations:
                self._look_ahead(run_all)
                for reducer in self.reducers:
                    reducer.synchronize()
            self._pass(done, run_all)
        for reducer in self.reducers:
            reducer.merge()

    def _pass(self, done: Tensor, run_all: _Map) -> None:
        """Show all tiles that are not done to the reducers."""
        turns = enumerate(self._turns(self.todo, self.open_blocks))
        jobs = ((turn, job) for turn, together in turns for job in together)
        with progress("tiles scored", done.numel(), int(done.sum())) as advance:
            left = int((~done).sum())
            # With a checkpoint, tiles come in rounds: between two, all processes agree whether to
            # save or to stop, and they take part in the same number of rounds.
            rounds = self.checkpoint.rounds(len(self.todo)) if self.checkpoint else (left,)
            for count in rounds:
                for _, together in groupby(islice(jobs, count), lambda job: job[0]):
                    for place in run_all(self._visit, (job for _, job in together)):
                        if self.checkpoint:
                            self.checkpoint.mark_done(place)
                        advance(min(left, distributed.size()))  # the first process stands for all
                        left -= min(left, distributed.size())
            advance(left)  # tiles of processes that had more to do than the first

    def _begin(self) -> Tensor:
        """Resume and deal out the blocks; returns the (blocks, columns) bool of finished tiles.

        Blocks are dealt in the order of `spread_order`, so that every process has some of all over
        the matrix.
        """
        shape = len(self.blocks), len(self.columns)
        done = torch.zeros(shape, dtype=torch.bool)
        if self.checkpoint:
            done = self.checkpoint.begin(shape, (self.high, self.wide))
        full = done.all(1).tolist() if self.checkpoint else [False] * shape[0]
        share = slice(distributed.rank(), None, distributed.size())
        self.open_blocks = [block for block in spread_order(shape[0]) if not full[block]][share]
        self.done_blocks = [block for block in spread_order(shape[0]) if full[block]][share]
        self.todo = {(b, c) for b in self.open_blocks for c in range(shape[1]) if not done[b, c]}
        return done

    def _visit(self, job: _Job) -> _Place:
        """Show one tile to the reducers."""
        place, score = job
        tile = score()
        for reducer in self.reducers:
            reducer.update(tile)
        return place

    def _workers(self) -> int:
        """Return the number of tiles to score at the same time."""
        single = all(m.images.mask.shape[1] == m.texts.mask.shape[1] == 1 for m in self.members)
        concurrent = single and all(reducer.concurrent for reducer in self.reducers)
        if self.device.type != "cpu" or not concurrent:
            return 1
        # Few tiles leave cores idle, where one product for all cores may be faster. The whole grid
        # decides, not this process's share of it, so that a resumed pass decides alike.
        cores = torch.get_num_threads()
        workers = max(1, min(cores, len(self.blocks), len(self.columns)))
        product = sum(m.images.tokens.shape[2] for m in self.members) / _MULTIPLY
        fold = sum(reducer.cost for reducer in self.reducers)
        together, apart = product / cores + fold, (product * _CROWDED + fold) / workers
        return workers if apart <= together else 1

    def _text_order(self, texts: int) -> Tensor:
        """Return the text rows, by image if there is a look-ahead; texts of no image come last."""
        if not self.relations:
            return torch.arange(texts)
        image = self.relations[0].cpu()
        return torch.where(image < 0, texts + len(image), image).argsort(stable=True)

    def _look_ahead(self, run_all: _Map) -> None:
        """Show the tiles with true pairs to `observe`, and keep those for which there is memory."""
        room = self.memory // 2 // (4 * self.high * self.wide)
        observers = [reducer for reducer in self.reducers if reducer.look_ahead is not None]
        turns = self._turns(self._true_tiles(), self.open_blocks + self.done_blocks)
        jobs = (job for together in turns for job in together)
        while several := list(islice(jobs, self.workers)):
            for place, tile in run_all(lambda job: (job[0], job[1]()), several):
                for reducer in observers:
                    reducer.observe(tile)
                if place in self.todo and len(self.saved) < room:
                    self.saved[place] = tile

    def _true_tiles(self) -> set[_Place]:
        """Return the tiles of this process's blocks that hold a true pair."""
        blocks = {*self.open_blocks, *self.done_blocks}
        if any(reducer.everywhere for reducer in self.reducers):
            return {(block, column) for block in blocks for column in range(len(self.columns))}
        places: set[_Place] = set()
        for text_to_image in self.relations:
            for column, rows in enumerate(self.columns):
                images = text_to_image.cpu()[rows]
                places |= {(b, column) for b in (images[images >= 0] // self.high).tolist()}
        for pairs in (r.extra_positives for r in self.reducers if r.extra_positives is not None):
            places |= self._places(pairs)
        return {place for place in places if place[0] in blocks}

    def _places(self, pairs: Pairs) -> set[_Place]:
        """Return the tiles that hold some of these pairs."""
        column = torch.empty(sum(map(len, self.columns)), dtype=torch.long)
        for place, rows in enumerate(self.columns):
            column[rows] = place
        blocks, columns = pairs.image.cpu() // self.high, column[pairs.text.cpu()]
        return set(zip(blocks.tolist(), columns.tolist(), strict=True))

    def _turns(self, wanted: set[_Place], blocks: list[int]) -> Iterator[list[_Job]]:
        """Yield jobs that score the wanted tiles; tiles of one list share no image and no text.

        Images of as many blocks as memory holds stay on the device while the texts pass by, so
        each column of texts is copied once for a group of blocks, and not at all where no tile
        of it is wanted.
        """
        order = spread_order(len(self.columns))
        for group in self._groups(blocks):
            images = {
                block: self._fetch([m.images for m in self.members], self.blocks[block], self.high)
                for block in group
            }
            abreast = min(self.workers, len(group))
            for start in range(0, len(order), abreast):
                texts: dict[int, list[Embeddings]] = {}
                for turn in range(len(group)):
                    jobs: list[_Job] = []
                    for shift, column in enumerate(order[start : start + abreast]):
                        # a Latin square: at each turn every column meets another block, and no
                        # two tiles that are scored together read or write the same items
                        block = group[(turn + shift) % len(group)]
                        place = block, column
                        if place not in wanted:
                            continue
                        if place in self.saved:
                            jobs.append((place, partial(self.saved.pop, place)))
                            continue
                        texts[column] = texts.get(column) or self._fetch(
                            [m.texts for m in self.members], self.columns[column], self.wide
                        )
                        tile = partial(self._tile, place, images[block], texts[column])
                        jobs.append((place, tile))
                    yield jobs

    def _groups(self, blocks: list[int]) -> list[list[int]]:
        """Cut the blocks into groups whose images take half of the memory at most."""
        parts = [part for m in self.members for part in (m.images.tokens, m.images.gram)]
        bytes_per_image = sum(p[:1].numel() * p.element_size() for p in parts if p is not None)
        most = max(1, self.memory // 2 // max(1, bytes_per_image * self.high))
        groups = max(1, -(-len(blocks) // most))
        count = max(1, -(-len(blocks) // groups))  # even groups leave no core idle in the last
        return [blocks[start : start + count] for start in range(0, len(blocks), count)]

    def _fetch(self, sides: list[Embeddings], rows: Tensor, size: int) -> list[Embeddings]:
        return [take_rows(side, rows, size, self.device) for side in sides]

    def _tile(self, place: _Place, images: list[Embeddings], texts: list[Embeddings]) -> ScoreTile:
        rows, columns = self.blocks[place[0]], self.columns[place[1]]
        total: Tensor | None = None
        for member, left, right in zip(self.members, images, texts, strict=True):
            scores = member.model.score_matrix(left, right).float()
            total = scores if total is None else total + scores
        assert total is not None
        mean = total if len(self.members) == 1 else total / len(self.members)
        # tiles at the border are padded to the size of the others, for the last digits of a product
        # depend on its shape; the padding goes here
        mean = mean[: len(rows), : len(columns)].contiguous()
        if bool(mean.amax().isnan()):  # a maximum passes NaN on
            image, text = mean.isnan().nonzero()[0].tolist()
            raise nan_error(int(rows[image]), int(columns[text]))
        return ScoreTile(mean, rows.to(self.device), columns.to(self.device))


class _Map(Protocol):
    """`map`, or that of a pool of threads."""

    def __call__(self, work: Callable[[_A], _B], items: Iterable[_A], /) -> Iterable[_B]: ...


@contextmanager
def _threads(count: int) -> Iterator[_Map]:
    """Start threads that compute on one core each; for a single one, nothing changes.

    Inference mode and autocast are set per thread, so the workers are given those of this one.
    """
    if count == 1:
        yield map
        return
    cores, inference = torch.get_num_threads(), torch.is_inference_mode_enabled()
    half, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def run_all(work: Callable[[_A], _B], items: Iterable[_A]) -> Iterable[_B]:
        def one(item: _A) -> _B:
            # inference_mode(False) turns gradients on, so that no_grad comes after it
            autocast = torch.autocast("cpu", dtype, enabled=half)
            with torch.inference_mode(inference), torch.no_grad(), autocast:
                return work(item)

        return pool.map(one, items)

    try:
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield run_all
    finally:
        torch.set_num_threads(cores)  # a thread also sets what later ones begin with
