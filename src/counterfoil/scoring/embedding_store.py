"""Encodings of one modality on disk: written batch after batch, read a few rows at a time.

A folder with raw little-endian files that only grow: ``items.i64`` (N, 2) row and length of every
item in the order of writing, ``tokens.f32`` or ``tokens.f16`` (all tokens, D), ``mask.u8``, and
``gram.f32`` where a model's score wants Gram matrices. No padding is stored. ``written.json`` says
how much of them counts, so that a kill leaves nothing half-written.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from counterfoil.core import distributed
from counterfoil.core.console import warn
from counterfoil.core.io import read_array, read_json, write_json
from counterfoil.core.saved_names import short_name
from counterfoil.core.types import Embeddings
from counterfoil.data.features import FeatureArray
from counterfoil.data.images import pixel_cache_path
from counterfoil.data.processor import FeatureProcessor, ProcessedDataset, Processor
from counterfoil.models.base import PretrainedPart, RetrievalModel
from counterfoil.scoring.checkpoint import weights_digest
from counterfoil.scoring.encode import images_in_batches, texts_in_batches

BagPrecision = Literal["fp32", "fp16"]
WRITTEN = "written.json"
_DTYPES: Mapping[BagPrecision, str] = {"fp32": "<f4", "fp16": "<f2"}
_SAVE_EVERY = 30.0  # seconds


@final
class EmbeddingManifest(BaseModel):
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
class EmbeddingWriter:
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
        self.written = (
            read_embedding_manifest(folder) if begun else EmbeddingManifest(precision=precision)
        )
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

    def put(self, rows: Tensor, part: Embeddings) -> None:
        """Append (n,) data set rows and their n encodings."""
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
class EmbeddingStore:
    """Encodings that a `EmbeddingWriter` wrote, mapped into memory.

    Args:
        folder: where they are.
        count: how many items there have to be, rows 0 to `count` - 1.

    Raises:
        ValueError: the folder is damaged, truncated, or of another number of items.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.written = folder, read_embedding_manifest(folder)
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

    def rows(self, rows: Tensor) -> Embeddings:
        """These items, padded to the longest, in float32."""
        start, length = self._start[rows].unsqueeze(1), self._length[rows].unsqueeze(1)
        places = torch.arange(int(length.max().clamp(min=1)))
        there = places < length
        at = start + torch.minimum(places, (length - 1).clamp(min=0))
        tokens = torch.from_numpy(self._tokens[at.numpy()].astype(np.float32))
        mask = torch.from_numpy(self._mask[at.numpy()].astype(bool)) & there
        tokens = tokens.masked_fill(~there.unsqueeze(2), 0)
        return Embeddings(tokens, mask, self._grams(rows, places, there, length))

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


def read_embedding_manifest(folder: Path) -> EmbeddingManifest:
    """What a folder says of its files.

    Raises:
        ValueError: nothing, or nothing that can be read.
    """
    plain = read_json(folder / WRITTEN, "a note of stored encodings")
    try:
        return EmbeddingManifest.model_validate(plain)
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


# The identity of a model: digests of its weights and architecture, independent of its folder.


_ELSEWHERE = {  # of a configuration: where it came from and how it was loaded
    "_name_or_path",
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "_attn_implementation",
    "_attn_implementation_internal",
}


def model_digest(module: nn.Module) -> str:
    """Sixteen hex digits of weights, activations and the configurations of pretrained parts.

    The same weights under another activation, or with another number of heads, are another model;
    in another folder they are the same.
    """
    told = [weights_digest(module), short_name(type(module)), *_layers(module)]
    return hashlib.sha256("\x00".join(told).encode()).hexdigest()[:16]


def _layers(module: nn.Module) -> Iterator[str]:
    """What the weights do not tell."""
    told: Any = None
    for name, part in module.named_modules():
        config: Any = getattr(part, "config", None)
        if hasattr(config, "to_diff_dict") and config is not told:
            told = config
            yield f"{name} {json.dumps(_known(config.to_diff_dict()), sort_keys=True, default=str)}"
        if isinstance(part, PretrainedPart):
            yield f"{name} {json.dumps(_built(json.loads(part.written)), sort_keys=True)}"
        leaf = next(part.children(), None) is None
        if leaf and next(part.parameters(), None) is None and not isinstance(part, nn.Dropout):
            yield f"{name} {short_name(type(part))}({part.extra_repr()})"


def _built(value: object) -> object:
    """What a part is built from without configurations that it has as such."""
    if isinstance(value, dict):
        return None if "model_type" in value else {k: _built(v) for k, v in value.items()}
    return value


def _known(value: object) -> object:
    """A configuration without what says nothing of the model."""
    if isinstance(value, dict):
        return {str(k): _known(v) for k, v in value.items() if k not in _ELSEWHERE}
    return value


@final
class ModelSource(BaseModel):
    """One model whose scores made the lists.

    Attributes:
        model: the model in words, as its written call prints.
        spec: digest of its written call.
        checkpoint: digest of its weights.
        identity: digest of all that its scores depend on; "" where nobody noted it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    matcher: str
    spec: str = ""
    checkpoint: str = ""
    identity: str = ""

    def same(self, other: ModelSource) -> bool:
        """Whether it is the same model, by its weights where nothing more was noted."""
        noted = self.identity and other.identity
        return self.checkpoint == other.checkpoint and (
            not noted or self.identity == other.identity
        )


# Cached vectors of a frozen model with one vector an item: a data set is encoded once.
#
# Images and texts, for a model of which only adapters behind its vectors are trained; if only the
# image tower is frozen, `counterfoil.data.feature_cache` stores its outputs instead.
#
# A cache folder holds ``images.npy`` (I, D) and ``texts.npy`` (T, D) float32, read through memory
# maps, and ``vectors.json``, the digests that both are checked against when opened. Batches are
# written as they are made, so a run that was killed resumes.


NOTE = "vectors.json"
KINDS = ("images", "texts")
_ROWS = 1 << 14  # written at once


def model_on_vectors(model: RetrievalModel, processor: ProcessedDataset) -> ProcessedDataset:
    """A data set of pictures as the vectors that a frozen model makes of it, worked out once.

    Every process of a group calls this. A data set that has images alone, or texts alone, stays as
    it is.

    Args:
        model: makes one vector of an item; its weights and layers tell the vectors from others'.
        processor: what it sees of the data set.

    Raises:
        ValueError: it makes several vectors of an item, or the data set has no pictures.
    """
    dataset = processor.dataset
    if not (len(dataset) and dataset.texts):
        return processor
    if dataset.pictures is None:
        processor.images(torch.zeros(1, dtype=torch.long))  # which says what is wrong
    place = _place(model, processor)
    if not _whole(place):
        _make(place, model, processor)
    images, texts = (FeatureArray.of(read_array(_path(place, kind), kind)) for kind in KINDS)
    seen = replace(dataset, features=images, text_features=texts)
    return ProcessedDataset(Processor(FeatureProcessor(images.width), None), seen)


def cached_vectors(
    model: RetrievalModel, processor: ProcessedDataset
) -> tuple[Embeddings, Embeddings] | None:
    """Images and texts of a data set as the same model, frozen, has encoded them before, if it has.

    Every process of a group calls this.

    Args:
        model: makes one vector of an item.
        processor: what it sees of the data set.
    """
    dataset = processor.dataset
    if dataset.pictures is None or processor.processor.tokenizer is None:
        return None
    place = _place(model, processor)
    if not _whole(place):
        return None
    read = (torch.from_numpy(np.array(read_array(_path(place, kind), kind))) for kind in KINDS)
    images, texts = (vectors.unsqueeze(1) for vectors in read)
    ones = torch.ones(len(images), 1), torch.ones(len(texts), 1)
    return Embeddings(images, ones[0].bool()), Embeddings(texts, ones[1].bool())


def _place(model: RetrievalModel, processor: ProcessedDataset) -> Path:
    dataset, tokenizer = processor.dataset, processor.processor.tokenizer
    assert dataset.pictures is not None
    assert tokenizer is not None
    texts = hashlib.sha256("\x00".join(dataset.texts).encode()).hexdigest()
    key = f"{model_digest(model)} {processor.processor.image_processor} {tokenizer.digest} {texts}"
    return pixel_cache_path(dataset.pictures, key, "vectors").with_suffix("")


def _whole(place: Path) -> bool:
    """Whether the vectors are there, undamaged, for every process."""
    there = (place / NOTE).is_file()
    fine = there and _checked(place)
    if there and not fine:
        warn(f"{place} is damaged; what it held is encoded again")
    return not distributed.all_reduce_max(int(not fine))


@lru_cache(maxsize=64)
def _checked(place: Path) -> bool:
    try:
        noted = read_json(place / NOTE, "a note of vectors")
        return bool(noted == {kind: _digest(_path(place, kind)) for kind in KINDS})
    except (OSError, ValueError):
        return False


def _make(place: Path, model: RetrievalModel, processor: ProcessedDataset) -> None:
    dataset, partial = processor.dataset, place.with_suffix(".partial")
    with _alone(place):
        _checked.cache_clear()
        if _whole(place):  # another run has made them meanwhile
            return
        for kind, encode, look, count in (
            ("images", images_in_batches, processor.images, len(dataset)),
            ("texts", texts_in_batches, processor.texts, len(dataset.texts)),
        ):
            writer = _writer(partial / kind) if distributed.rank() == 0 else None
            done = distributed.all_reduce_max(writer.written.batches if writer else 0)
            try:
                _write(writer, encode(model, look, count, done=done))
            finally:
                if writer:
                    writer.close()
        if distributed.rank() == 0:
            _finish(place, partial, (len(dataset), len(dataset.texts)))
        distributed.barrier()
        _checked.cache_clear()


def _write(writer: EmbeddingWriter | None, batches: Iterator[tuple[Tensor, Embeddings]]) -> None:
    for rows, part in batches:
        if part.tokens.shape[1] != 1:
            raise ValueError(
                f"the frozen model makes {part.tokens.shape[1]} vectors of an item; adapters need "
                "a model that makes one, such as CLIP or SigLIP"
            )
        if writer:
            writer.put(rows, part)


def _writer(folder: Path) -> EmbeddingWriter:
    """Goes on with what was begun, unless it is damaged."""
    try:
        return EmbeddingWriter(folder, "fp32")
    except ValueError:
        shutil.rmtree(folder)
        return EmbeddingWriter(folder, "fp32")


def _finish(place: Path, partial: Path, counts: tuple[int, int]) -> None:
    """In row order, with digests; then what was begun takes its name."""
    for kind, count in zip(KINDS, counts):
        bags = EmbeddingStore(partial / kind, count)
        shape = count, bags.written.width
        out = np.lib.format.open_memmap(_path(partial, kind), "w+", np.float32, shape)
        for rows in torch.split(torch.arange(count), _ROWS):
            out[rows.numpy()] = bags.vectors(rows).numpy()
        out.flush()
        del out, bags
        shutil.rmtree(partial / kind)
    write_json(partial / NOTE, {kind: _digest(_path(partial, kind)) for kind in KINDS})
    shutil.rmtree(place, ignore_errors=True)
    partial.rename(place)


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Lets one run at a time write here; others wait."""
    if distributed.rank():
        yield
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _path(folder: Path, kind: str) -> Path:
    return folder / f"{kind}.npy"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
