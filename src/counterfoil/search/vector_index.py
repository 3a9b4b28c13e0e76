"""Images and texts as vectors, in a folder with atomic commits.

Each of the two *collections* is a list of *parts*, each written once: ``NAME.npy`` (N, D) vectors,
``NAME.numbers.npy`` (N,) their numbers, ascending, and ``NAME.jsonl`` an entry a line. A vector
keeps its number for good; deletion only lists the number as dead. The manifest names the parts that
count, with their checksums, and is replaced as the last step of every write: a killed write leaves
the index as it was, plus files that the next write removes.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain, compress
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from counterfoil import __version__
from counterfoil.core.artifact import Artifact, ArtifactFormat, ArtifactManifest, kind_of
from counterfoil.core.io import (
    check_file,
    parse_json,
    read_array,
    write_array,
    write_lock,
    write_text,
)
from counterfoil.core.types import Embeddings
from counterfoil.data.dataset import ColumnValue
from counterfoil.scoring.encode import Side
from counterfoil.scoring.reducers import (
    NOTHING,
    rank_keys,
    rows_of,
    scores_of,
    sort_descending,
)
from counterfoil.search.ann import EXACT, AnnBackend, NumberedVectors, open_ann_backend
from counterfoil.search.filters import Column, columns_of

AGAIN = "make the index again"
_LOCK_FILE = ".lock"
_DATA_FILES = (".npy", ".numbers.npy", ".jsonl")
_BAG_FILES = (".tokens.npy", ".lengths.npy")  # of multi-vector models
# the names of files that a change writes, and of their temporary ones: nothing else is removed
_OWN_FILE = re.compile(
    r"\d{6,}-(images|texts)(-joined)?\.((numbers\.|tokens\.|lengths\.)?npy|jsonl|engine)|"
    r"\.(manifest\.json|\d{6,}-(images|texts)).*\.part"
)

# A score is a sum of its own, of row times query, and depends on nothing else: neither on the other
# queries and rows nor on the part that holds the row. Products of matrices, whose order of
# summation BLAS chooses by their shape, and engines only find the rows that are scored so.
_ROWS = 4096  # of a product, and scored at once
_SCORES = 2**24  # that products make before the best are taken
_ROUNDING = 2.0**-24  # of float32, relative
_CANDIDATES_PER_RESULT = 10
_MIN_CANDIDATES = 64
_MAX_PARTS = 16  # more parts are merged into one
_MIN_DEAD = 64  # fewer dead rows never cause a merge


@final
@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The image or text of a vector; its fields are the keys on disk.

    Attributes:
        id: the data set's own id of the image or text.
        text: the caption; "" of an image.
        image: id of the image that a text describes, "" for none.
        place: path of an image file, "" for none; relative if the file lies in the index.
        content: digest of an image, to recognise it; "" if unknown.
        stamp: size and modification time of the image file; "" if they cannot prove it unchanged.
        columns: values of an image in the further columns of its data, as album or year.
    """

    id: str
    text: str = ""
    image: str = ""
    place: str = ""
    content: str = ""
    stamp: str = ""
    columns: Mapping[str, ColumnValue] = field(default_factory=dict)


PlainEntry: TypeAlias = dict[str, Any]  # the fields of an `IndexEntry` that are not empty


@final
@dataclass(frozen=True, eq=False)
class NewVectors:
    """(N, D) vectors to be added to a collection, and the entry of each.

    `bags` has all vectors of each, for a multi-vector model.
    """

    entries: Sequence[IndexEntry]
    vectors: Tensor
    bags: Embeddings | None = None


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


@final
class IndexState(ArtifactManifest):
    """The committed state of an index, its manifest.

    Attributes:
        identity: digest of the model that made the vectors.
        model: its name or folder; relative if the model lies in the index.
        width: D.
        tokens: width of the vectors of a multi-vector model, of which a part keeps all; 0 for none.
        backend: name of the engine that searches, "exact" for none.
        address: of a Milvus server, "" for a file in the index.
        half: whether vectors are stored in float16.
        writes: number of commits; new files are named after it.
        score: what a score is, see `RetrievalModel.score_name`.
    """

    version: str = __version__
    identity: str
    model: str
    width: int = Field(ge=1)
    tokens: int = Field(default=0, ge=0)
    backend: str = EXACT
    address: str = ""
    half: bool = False
    writes: int = Field(default=0, ge=0)
    score: str = ""
    images: CollectionState = CollectionState()
    texts: CollectionState = CollectionState()


INDEX = ArtifactFormat(name="an index", manifest=IndexState, remedy=AGAIN, generations=_OWN_FILE)
StoredIndex: TypeAlias = Artifact[IndexState]


def is_index(folder: Path) -> bool:
    """Return True if a folder holds an index, and be its manifest damaged."""
    return kind_of(folder / INDEX.file) in (INDEX.name, "")


def open_state(folder: Path) -> StoredIndex:
    """Open the committed state; a `ValueError` if there is none, or no valid one."""
    if not (folder / INDEX.file).is_file():
        raise ValueError(
            f"{folder} is no index: {INDEX.file} is not there; make one with `counterfoil index`"
        )
    return INDEX.open(folder)


def read_state(folder: Path) -> IndexState:
    """Read the committed state, see `open_state`."""
    return open_state(folder).manifest


def part_files(name: str, *, bags: bool) -> list[str]:
    """Names of the files of a part; `bags` for a multi-vector model."""
    return [name + end for end in (*_DATA_FILES, *(_BAG_FILES if bags else ()))]


@final
class CollectionPart:
    """(N, D) vectors that were written together, memory-mapped, and their (N,) numbers.

    With `tokens`, the width of a multi-vector model, also all vectors of each item.
    """

    def __init__(self, stored: StoredIndex, name: str, width: int, tokens: int = 0) -> None:
        folder = stored.folder
        self.name, self._entries_file = name, folder / f"{name}.jsonl"
        stored.check(*part_files(name, bags=tokens > 0))
        vectors = read_array(folder / f"{name}.npy", "a part of an index")
        self.numbers = read_array(
            folder / f"{name}.numbers.npy", "a part of an index", mapped=False
        )
        known_type = vectors.dtype in (np.float16, np.float32) and self.numbers.dtype == np.int64
        if (
            self.numbers.ndim != 1
            or vectors.ndim != 2
            or vectors.shape != (len(self.numbers), width)
            or not known_type
        ):
            raise ValueError(
                f"{folder / name}.npy is {vectors.dtype.name} of shape {vectors.shape} and does "
                f"not fit an index of width {width}; make the index again"
            )
        assert isinstance(vectors, np.memmap)
        # copy-on-write: torch warns of arrays that are read-only
        order: Literal["C", "F"] = "C" if vectors.flags.c_contiguous else "F"
        self.vectors: npt.NDArray[Any] = np.memmap(
            folder / f"{name}.npy", vectors.dtype, "c", vectors.offset, vectors.shape, order
        )
        if tokens:
            self._read_bags(folder, tokens)

    def _read_bags(self, folder: Path, width: int) -> None:
        path = folder / f"{self.name}.tokens.npy"
        self.tokens = read_array(path, "a part of an index")
        self.lengths = read_array(
            folder / f"{self.name}.lengths.npy", "a part of an index", mapped=False
        )
        fits_items = self.lengths.shape == (len(self),) and self.lengths.dtype == np.int64
        if (
            not fits_items
            or bool((self.lengths < 1).any())
            or self.tokens.shape != (int(self.lengths.sum()), width)
            or self.tokens.dtype not in (np.float16, np.float32)
        ):
            raise ValueError(
                f"{path} is {self.tokens.dtype.name} of shape {self.tokens.shape} and does not fit "
                f"{len(self):,} items of an index of width {width}; make the index again"
            )
        self.first_tokens = np.cumsum(self.lengths) - self.lengths

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def plain_entries(self) -> list[PlainEntry]:
        """The fields of the entry of every vector, but for empty ones; read at first use."""
        path = self._entries_file
        try:
            check_file(path)
            entries = _parse_entries(path.read_text(encoding="utf-8").splitlines())
        except FileNotFoundError:
            raise ValueError(
                f"{path} does not exist: another process has changed the index since, or it is "
                "damaged; open it again, and if that fails make it again"
            ) from None
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(
                f"{path} cannot be read as entries of an index: {error}; make the index again"
            ) from error
        if len(entries) != len(self):
            raise ValueError(
                f"{path} has {len(entries):,} entries for {len(self):,} vectors; make the index "
                "again"
            )
        return entries


_NAMES = tuple(field.name for field in fields(IndexEntry))
_FIELDS, _values = {*_NAMES}, attrgetter(*_NAMES)


def _plain(entry: IndexEntry) -> PlainEntry:
    plain = {name: value for name, value in zip(_NAMES, _values(entry)) if value}
    return plain | {"columns": dict(entry.columns)} if entry.columns else plain


def _parse_entries(lines: Sequence[str]) -> list[PlainEntry]:
    """Parse lines of JSON as one list, seven times as fast; one by one to name a damaged line."""
    try:
        entries: list[PlainEntry] = json.loads(f"[{','.join(lines)}]")
        named = all("id" in entry for entry in entries)
        if named and _FIELDS.issuperset(chain.from_iterable(entries)) and _have_types(entries):
            return entries
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass  # found again below, with its line
    return [_checked(parse_json(line, f"line {n}")) for n, line in enumerate(lines, 1)]


def _checked(plain: PlainEntry) -> PlainEntry:
    IndexEntry(**plain)  # a `TypeError` for other fields
    if not _have_types([plain]):
        raise ValueError(f"{plain} holds something else than text, or numbers within its columns")
    return plain


def _have_types(entries: Sequence[PlainEntry]) -> bool:
    """Return True if all values are text, but for the columns, which hold text and numbers."""
    kinds = Counter(map(type, chain.from_iterable(entry.values() for entry in entries)))
    columns = [entry["columns"] for entry in entries if "columns" in entry]
    if not kinds.keys() <= {str, dict} or not {*map(type, columns)} <= {dict}:
        return False
    values = [*chain.from_iterable(own.values() for own in columns)]
    numbers = (value for value in values if type(value) is float)
    known = {*map(type, values)} <= {str, int, float} and all(map(math.isfinite, numbers))
    return known and kinds[dict] == len(columns)


@final
class Collection:
    """The images or the texts of an index, searched by a backend or, without one, exactly.

    A *row* is a position in the collection, in the order of vector numbers. Rows do not change
    until the index is written to.

    Attributes:
        parts: in the order of numbers.
        numbers: (R,) long, ascending.
        alive: (R,) bool, False for deleted rows.
    """

    def __init__(
        self,
        stored: StoredIndex,
        state: CollectionState,
        backend: AnnBackend | None = None,
    ) -> None:
        self.folder, self.state, self.backend = stored.folder, state, backend
        self.width = width = stored.manifest.width
        self.tokens = tokens = stored.manifest.tokens  # width of the vectors of `bags`; 0: none
        self.parts = [CollectionPart(stored, name, width, tokens) for name in state.parts]
        self._starts = np.cumsum([0, *(len(part) for part in self.parts)])
        self._first_rows: list[int] = self._starts.tolist()  # of the parts, and the number of rows
        numbers = np.concatenate([np.empty(0, np.int64), *(part.numbers for part in self.parts)])
        self.numbers = torch.from_numpy(numbers)
        if bool((self.numbers.diff() <= 0).any()):
            raise ValueError(
                f"the parts of {self.folder} do not fit together; make the index again"
            )
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
        """The entry of a row."""
        return IndexEntry(**self._plain_entry(row))

    def text(self, row: int) -> str:
        """The caption of a row; "" of an image."""
        text: str = self._plain_entry(row).get("text", "")
        return text

    def _plain_entry(self, row: int) -> PlainEntry:
        part = bisect_right(self._first_rows, row) - 1
        return self.parts[part].plain_entries[row - self._first_rows[part]]

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The further columns of the data, of all rows; deleted ones have no values."""
        entries = chain.from_iterable(part.plain_entries for part in self.parts)
        pairs = zip(entries, self.alive.tolist(), strict=True)
        return columns_of(entry.get("columns", {}) if alive else {} for entry, alive in pairs)

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of every id."""
        return {entry["id"]: row for row, entry in self._live_entries()}

    @cached_property
    def copies(self) -> dict[int, tuple[int, ...]]:
        """Rows of equal contents, ascending, by each row that has the contents of another."""
        rows: dict[str, list[int]] = {}
        for row, entry in self._live_entries():
            if content := entry.get("content"):
                rows.setdefault(content, []).append(row)
        return {row: tuple(equal) for equal in rows.values() if len(equal) > 1 for row in equal}

    @cached_property
    def rows_by_image(self) -> dict[str, list[int]]:
        """Rows of the texts that describe each image, by image id."""
        rows: dict[str, list[int]] = {}
        for row, entry in self._live_entries():
            rows.setdefault(entry.get("image", ""), []).append(row)
        return rows

    def _live_entries(self) -> Iterator[tuple[int, PlainEntry]]:
        entries = enumerate(chain.from_iterable(part.plain_entries for part in self.parts))
        return compress(entries, self.alive.tolist())

    def vectors(self, rows: Tensor) -> Tensor:
        """(n, D) float32 vectors of (n,) rows."""
        wanted = rows.numpy()
        part_of_row = np.searchsorted(self._starts, wanted, side="right") - 1
        out = np.empty((len(wanted), self.width), np.float32)
        for part in np.unique(part_of_row):
            here = part_of_row == part
            out[here] = self.parts[part].vectors[wanted[here] - self._starts[part]]
        return torch.from_numpy(out)

    def bags(self, rows: Tensor) -> Embeddings:
        """All vectors of (n,) rows, float32, padded to the longest; of a multi-vector model."""
        wanted = rows.numpy()
        part_of_row = np.searchsorted(self._starts, wanted, side="right") - 1
        found: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []
        order: list[npt.NDArray[Any]] = []
        for number in np.unique(part_of_row):
            here = (part_of_row == number).nonzero()[0]
            part, own = self.parts[number], wanted[here] - self._starts[number]
            lengths = part.lengths[own]
            places = np.arange(int(lengths.max()))
            real = places < lengths[:, None]
            at = part.first_tokens[own][:, None] + np.where(real, places, 0)
            found.append((part.tokens[at].astype(np.float32), real))
            order.append(here)
        back = torch.from_numpy(np.argsort(np.concatenate(order)))
        bags = [Embeddings(torch.from_numpy(t), torch.from_numpy(m)) for t, m in found]
        return Embeddings.cat(bags).rows(back)

    def search(
        self, queries: Tensor, k: int, *, offsets: Tensor | None = None, only: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The k nearest rows of (Q, D) queries by inner product; ties go to the lower row.

        Args:
            queries: of this width.
            k: number of results.
            offsets: (R,) numbers that are added to the scores of the rows; a backend proposes
                candidates without them.
            only: (R,) bool, the rows that may be found; None for all. They are scored without a
                backend.

        Returns:
            (Q, k) long rows, best first, -1 where fewer exist, and (Q, k) float32 scores, -inf
            there.
        """
        if k < 1:
            raise ValueError(f"k is {k}, but at least 1 result is needed")
        if queries.dim() != 2 or queries.shape[1] != self.width:
            raise ValueError(
                f"queries of shape {tuple(queries.shape)} were given to an index of width "
                f"{self.width}"
            )
        queries = queries.detach().cpu().float()
        if not bool(queries.isfinite().all()):
            raise ValueError(
                "the vector of a query holds NaN or infinite numbers; try another model"
            )
        proposed = max(_CANDIDATES_PER_RESULT * k, _MIN_CANDIDATES)
        while self.backend is not None and only is None and proposed < len(self):
            rows = self._live_rows_of(self.backend.candidates(queries, proposed))
            if bool(((rows >= 0).sum(1) >= k).all()):
                found = [torch.unique(own[own >= 0]) for own in rows]
                owners = torch.arange(len(rows)).repeat_interleave(torch.tensor([*map(len, found)]))
                keys = self._ranked(queries, owners, torch.cat(found), k, offsets)
                return rows_of(keys), scores_of(keys)
            proposed *= 4  # too many candidates were deleted
        alive = self.alive if only is None else self.alive & only
        keys = self._rank_all(queries, k, offsets, alive)
        return rows_of(keys), scores_of(keys)

    def _live_rows_of(self, numbers: Tensor) -> Tensor:
        """(Q, K) rows of proposed numbers; -1 for none, deleted and unknown ones."""
        rows = torch.searchsorted(self.numbers, numbers).clamp_(max=len(self.numbers) - 1)
        valid = (self.numbers[rows] == numbers) & self.alive[rows]
        return rows.masked_fill(~valid, -1)

    def _rank_all(self, queries: Tensor, k: int, offsets: Tensor | None, alive: Tensor) -> Tensor:
        """(Q, k) rank keys of the best of all rows that count, best first."""
        keys = [torch.empty(0, k, dtype=torch.long)]
        for group in torch.split(queries, max(1, _SCORES // max(1, len(alive)))):
            scores = self._products(group)
            if offsets is not None:
                scores += offsets
            scores.masked_fill_(~alive, -torch.inf)
            least = (
                scores.topk(k).values[:, -1:] if k < len(alive) else scores.new_tensor(-torch.inf)
            )
            chosen = (scores >= least - self._error(group, offsets)) & alive
            owners, rows = chosen.nonzero(as_tuple=True)
            keys.append(self._ranked(group, owners, rows, k, offsets))
        return torch.cat(keys)

    def _products(self, queries: Tensor) -> Tensor:
        """(Q, R) inner products of (Q, D) queries with all rows, but for their rounding."""
        scores = torch.empty(len(queries), len(self.numbers))
        # by NumPy's BLAS: MKL takes twice as long for one query where the CPU is not of Intel
        left, out = queries.numpy(), scores.numpy()
        with np.errstate(all="ignore"):  # what is not finite is refused in the end
            for start, block in self._blocks():
                np.matmul(left, block.numpy().T, out=out[:, start : start + len(block)])
        return self._finite(scores)

    def _blocks(self) -> Iterator[tuple[int, Tensor]]:
        """The first row and the (n, D) float32 vectors of consecutive rows; a part is no copy."""
        for start, part in zip(self._first_rows, self.parts):
            vectors = torch.from_numpy(part.vectors)
            size = len(part) if vectors.dtype == torch.float32 else _ROWS
            for low, some in zip(range(start, start + len(part), size), torch.split(vectors, size)):
                yield low, some.float()

    def _error(self, queries: Tensor, offsets: Tensor | None) -> Tensor:
        """(Q, 1) by how much less than its k-th best product a query's k best may have at most.

        A sum of n products, in any order, is wrong by at most n u / (1 - n u) times the product of
        both lengths (Higham, Accuracy and Stability, 3.1). Product and score may each be wrong by
        that, of the k-th best and of another row.
        """
        terms = self.width + 1  # with the offset
        share = terms * _ROUNDING / (1 - terms * _ROUNDING)
        largest = torch.linalg.vector_norm(queries, dim=1, keepdim=True) * self._longest
        if offsets is not None and len(offsets):
            largest = largest + offsets.abs().max()
        # the lengths are rounded, too, and numbers near zero more than in proportion
        least = terms * torch.finfo(torch.float32).tiny
        error: Tensor = 4 * (1.01 * share * largest + least)
        return error

    @cached_property
    def _longest(self) -> float:
        """Length of the longest vector."""
        blocks = (some for _, block in self._blocks() for some in torch.split(block, _ROWS))
        lengths = [torch.linalg.vector_norm(some, dim=1).max() for some in blocks]
        return max(map(float, lengths), default=0.0)

    def _ranked(
        self, queries: Tensor, owners: Tensor, rows: Tensor, k: int, offsets: Tensor | None
    ) -> Tensor:
        """(Q, k) rank keys, best first, of (n,) rows of the (n,) queries that may find them.

        The rows of a query are together.
        """
        pairs = zip(torch.split(owners, _ROWS), torch.split(rows, _ROWS))
        sums = [(self.vectors(some) * queries[own]).sum(1) for own, some in pairs]
        scores = self._finite(torch.cat(sums))
        if offsets is not None:
            scores = scores + offsets[rows]
        counts = torch.bincount(owners, minlength=len(queries))
        keys = torch.full((len(queries), max(k, int(counts.max()))), NOTHING)
        keys[owners, torch.arange(len(rows)) - (counts.cumsum(0) - counts)[owners]] = rank_keys(
            scores, rows
        )
        return sort_descending(keys)[:, :k]

    def _finite(self, scores: Tensor) -> Tensor:
        """Scores, refused where vectors are damaged: a NaN would be no result, without a word."""
        if not bool(scores.sum().isfinite()) and not bool(scores.isfinite().all()):
            raise ValueError(
                f"{self.folder} holds vectors of NaN or of huge numbers; make the index again"
            )
        return scores

    def stage(
        self, stored: StoredIndex, new: NewVectors | None, rows: Sequence[int], *, name: str
    ) -> tuple[StoredIndex, CollectionState, Tensor]:
        """Write the files of a change, under an unused name, beside the committed ones.

        Args:
            stored: the index, with what was staged before.
            new: vectors to add.
            rows: to delete.
            name: of the new files.

        Returns:
            The index with the new files, the state after the commit, and the (n,) long numbers
            that it deletes.
        """
        state, half = self.state, stored.manifest.half
        added: NumberedVectors | None = None
        removed = self.numbers[torch.tensor(list(rows), dtype=torch.long)]
        if new is not None and len(new.entries):
            vectors = _checked_vectors(new, self.width, half=half)
            added = torch.arange(state.next, state.next + len(vectors)), vectors
            stored = _stage_part(stored, name, *added, new.entries, half=half, bags=new.bags)
            update = {"parts": (*state.parts, name), "next": state.next + len(vectors)}
            state = state.model_copy(update=update)
        elif not len(removed):
            return stored, state, removed
        dead = tuple(sorted({*state.dead, *removed.tolist()}))
        stored, state = Collection(stored, state.model_copy(update={"dead": dead}))._compacted(
            stored, name, half=half
        )
        if self.backend is not None:
            finder = self.backend.update(Collection(stored, state), added, f"{name}.engine")
            state = state.model_copy(update={"finder": finder})
        return stored, state, removed

    def _compacted(
        self, stored: StoredIndex, name: str, *, half: bool
    ) -> tuple[StoredIndex, CollectionState]:
        """The state with all live vectors in one part, if parts or dead rows are too many."""
        state, live = self.state, len(self)
        dead = len(self.numbers) - live
        if len(state.parts) <= _MAX_PARTS and dead < max(_MIN_DEAD + 1, live):
            return stored, state
        if not live:
            return stored, state.model_copy(update={"parts": (), "dead": ()})
        entries = [self.entry(row) for row in self.live_rows.tolist()]
        name = f"{name}-joined"
        bags = self.bags(self.live_rows) if self.tokens else None
        stored = _stage_part(stored, name, *self.live_vectors(), entries, half=half, bags=bags)
        return stored, state.model_copy(update={"parts": (name,), "dead": ()})


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


def _stage_part(
    stored: StoredIndex,
    name: str,
    numbers: Tensor,
    vectors: Tensor,
    entries: Sequence[IndexEntry],
    *,
    half: bool,
    bags: Embeddings | None = None,
) -> StoredIndex:
    """Write the files that `CollectionPart` reads; the index with them."""
    assert len(numbers) == len(vectors) == len(entries) > 0
    folder = stored.folder
    if bags is not None:
        tokens = bags.tokens[bags.mask].float().cpu().numpy()
        write_array(
            folder / f"{name}.tokens.npy", tokens.astype(np.float16 if half else np.float32)
        )
        write_array(folder / f"{name}.lengths.npy", bags.mask.sum(1).cpu().numpy())
    values = vectors.numpy().astype(np.float16 if half else np.float32)
    write_array(folder / f"{name}.npy", values)
    write_array(folder / f"{name}.numbers.npy", numbers.numpy())
    # ASCII JSON: an unescaped U+2028 within a caption would break the line for `splitlines`
    lines = map(json.JSONEncoder().encode, map(_plain, entries))
    write_text(folder / f"{name}.jsonl", "".join(f"{line}\n" for line in lines))
    return stored.staged(part_files(name, bags=bags is not None))


@final
class VectorIndex:
    """Images and texts as vectors, in a folder."""

    _stored: StoredIndex
    state: IndexState
    images: Collection
    texts: Collection
    _image_of_text: Tensor | None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._backends: dict[Side, AnnBackend | None] = {}
        self._writing = False
        self._load()

    @classmethod
    def create(cls, folder: Path, state: IndexState) -> Self:
        """Create an empty index in a new or empty folder."""
        folder.mkdir(parents=True, exist_ok=True)
        INDEX.write_manifest(folder, state)
        return cls(folder)

    def collection(self, side: Side) -> Collection:
        """The images or the texts."""
        return self.images if side == "image" else self.texts

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock of the folder; changes inside do not take it again.

        Raises:
            ValueError: another process writes, or wrote since the index was opened.
        """
        if self._writing:
            yield
            return
        with write_lock(self.folder / _LOCK_FILE, self.folder):
            if read_state(self.folder) != self.state:
                raise ValueError(
                    f"{self.folder} was changed by another process; open the index again"
                )
            self._writing = True
            try:
                yield
            finally:
                self._writing = False

    def verify(self) -> None:
        """Read every file whole and compare it with its checksum.

        Raises:
            ValueError: a file is missing or damaged; it is named.
        """
        self._stored.verify()

    def change(
        self,
        *,
        images: NewVectors | None = None,
        texts: NewVectors | None = None,
        remove_images: Sequence[int] = (),
        remove_texts: Sequence[int] = (),
    ) -> None:
        """Add vectors and delete rows in one commit; when it is killed, nothing has changed.

        The ids of new vectors are new, or deleted in the same commit.
        """
        with self.writing():
            before = stored = self._stored
            before.remove_unused()
            changes = {
                "images": (self.images, images, remove_images),
                "texts": (self.texts, texts, remove_texts),
            }
            update: dict[str, Any] = {"writes": before.manifest.writes + 1}
            deleted = []
            try:
                for side, (collection, new, rows) in changes.items():
                    name = f"{before.manifest.writes:06d}-{side}"
                    stored, update[side], dead = collection.stage(stored, new, rows, name=name)
                    if collection.backend is not None and len(dead):
                        deleted.append((collection.backend, dead))
                state = before.manifest.model_copy(update=update)
                stored.changed(state, self._files(state))
                for backend, dead in deleted:
                    backend.delete(dead)
            except BaseException:
                self.close()  # ANN backends may be ahead of the committed state
                raise
            finally:
                self._load()
            self._stored.remove_unused()

    def _files(self, state: IndexState) -> list[str]:
        """Names of all files that count in a state, which the backends are at already."""
        parts = (*state.images.parts, *state.texts.parts)
        files = [file for name in parts for file in part_files(name, bags=state.tokens > 0)]
        backends = (backend for backend in self._backends.values() if backend is not None)
        return [*files, *(file for backend in backends for file in backend.files)]

    def close(self) -> None:
        """Release files and connections."""
        for backend in self._backends.values():
            if backend is not None:
                backend.close()
        self._backends.clear()

    def image_of_text(self) -> Tensor:
        """(R,) long, the row of the image that each row of the texts describes; -1 for none."""
        if self._image_of_text is None:
            rows = self.images.rows
            entries = chain.from_iterable(part.plain_entries for part in self.texts.parts)
            owners = [rows.get(entry.get("image", ""), -1) for entry in entries]
            self._image_of_text = torch.tensor(owners, dtype=torch.long)
        return self._image_of_text

    def _load(self) -> None:
        """Load the committed state; again if another process removed its files meanwhile."""
        while True:
            stored = open_state(self.folder)
            try:
                images = self._open("image", stored, stored.manifest.images)
                texts = self._open("text", stored, stored.manifest.texts)
            except ValueError:
                self.close()
                if read_state(self.folder) == stored.manifest:
                    raise
            else:
                self._stored, self.state = stored, stored.manifest
                self.images, self.texts = images, texts
                self._image_of_text = None
                return

    def _open(self, side: Side, stored: StoredIndex, own: CollectionState) -> Collection:
        if side not in self._backends:  # opened once: updates keep it current
            self._backends[side] = open_ann_backend(stored, side, own.finder)
        return Collection(stored, own, self._backends[side])
