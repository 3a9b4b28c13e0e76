"""Embeddings of one modality on disk: written batch after batch, read a few rows at a time.

A folder with raw little-endian files that only grow: ``items.i64`` (N, 2) row and length of every
item in the order of writing, ``tokens.f32`` or ``tokens.f16`` (all tokens, D), ``mask.u8``, and
``gram.f32`` where a model's score needs Gram matrices. No padding is stored.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from counterfoil import __version__
from counterfoil.core import distributed
from counterfoil.core.artifact import ArtifactFormat, ArtifactManifest, GrowingArtifact
from counterfoil.core.console import warn
from counterfoil.core.io import (
    new_array,
    read_array,
    write_array,
    write_lock,
)
from counterfoil.core.registry import short_name
from counterfoil.core.resumable import (
    WORK,
    WorkStopped,
    begin_facts,
    check_facts,
    partial_folder,
)
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.data.features import FeatureArray
from counterfoil.data.images import image_cache_folder
from counterfoil.data.processor import FeatureProcessor, ProcessedDataset, Processor
from counterfoil.models.base import PretrainedPart, RetrievalModel
from counterfoil.scoring.checkpoint import weights_digest
from counterfoil.scoring.encode import LoadRows, images_in_batches, texts_in_batches

StoredPrecision = Literal["fp32", "fp16"]  # of embeddings on disk
_DTYPES: Mapping[StoredPrecision, str] = {"fp32": "<f4", "fp16": "<f2"}
_TOKENS_FILE: Mapping[StoredPrecision, str] = {"fp32": "tokens.f32", "fp16": "tokens.f16"}
_SAVE_EVERY = 30.0  # seconds


@final
class EmbeddingManifest(ArtifactManifest):
    """Sizes of what is stored.

    Attributes:
        batches: batches that were appended.
        items: items of these, N.
        tokens: vectors of all items.
        gram: entries of all Gram matrices.
        width: of a vector, D; 0 before the first batch.
        precision: of the vectors.
    """

    batches: int = Field(default=0, ge=0)
    items: int = Field(default=0, ge=0)
    tokens: int = Field(default=0, ge=0)
    gram: int = Field(default=0, ge=0)
    width: int = Field(default=0, ge=0)
    precision: StoredPrecision


ENCODINGS = ArtifactFormat(
    name="encodings",
    manifest=EmbeddingManifest,
    remedy="make it again",
)


def _files(precision: StoredPrecision) -> tuple[str, ...]:
    return ("items.i64", _TOKENS_FILE[precision], "mask.u8", "gram.f32")


@final
class EmbeddingWriter:
    """Appends batches of embeddings to a folder; continues after the last saved batch."""

    def __init__(self, folder: Path, precision: StoredPrecision) -> None:
        self.manifest = EmbeddingManifest(precision=precision, version=__version__)
        if (folder / ENCODINGS.file).is_file():
            self.manifest = ENCODINGS.read_manifest(folder)
        if self.manifest.precision != precision:
            raise ValueError(
                f"{folder} was begun in {self.manifest.precision}, not {precision}; delete it"
            )
        self._tokens = _TOKENS_FILE[precision]
        self._files = GrowingArtifact(ENCODINGS, folder, self.manifest, _files(precision))
        self._saved = time.monotonic()

    def put(self, rows: Tensor, part: Embeddings) -> None:
        """Append (n,) data set rows and their n embeddings."""
        part, append = part.to("cpu"), self._files.append
        places = torch.arange(1, part.mask.shape[1] + 1)
        lengths = (part.mask * places).amax(1)
        stored = places <= lengths.unsqueeze(1)
        items = torch.stack([rows, lengths], 1).numpy().astype("<i8")
        tokens = part.tokens[stored].float().numpy().astype(_DTYPES[self.manifest.precision])
        append("items.i64", items.tobytes())
        append(self._tokens, tokens.tobytes())
        append("mask.u8", part.mask[stored].numpy().astype(np.uint8).tobytes())
        squares = 0
        if part.gram is not None:
            square = stored.unsqueeze(2) & stored.unsqueeze(1)
            append("gram.f32", part.gram[square].float().numpy().astype("<f4").tobytes())
            squares = int(square.sum())
        self.manifest = self.manifest.model_copy(
            update={
                "batches": self.manifest.batches + 1,
                "items": self.manifest.items + len(rows),
                "tokens": self.manifest.tokens + int(lengths.sum()),
                "gram": self.manifest.gram + squares,
                "width": part.tokens.shape[2],
            }
        )
        if time.monotonic() - self._saved > _SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Commit all batches so far."""
        self._files.commit(self.manifest)
        self._saved = time.monotonic()

    def close(self) -> None:
        """Commit all batches and close the files."""
        try:
            self.save()
        finally:
            self._files.close()


@final
class EmbeddingStore:
    """Embeddings of `count` items that an `EmbeddingWriter` wrote, mapped into memory."""

    def __init__(self, folder: Path, count: int) -> None:
        stored = ENCODINGS.open(folder)
        self.folder, self.manifest = folder, stored.manifest
        if self.manifest.items != count:
            raise ValueError(
                f"{folder} holds {self.manifest.items:,} encodings, but {count:,} are needed; "
                "it was not finished, or is of other data: make it again"
            )
        stored.check(*_files(self.manifest.precision))
        w = self.manifest
        items = self._mapped("items.i64", "<i8", (w.items, 2))
        rows, lengths = torch.from_numpy(np.array(items)).unbind(1)
        if not torch.equal(rows.sort().values, torch.arange(count)):
            raise ValueError(f"{folder / 'items.i64'} does not hold every row once; make it again")
        if int(lengths.min()) < 0 or int(lengths.sum()) != w.tokens:
            raise ValueError(
                f"{folder / 'items.i64'} is damaged: its lengths do not fit; make it again"
            )
        self._length = torch.empty_like(lengths)
        self._length[rows] = lengths
        self._start = _starts(rows, lengths)
        self._gram_start = _starts(rows, lengths.square()) if w.gram else None
        tokens_file = _TOKENS_FILE[w.precision]
        self._tokens = self._mapped(tokens_file, _DTYPES[w.precision], (w.tokens, w.width))
        self._mask = self._mapped("mask.u8", "u1", (w.tokens,))
        self._gram = self._mapped("gram.f32", "<f4", (w.gram,))

    def __len__(self) -> int:
        return len(self._start)

    @property
    def single(self) -> bool:
        """True if every item is one vector."""
        return bool((self._length == 1).all()) and not self.manifest.gram

    def vectors(self, rows: Tensor) -> Tensor:
        """(n, D) float32 vectors of (n,) rows, for items of one vector each."""
        return torch.from_numpy(self._tokens[self._start[rows].numpy()].astype(np.float32))

    def rows(self, rows: Tensor) -> Embeddings:
        """Items of (n,) rows, padded to the longest, in float32."""
        start, length = self._start[rows].unsqueeze(1), self._length[rows].unsqueeze(1)
        places = torch.arange(int(length.max().clamp(min=1)))
        valid = places < length
        at = start + torch.minimum(places, (length - 1).clamp(min=0))
        # in place: these may be all vectors of a large data set
        tokens = torch.from_numpy(self._tokens[at.numpy()].astype(np.float32, copy=False))
        mask = torch.from_numpy(self._mask[at.numpy()].astype(bool)) & valid
        tokens.masked_fill_(~valid.unsqueeze(2), 0)
        return Embeddings(tokens, mask, self._grams(rows, places, valid, length))

    def _grams(self, rows: Tensor, places: Tensor, valid: Tensor, length: Tensor) -> Tensor | None:
        if self._gram_start is None:
            return None
        square = valid.unsqueeze(2) & valid.unsqueeze(1)
        inside = places.unsqueeze(1) * length.unsqueeze(2) + places
        at = (self._gram_start[rows].view(-1, 1, 1) + inside).masked_fill(~square, 0)
        return torch.from_numpy(self._gram[at.numpy()]).masked_fill(~square, 0)

    def _mapped(self, name: str, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        if 0 in shape:
            return np.zeros(shape, dtype)
        path = self.folder / name
        size, promised = path.stat().st_size, math.prod(shape) * np.dtype(dtype).itemsize
        if size != promised:
            raise ValueError(
                f"{path} has {size:,} bytes, but its manifest promises {promised:,}; make it again"
            )
        return np.memmap(path, dtype, "r", shape=shape)


def encode_into(
    folder: Path,
    encode: Callable[..., Iterator[tuple[Tensor, Embeddings]]],
    model: RetrievalModel,
    load: LoadRows,
    count: int,
    *,
    precision: StoredPrecision = "fp32",
    check: Callable[[Embeddings], object] | None = None,
    stop: Callable[[], bool] | None = None,
) -> None:
    """Encode items into a folder, after the last batch that is stored there.

    Every process of a group calls this; rank 0 writes. A damaged folder is begun again.

    Args:
        folder: of the encodings, to be read by `EmbeddingStore`.
        encode: `images_in_batches` or `texts_in_batches`.
        model: the model.
        load: maps (n,) long rows to a batch of those items.
        count: number of items.
        precision: of the stored tokens.
        check: called with every new batch before it is stored.
        stop: called after every batch; if it returns True on any process, all of them stop.

    Raises:
        WorkStopped: a process was asked to stop.
    """
    writer = _open_writer(folder, precision) if distributed.rank() == 0 else None
    done = distributed.all_reduce_max(writer.manifest.batches if writer else 0)
    try:
        for rows, part in encode(model, load, count, done=done):
            if check is not None:
                check(part)
            if writer:
                writer.put(rows, part)
            if stop is not None and distributed.all_reduce_max(int(stop())):
                raise WorkStopped
    finally:
        if writer:
            writer.close()
    distributed.barrier()  # what rank 0 wrote is complete for all


def _open_writer(folder: Path, precision: StoredPrecision) -> EmbeddingWriter:
    """Continue a folder, unless it is damaged."""
    try:
        return EmbeddingWriter(folder, precision)
    except ValueError:
        shutil.rmtree(folder)
        return EmbeddingWriter(folder, precision)


def _starts(rows: Tensor, sizes: Tensor) -> Tensor:
    """(N,) place where each row begins in a file; rows and sizes are in the order of writing."""
    start = torch.empty_like(sizes)
    start[rows] = sizes.cumsum(0) - sizes
    return start


# The identity of a model: digests of its weights and architecture, independent of its folder.


_LOADING = {  # keys of a configuration that say how it was loaded, not what the model computes
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
    parts = [weights_digest(module), short_name(type(module)), *_architecture(module)]
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:16]


def _architecture(module: nn.Module) -> Iterator[str]:
    """Settings that the weights do not show: configurations, and layers without weights."""
    last: Any = None
    for name, part in module.named_modules():
        config: Any = getattr(part, "config", None)
        if hasattr(config, "to_diff_dict") and config is not last:  # its submodules share it
            last = config
            settings = _without_loading(config.to_diff_dict())
            yield f"{name} {json.dumps(settings, sort_keys=True, default=str)}"
        if isinstance(part, PretrainedPart):
            settings = _without_configs(json.loads(part.config_json))
            yield f"{name} {json.dumps(settings, sort_keys=True)}"
        leaf = next(part.children(), None) is None
        if leaf and next(part.parameters(), None) is None and not isinstance(part, nn.Dropout):
            yield f"{name} {short_name(type(part))}({part.extra_repr()})"


def _without_configs(value: object) -> object:
    if isinstance(value, dict):
        return None if "model_type" in value else {k: _without_configs(v) for k, v in value.items()}
    return value


def _without_loading(value: object) -> object:
    if isinstance(value, dict):
        return {str(k): _without_loading(v) for k, v in value.items() if k not in _LOADING}
    return value


_FOLDERS = re.compile(r"(?<=['\"])/(?:[^'\"]*/)?(?=[^'\"/]+['\"])")  # of a path in a call


@final
class ModelSource(BaseModel):
    """A model whose scores made mined lists or teachers' targets."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    matcher: str  # the call that builds the model, as it prints
    spec: str = ""  # digest of that call
    checkpoint: str = ""  # digest of the weights
    identity: str = ""  # digest of all that its scores depend on; "" if it was not recorded
    score: str = ""  # what a score is, see `RetrievalModel.score_name`

    def shared(self) -> ModelSource:
        """The model without the folders in its call, which mean nothing on another machine."""
        return self.model_copy(update={"matcher": _FOLDERS.sub("", self.matcher)})

    def same(self, other: ModelSource) -> bool:
        """Return True if both are one model; by its weights where an identity was not recorded."""
        identified = self.identity and other.identity
        return self.checkpoint == other.checkpoint and (
            not identified or self.identity == other.identity
        )


# Cached vectors of a frozen model with one vector per item: a data set is encoded once.
#
# Images and texts, for a model of which only adapters behind its vectors are trained; if only the
# image tower is frozen, `counterfoil.data.feature_cache` stores its outputs instead.
#
# A cache folder holds ``images.npy`` (I, D) and ``texts.npy`` (T, D) float32, read through memory
# maps, and read whole once to be compared with their checksums. Batches are written as they are
# made, so a run that was killed resumes.


@final
class VectorsManifest(ArtifactManifest):
    """What vectors of a data set depend on.

    Attributes:
        facts: model and data, JSON-ready; empty in the cache, where the folder's name tells them.
    """

    facts: dict[str, Any] = Field(default_factory=dict)


VECTORS = ArtifactFormat(name="vectors", manifest=VectorsManifest, remedy="encode the data again")
KINDS = ("images", "texts")
_ROWS = 1 << 14  # written at once


def model_on_vectors(model: RetrievalModel, processor: ProcessedDataset) -> ProcessedDataset:
    """The data set with the vectors that a frozen model makes of it, encoded once and cached.

    Every process of a group calls this. A data set without images, or without texts, is returned as
    it is. The weights and layers of the model identify the cache.

    Raises:
        ValueError: the model makes several vectors per item, or the data set has no image files.
    """
    dataset = processor.dataset
    if not (len(dataset) and dataset.texts):
        return processor
    if dataset.pictures is None:
        processor.images(torch.zeros(1, dtype=torch.long))  # raises the error that names the reason
    folder = _cache_folder(model, processor)
    if not _is_cached(folder):
        _encode_to_cache(folder, model, processor, {})
    images, texts = (FeatureArray.of(read_array(_path(folder, kind), kind)) for kind in KINDS)
    with_vectors = replace(dataset, features=images, text_features=texts)
    vectors = Processor(FeatureProcessor(images.width), None)
    return ProcessedDataset(vectors, with_vectors, original=processor)


def cached_vectors(
    model: RetrievalModel, processor: ProcessedDataset
) -> tuple[Embeddings, Embeddings] | None:
    """Cached images and texts of a data set; None if `model_on_vectors` has not cached them.

    Every process of a group calls this.
    """
    if processor.dataset.pictures is None or processor.processor.tokenizer is None:
        return None
    folder = _cache_folder(model, processor)
    if not _is_cached(folder):
        return None
    images, texts = (
        torch.from_numpy(np.array(read_array(_path(folder, kind), kind))).unsqueeze(1)
        for kind in KINDS
    )
    return (
        Embeddings(images, torch.ones(len(images), 1, dtype=torch.bool)),
        Embeddings(texts, torch.ones(len(texts), 1, dtype=torch.bool)),
    )


def _cache_folder(model: RetrievalModel, processor: ProcessedDataset) -> Path:
    dataset, tokenizer = processor.dataset, processor.processor.tokenizer
    assert dataset.pictures is not None
    assert tokenizer is not None
    texts = hashlib.sha256("\x00".join(dataset.texts).encode()).hexdigest()
    key = f"{model_digest(model)} {processor.processor.image_processor} {tokenizer.digest} {texts}"
    return image_cache_folder(dataset.pictures, key, "vectors")


def _is_cached(folder: Path) -> bool:
    """Return True if the vectors exist undamaged, for every process."""
    exists = (folder / VECTORS.file).is_file()
    valid = exists and _is_whole(folder)
    if exists and not valid:
        warn(f"{folder} is damaged; its items are encoded again")
    return not distributed.all_reduce_max(int(not valid))


@lru_cache(maxsize=64)
def _is_whole(folder: Path) -> bool:
    try:
        VECTORS.open(folder).check(*(f"{kind}.npy" for kind in KINDS), every=True)
    except ValueError:
        return False
    return True


def write_vectors(
    folder: Path,
    model: RetrievalModel,
    processor: ProcessedDataset,
    facts: Mapping[str, Any],
    *,
    workers: int = 0,
) -> None:
    """Write ``images.npy`` and ``texts.npy`` of a data set; what a stopped run wrote is kept.

    Every process of a group calls this.

    Args:
        folder: to write; nothing happens where it is finished.
        model: makes one vector of an item.
        processor: the data set as its input.
        facts: JSON-ready, what the vectors depend on.
        workers: threads that decode pictures; 0 for none but this one.

    Raises:
        ValueError: the model makes several vectors per item, the folder was begun with others, or
            holds something else.
    """
    VECTORS.check_replaceable(folder)
    if VECTORS.exists(folder):
        check_facts(folder, VECTORS.read_manifest(folder).facts, dict(facts))
    if not _is_cached(folder):
        _encode_to_cache(folder, model, processor, facts, workers)


def _encode_to_cache(
    folder: Path,
    model: RetrievalModel,
    processor: ProcessedDataset,
    facts: Mapping[str, Any],
    workers: int = 0,
) -> None:
    dataset, partial = processor.dataset, partial_folder(folder)

    def images(rows: Tensor) -> ModalityBatch:
        return processor.images_once(rows, workers)

    # one run at a time writes to a cache folder
    lock = write_lock(folder.with_name(f"{folder.name}.lock"), folder, wait=True)
    with distributed.on_rank_0(lock):
        _is_whole.cache_clear()
        if _is_cached(folder):  # by another run meanwhile
            return
        # not before the lock: another run would take the folder away while this one begins in it
        begin_facts(partial, facts)
        for kind, encode, process, count in (
            ("images", images_in_batches, images, len(dataset)),
            ("texts", texts_in_batches, processor.texts, len(dataset.texts)),
        ):
            if count:  # pictures alone have no captions
                encode_into(partial / kind, encode, model, process, count, check=_check_one_vector)
        if distributed.rank() == 0:
            _finish(folder, partial, (len(dataset), len(dataset.texts)), facts)
        distributed.barrier()
        _is_whole.cache_clear()


def _check_one_vector(part: Embeddings) -> None:
    if (vectors := part.tokens.shape[1]) != 1:
        raise ValueError(
            f"the frozen model makes {vectors} vectors of an item; adapters need a model that "
            "makes one, such as CLIP or SigLIP"
        )


def _finish(folder: Path, partial: Path, counts: tuple[int, int], facts: Mapping[str, Any]) -> None:
    """Write the vectors in row order, and rename the partial folder."""
    width = 0
    for kind, count in zip(KINDS, counts):
        if not count:
            write_array(_path(partial, kind), np.empty((0, width), np.float32))
            continue
        store = EmbeddingStore(partial / kind, count)
        width = store.manifest.width
        out = new_array(_path(partial, kind), (count, width), np.float32)
        for rows in torch.split(torch.arange(count), _ROWS):
            out[rows.numpy()] = store.vectors(rows).numpy()
        out.flush()
        del out, store
        shutil.rmtree(partial / kind)
    (partial / WORK.file).unlink(missing_ok=True)
    manifest = VectorsManifest(facts=dict(facts), version=__version__)
    VECTORS.write_manifest(partial, manifest, [f"{kind}.npy" for kind in KINDS])
    if not facts:  # the cache is ours, whatever is damaged there
        shutil.rmtree(folder, ignore_errors=True)
    VECTORS.finish(partial, folder)


def _path(folder: Path, kind: str) -> Path:
    return folder / f"{kind}.npy"
