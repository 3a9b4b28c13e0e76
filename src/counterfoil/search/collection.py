"""One modality of an index: vectors with their entries, and writes that are staged first.

On disk a collection is a list of *parts*, each written once: ``NAME.npy`` (N, D) vectors,
``NAME.numbers.npy`` (N,) their numbers, ascending, and ``NAME.jsonl`` an entry a line. A vector
keeps its number for good; deletion only lists the number as dead. The state of the index names the
parts that count, so a write adds files beside them and then replaces that one state.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn.functional import pad

from counterfoil.core.io import read_array, write_array, write_text
from counterfoil.scoring.reducers import (
    NOTHING,
    best_columns,
    rank_keys,
    rows_of,
    scores_of,
    sort_descending,
)
from counterfoil.search.ann import AnnBackend, NumberedVectors

Array = npt.NDArray[Any]

# Every matrix product has the shape (_QUERIES, D) x (D, _ROWS), padded with zeros: BLAS picks its
# kernel, and with it the order of summation, by the shape. So equal vectors get equal scores
# wherever they lie, and a query the same scores alone as among others.
_QUERIES = 16
_ROWS = 4096
_CANDIDATES_PER_RESULT = 10
_MIN_CANDIDATES = 64
_MAX_PARTS = 16  # more parts are merged into one
_MIN_DEAD = 64  # fewer dead rows never cause a merge


@final
@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What a vector stands for; its fields are the keys on disk.

    Attributes:
        id: the data set's own id of the image or text.
        text: the caption; "" of an image.
        image: id of the image that a text describes, "" for none.
        place: path of an image file, "" for none; relative if the file lies in the index.
        content: digest of an image, to recognise it; "" if unknown.
        stamp: size and modification time of the image file; "" if they cannot prove it unchanged.
    """

    id: str
    text: str = ""
    image: str = ""
    place: str = ""
    content: str = ""
    stamp: str = ""


@final
class CollectionState(BaseModel):
    """The committed state of a collection; its fields are the keys on disk.

    Attributes:
        parts: names of the parts, in the order of numbers.
        dead: numbers that are in the parts and were deleted.
        next: number of the next vector; no number is used twice.
        finder: name under which the ANN backend is opened, "" if it stores nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    parts: tuple[str, ...] = ()
    dead: tuple[int, ...] = ()
    next: int = Field(default=0, ge=0)
    finder: str = ""

    @property
    def files(self) -> set[str]:
        """Names of all files that the state refers to."""
        endings = (".npy", ".numbers.npy", ".jsonl")
        return {self.finder} | {f"{name}{ending}" for name in self.parts for ending in endings}


@final
@dataclass(frozen=True, eq=False)
class NewVectors:
    """Vectors to be added to a collection.

    Attributes:
        entries: of the items, in the same order.
        vectors: (N, D) float.
    """

    entries: Sequence[IndexEntry]
    vectors: Tensor


@final
@dataclass(frozen=True, eq=False)
class StagedWrite:
    """A write whose files are on disk and that waits for its commit.

    Attributes:
        state: of the collection after the commit.
        removed: (n,) long numbers that the commit deletes.
    """

    state: CollectionState
    removed: Tensor


@final
class CollectionPart:
    """Vectors that were written together, memory-mapped.

    Raises:
        ValueError: a file is missing, damaged or of another width.

    Attributes:
        name: of the files.
        vectors: (N, D) float32 or float16, mapped copy-on-write.
        numbers: (N,) int64.
    """

    def __init__(self, folder: Path, name: str, width: int) -> None:
        self.name, self._entries_file = name, folder / f"{name}.jsonl"
        vectors = read_array(folder / f"{name}.npy", "a part of an index")
        self.numbers = read_array(
            folder / f"{name}.numbers.npy", "a part of an index", mapped=False
        )
        known_type = vectors.dtype in (np.float16, np.float32)
        if vectors.ndim != 2 or vectors.shape != (len(self.numbers), width) or not known_type:
            raise ValueError(
                f"{folder / name}.npy is {vectors.dtype.name} of shape {vectors.shape} and does "
                f"not fit an index of width {width}; make the index again"
            )
        assert isinstance(vectors, np.memmap)
        self.vectors: Array = np.memmap(  # copy-on-write: torch warns of arrays that are read-only
            folder / f"{name}.npy", vectors.dtype, "c", vectors.offset, vectors.shape
        )

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def entries(self) -> list[IndexEntry]:
        """The entry of every vector, read at first use."""
        path = self._entries_file
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            entries = [IndexEntry(**json.loads(line)) for line in lines]
        except FileNotFoundError:
            raise ValueError(
                f"{path} does not exist: another process has changed the index since, or it is "
                "damaged; open it again, and if that fails make it again"
            ) from None
        except (OSError, UnicodeDecodeError, ValueError, TypeError) as error:
            raise ValueError(
                f"{path} cannot be read as entries of an index: {error}; make the index again"
            ) from error
        if len(entries) != len(self):
            raise ValueError(
                f"{path} has {len(entries):,} entries for {len(self):,} vectors; make the index "
                "again"
            )
        return entries


@final
class Collection:
    """The images or the texts of an index.

    A *row* is a position in the collection, in the order of vector numbers. Rows do not change
    until the index is written to.

    Raises:
        ValueError: a file is missing or damaged.

    Attributes:
        folder: of the index.
        state: that is committed.
        width: D.
        backend: proposes candidates; None for exact search.
        parts: in the order of numbers.
        numbers: (R,) long, ascending.
        alive: (R,) bool, False for deleted rows.
    """

    def __init__(
        self, folder: Path, state: CollectionState, width: int, backend: AnnBackend | None = None
    ) -> None:
        self.folder, self.state, self.width, self.backend = folder, state, width, backend
        self.parts: Sequence[CollectionPart] = [
            CollectionPart(folder, name, width) for name in state.parts
        ]
        self._starts = np.cumsum([0, *(len(part) for part in self.parts)])
        numbers = np.concatenate([np.empty(0, np.int64), *(part.numbers for part in self.parts)])
        self.numbers = torch.from_numpy(numbers)
        if bool((self.numbers.diff() <= 0).any()):
            raise ValueError(f"the parts of {folder} do not fit together; make the index again")
        self.alive = ~torch.isin(self.numbers, torch.tensor(state.dead, dtype=torch.long))
        self._count = int(self.alive.sum())

    def __len__(self) -> int:
        return self._count

    @property
    def live_rows(self) -> Tensor:
        """(n,) long rows that are not deleted."""
        return self.alive.nonzero().squeeze(1)

    def live_vectors(self) -> NumberedVectors:
        """Numbers and vectors that are not deleted."""
        rows = self.live_rows
        return self.numbers[rows], self.vectors(rows)

    def entry(self, row: int) -> IndexEntry:
        """What a row stands for."""
        part = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self.parts[part].entries[row - int(self._starts[part])]

    def find(self, item_id: str) -> int | None:
        """The row of an id; None if there is none."""
        return self.rows.get(item_id)

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of every id."""
        return {self.entry(row).id: row for row in self.live_rows.tolist()}

    @cached_property
    def rows_by_image(self) -> dict[str, list[int]]:
        """Rows of the texts that describe each image, by image id."""
        rows: dict[str, list[int]] = {}
        for row in self.live_rows.tolist():
            rows.setdefault(self.entry(row).image, []).append(row)
        return rows

    def vectors(self, rows: Tensor) -> Tensor:
        """(n, D) float32 vectors of (n,) rows."""
        wanted = rows.numpy()
        part_of_row = np.searchsorted(self._starts, wanted, side="right") - 1
        out = np.empty((len(wanted), self.width), np.float32)
        for part in np.unique(part_of_row):
            here = part_of_row == part
            out[here] = self.parts[part].vectors[wanted[here] - self._starts[part]]
        return torch.from_numpy(out)

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k nearest rows of each query by inner product, best first; ties go to the lower row.

        Args:
            queries: (Q, D) float.
            k: how many.

        Returns:
            (Q, k) long rows, -1 where fewer exist, and (Q, k) float32 scores, -inf there.

        Raises:
            ValueError: k is below 1, or the queries are of another width.
        """
        if k < 1:
            raise ValueError(f"k is {k}, but at least 1 result is needed")
        if queries.dim() != 2 or queries.shape[1] != self.width:
            raise ValueError(
                f"queries of shape {tuple(queries.shape)} were given to an index of width "
                f"{self.width}"
            )
        queries = queries.detach().cpu().float()
        count = max(_CANDIDATES_PER_RESULT * k, _MIN_CANDIDATES)
        while self.backend is not None and count < len(self):
            rows = self._live_rows_of(self.backend.candidates(queries, count))
            if bool(((rows >= 0).sum(1) >= k).all()):
                keys = self._rank_candidates(queries, rows, k)
                return rows_of(keys), scores_of(keys)
            count *= 4  # too many candidates were deleted
        keys = self._rank_all(queries, k)
        return rows_of(keys), scores_of(keys)

    def _live_rows_of(self, numbers: Tensor) -> Tensor:
        """(Q, K) rows of proposed numbers; -1 for none, deleted and unknown ones."""
        rows = torch.searchsorted(self.numbers, numbers).clamp_(max=len(self.numbers) - 1)
        valid = (self.numbers[rows] == numbers) & self.alive[rows]
        return rows.masked_fill(~valid, -1)

    def _rank_candidates(self, queries: Tensor, rows: Tensor, k: int) -> Tensor:
        """(Q, k) rank keys of the best candidates, best first."""
        keys = []
        for query, own in zip(queries, rows):
            own = torch.unique(own[own >= 0])
            # a sum per row, not a product: a score must not depend on the other candidates
            scores = (self.vectors(own) * query).sum(1)
            keys.append(sort_descending(rank_keys(scores, own).unsqueeze(0))[:, :k])
        return torch.cat(keys)

    def _rank_all(self, queries: Tensor, k: int) -> Tensor:
        """(Q, k) rank keys of the best of all rows, best first."""
        groups = torch.split(pad(queries, (0, 0, 0, -len(queries) % _QUERIES)), _QUERIES)
        top = [torch.full((_QUERIES, k), NOTHING) for _ in groups]
        for start, part in zip(self._starts.tolist(), self.parts):
            for low in range(0, len(part), _ROWS):
                block = torch.from_numpy(part.vectors[low : low + _ROWS]).float()
                rows = torch.arange(start + low, start + low + len(block))
                full = block if len(block) == _ROWS else pad(block, (0, 0, 0, _ROWS - len(block)))
                for place, group in enumerate(groups):
                    scores = (group @ full.T)[:, : len(block)]
                    top[place] = self._merge(top[place], scores, rows)
        return sort_descending(torch.cat(top)[: len(queries)])

    def _merge(self, top: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
        """(q, k) rank keys of the best so far and of a block of scores."""
        # most columns reach no query's k-th score; leaving them out first makes the rest cheap
        threshold = scores_of(top.amin(1, keepdim=True))
        columns = (scores >= threshold).any(0) & self.alive[rows]
        keys = rank_keys(scores[:, columns], rows[columns].expand(len(scores), -1))
        return best_columns(torch.cat([top, keys], 1), top.shape[1]).contiguous()


def stage_write(
    collection: Collection,
    new: NewVectors | None,
    rows: Sequence[int],
    *,
    name: str,
    half: bool,
) -> StagedWrite:
    """Write the files of a change beside the committed ones.

    Args:
        collection: to be changed.
        new: vectors to add.
        rows: to delete.
        name: of the new files, not used before.
        half: store float16.

    Raises:
        ValueError: vectors are of another width, not finite, or too large for float16.
    """
    state = collection.state
    removed = collection.numbers[torch.tensor(list(rows), dtype=torch.long)]
    if new is not None and not len(new.entries):
        new = None
    if new is None and not len(removed):
        return StagedWrite(state, removed)
    added: NumberedVectors | None = None
    if new is not None:
        vectors = _checked_vectors(new, collection.width, half=half)
        added = torch.arange(state.next, state.next + len(vectors)), vectors
        _write_part(collection.folder, name, *added, new.entries, half=half)
        parts, following = (*state.parts, name), state.next + len(vectors)
        state = state.model_copy(update={"parts": parts, "next": following})
    dead = tuple(sorted({*state.dead, *removed.tolist()}))
    state = state.model_copy(update={"dead": dead})
    after = Collection(collection.folder, state, collection.width)
    state = _compacted(after, name, half=half)
    if collection.backend is not None:
        after = Collection(collection.folder, state, collection.width)
        finder = collection.backend.update(after, added, name)
        state = state.model_copy(update={"finder": finder})
    return StagedWrite(state, removed)


def _checked_vectors(new: NewVectors, width: int, *, half: bool) -> Tensor:
    """(N, D) float32 vectors on the CPU, fit to be stored."""
    vectors = new.vectors.detach().cpu().float()
    assert len(vectors) == len(new.entries)
    if vectors.dim() != 2 or vectors.shape[1] != width:
        raise ValueError(
            f"vectors of shape {tuple(vectors.shape)} were given to an index of width {width}"
        )
    if not bool(vectors.isfinite().all()):
        row = int((~vectors.isfinite().all(1)).nonzero()[0])
        raise ValueError(
            f"the vector of {new.entries[row].id!r} is not a number; look for NaN in the data"
        )
    too_large = vectors.abs().amax(1) > torch.finfo(torch.half).max
    if half and bool(too_large.any()):
        raise ValueError(
            f"the vector of {new.entries[int(too_large.nonzero()[0])].id!r} has numbers that 16 "
            "bits do not hold; make the index without --half"
        )
    return vectors


def _compacted(collection: Collection, name: str, *, half: bool) -> CollectionState:
    """The state with all live vectors in one part, if parts or dead rows are too many."""
    state, live = collection.state, len(collection)
    dead = len(collection.numbers) - live
    if len(state.parts) <= _MAX_PARTS and dead <= max(_MIN_DEAD, live):
        return state
    if not live:
        return state.model_copy(update={"parts": (), "dead": ()})
    entries = [collection.entry(row) for row in collection.live_rows.tolist()]
    name = f"{name}-joined"
    _write_part(collection.folder, name, *collection.live_vectors(), entries, half=half)
    return state.model_copy(update={"parts": (name,), "dead": ()})


def _write_part(
    folder: Path,
    name: str,
    numbers: Tensor,
    vectors: Tensor,
    entries: Sequence[IndexEntry],
    *,
    half: bool,
) -> None:
    """Write the three files that `CollectionPart` reads."""
    assert len(numbers) == len(vectors) == len(entries) > 0
    values = vectors.numpy().astype(np.float16 if half else np.float32)
    write_array(folder / f"{name}.npy", values)
    write_array(folder / f"{name}.numbers.npy", numbers.numpy())
    filled = ({key: value for key, value in asdict(entry).items() if value} for entry in entries)
    # ASCII JSON: an unescaped U+2028 within a caption would break the line for `splitlines`
    write_text(folder / f"{name}.jsonl", "".join(json.dumps(entry) + "\n" for entry in filled))
