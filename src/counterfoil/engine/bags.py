"""Encodings of one modality on disk: written batch after batch, read a few rows at a time.

A folder with raw little-endian files that only grow: ``items.i64`` (N, 2) row and length of every
item in the order of writing, ``tokens.f32`` or ``tokens.f16`` (all tokens, D), ``mask.u8``, and
``gram.f32`` where a model's score wants Gram matrices. No padding is stored. ``written.json`` says
how much of them counts, so that a kill leaves nothing half-written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from counterfoil.files import read_json, write_json
from counterfoil.records import Encoded

BagPrecision = Literal["fp32", "fp16"]
WRITTEN = "written.json"
_DTYPES: Mapping[BagPrecision, str] = {"fp32": "<f4", "fp16": "<f2"}
_SAVE_EVERY = 30.0  # seconds


@final
class Written(BaseModel):
    """How much of a folder's files counts.

    Attributes:
        batches: how many have been written.
        items: how many have been written.
        tokens: of all of them.
        gram: numbers in all of their Gram matrices, 0 where there are none.
        width: D, 0 before the first batch.
        precision: of the tokens.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    batches: int = Field(default=0, ge=0)
    items: int = Field(default=0, ge=0)
    tokens: int = Field(default=0, ge=0)
    gram: int = Field(default=0, ge=0)
    width: int = Field(default=0, ge=0)
    precision: BagPrecision

    def sizes(self) -> dict[str, int]:
        """Bytes of every file."""
        each = np.dtype(_DTYPES[self.precision]).itemsize
        return {
            "items.i64": 16 * self.items,
            _tokens(self.precision): each * self.tokens * self.width,
            "mask.u8": self.tokens,
            "gram.f32": 4 * self.gram,
        }


@final
class BagWriter:
    """Appends batches of encodings to a folder; one that was begun is gone on with.

    Args:
        folder: where.
        precision: of the tokens.

    Raises:
        ValueError: what was begun there is damaged, or of another precision.
    """

    def __init__(self, folder: Path, precision: BagPrecision) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        begun = (folder / WRITTEN).is_file()
        self.written = read_written(folder) if begun else Written(precision=precision)
        if self.written.precision != precision:
            raise ValueError(
                f"{folder} was begun in {self.written.precision}, not {precision}; delete it"
            )
        sizes = {folder / name: size for name, size in self.written.sizes().items()}
        for path, size in sizes.items():
            if (path.stat().st_size if path.exists() else 0) < size:
                raise ValueError(f"{path} is shorter than {folder / WRITTEN} says; delete {folder}")
        self._files = {path.name: path.open("ab") for path in sizes}
        for path, size in sizes.items():
            self._files[path.name].truncate(size)
        self._saved = time.monotonic()

    def put(self, rows: Tensor, part: Encoded) -> None:
        """Append (n,) corpus rows and their n encodings."""
        part = part.to("cpu")
        places = torch.arange(1, part.mask.shape[1] + 1)
        lengths = (part.mask * places).amax(1)
        there = places <= lengths.unsqueeze(1)
        dtype = _DTYPES[self.written.precision]
        self._append("items.i64", torch.stack([rows, lengths], 1).numpy().astype("<i8"))
        self._append(
            _tokens(self.written.precision), part.tokens[there].float().numpy().astype(dtype)
        )
        self._append("mask.u8", part.mask[there].numpy().astype(np.uint8))
        squares = 0
        if part.gram is not None:
            square = there.unsqueeze(2) & there.unsqueeze(1)
            self._append("gram.f32", part.gram[square].float().numpy().astype("<f4"))
            squares = int(square.sum())
        self.written = self.written.model_copy(
            update={
                "batches": self.written.batches + 1,
                "items": self.written.items + len(rows),
                "tokens": self.written.tokens + int(lengths.sum()),
                "gram": self.written.gram + squares,
                "width": part.tokens.shape[2],
            }
        )
        if time.monotonic() - self._saved > _SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """What has been put so far counts from now on."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        write_json(self.folder / WRITTEN, self.written.model_dump())
        self._saved = time.monotonic()

    def close(self) -> None:
        """Nothing more will be put; what was counts."""
        self.save()
        for file in self._files.values():
            file.close()

    def _append(self, name: str, values: npt.NDArray[Any]) -> None:
        self._files[name].write(values.tobytes())


@final
class Bags:
    """Encodings that a `BagWriter` wrote, mapped into memory.

    Args:
        folder: where they are.
        count: how many items there have to be, rows 0 to `count` - 1.

    Raises:
        ValueError: the folder is damaged, truncated, or of another number of items.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.written = folder, read_written(folder)
        if self.written.items != count:
            raise ValueError(
                f"{folder} holds {self.written.items:,} encodings, but {count:,} are needed; "
                "it was not finished, or is of other data: make it again"
            )
        for name, size in self.written.sizes().items():
            found = (folder / name).stat().st_size if (folder / name).is_file() else 0
            if found != size:
                raise ValueError(
                    f"{folder / name} has {found:,} bytes, but {size:,} were written; it is "
                    "truncated or damaged: make it again"
                )
        w = self.written
        items = self._mapped("items.i64", "<i8", (w.items, 2))
        self._start, self._length = _places(items, folder, count, w.tokens)
        self._gram_start = _starts(items, self._length.square()) if w.gram else None
        self._tokens = self._mapped(_tokens(w.precision), _DTYPES[w.precision], (w.tokens, w.width))
        self._mask = self._mapped("mask.u8", "u1", (w.tokens,))
        self._gram = self._mapped("gram.f32", "<f4", (w.gram,))

    def __len__(self) -> int:
        return len(self._start)

    @property
    def single(self) -> bool:
        """Whether every item is one vector."""
        return bool((self._length == 1).all()) and not self.written.gram

    def vectors(self, rows: Tensor) -> Tensor:
        """(n, D) float32, for items of one vector each."""
        return torch.from_numpy(self._tokens[self._start[rows].numpy()].astype(np.float32))

    def rows(self, rows: Tensor) -> Encoded:
        """These items, padded to the longest, in float32."""
        start, length = self._start[rows].unsqueeze(1), self._length[rows].unsqueeze(1)
        places = torch.arange(int(length.max().clamp(min=1)))
        there = places < length
        at = start + torch.minimum(places, (length - 1).clamp(min=0))
        tokens = torch.from_numpy(self._tokens[at.numpy()].astype(np.float32))
        mask = torch.from_numpy(self._mask[at.numpy()].astype(bool)) & there
        tokens = tokens.masked_fill(~there.unsqueeze(2), 0)
        return Encoded(tokens, mask, self._grams(rows, places, there, length))

    def _grams(self, rows: Tensor, places: Tensor, there: Tensor, length: Tensor) -> Tensor | None:
        if self._gram_start is None:
            return None
        square = there.unsqueeze(2) & there.unsqueeze(1)
        inside = places.unsqueeze(1) * length.unsqueeze(2) + places
        at = (self._gram_start[rows].view(-1, 1, 1) + inside).masked_fill(~square, 0)
        return torch.from_numpy(self._gram[at.numpy()]).masked_fill(~square, 0)

    def _mapped(self, name: str, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        if 0 in shape:
            return np.zeros(shape, dtype)
        return np.memmap(self.folder / name, dtype, "r", shape=shape)


def read_written(folder: Path) -> Written:
    """What a folder says of its files.

    Raises:
        ValueError: nothing, or nothing that can be read.
    """
    plain = read_json(folder / WRITTEN, "a note of stored encodings")
    try:
        return Written.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]["msg"].lower()
        raise ValueError(f"{folder / WRITTEN} is damaged: {first}; make it again") from None


def _places(
    items: npt.NDArray[Any], folder: Path, count: int, tokens: int
) -> tuple[Tensor, Tensor]:
    """(N,) first token and (N,) length of each row."""
    rows = torch.from_numpy(np.array(items[:, 0]))
    length = torch.empty(count, dtype=torch.long)
    if not torch.equal(rows.sort().values, torch.arange(count)):
        raise ValueError(f"{folder / 'items.i64'} does not hold every row once; make it again")
    length[rows] = torch.from_numpy(np.array(items[:, 1]))
    if int(length.min()) < 0 or int(length.sum()) != tokens:
        raise ValueError(
            f"{folder / 'items.i64'} is damaged: its lengths do not fit; make it again"
        )
    return _starts(items, length), length


def _starts(items: npt.NDArray[Any], sizes: Tensor) -> Tensor:
    """(N,) where each row's numbers begin, of sizes by row, written in the order of `items`."""
    rows = torch.from_numpy(np.array(items[:, 0]))
    written = sizes[rows]
    start = torch.empty_like(sizes)
    start[rows] = written.cumsum(0) - written
    return start


def _tokens(precision: BagPrecision) -> str:
    return "tokens.f32" if precision == "fp32" else "tokens.f16"
