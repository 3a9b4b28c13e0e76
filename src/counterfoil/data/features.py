"""Memory-mapped features: regions, grid cells, or one vector for each item.

A feature folder holds

    features.npy   (N, R, F) or (N, F), float16, float32 or int8
    scale.npy      (F,) float32, only beside int8: value = stored * scale
    lengths.npy    (N,) how many of the R regions are real, where they differ
    boxes.npy      (N, R, 4) x1, y1, x2, y2 as fractions of the picture, where known
    classes.npy    (N, R, C) how likely a detector thinks each class of a region, 0 the background
    features.json  {"ids": [...], "model": ..., "kind": ...}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from counterfoil.core.artifact import ArtifactFormat
from counterfoil.core.console import progress
from counterfoil.core.io import read_array
from counterfoil.core.types import ModalityBatch

Array = npt.NDArray[Any]
KINDS = ("float16", "float32", "int8")


@final
class RowStack:
    """Several arrays read as one behind the other; nothing is copied until rows are taken.

    Args:
        parts: arrays of one kind of number that differ in their first axis only.

    Raises:
        ValueError: the shapes or kinds of number differ.
    """

    def __init__(self, parts: Sequence[Array]) -> None:
        shapes = {(part.shape[1:], part.dtype.name) for part in parts}
        if len(shapes) != 1:
            found = ", ".join(f"{part.shape} {part.dtype.name}" for part in parts)
            raise ValueError(
                f"arrays of {found} cannot be read as one; all need the same regions, width and "
                "kind of number"
            )
        self.parts = tuple(parts)
        lengths = [len(part) for part in parts]
        self._starts = np.cumsum([0, *lengths[:-1]])
        self.shape = (sum(lengths), *parts[0].shape[1:])
        self.dtype, self.ndim = parts[0].dtype, parts[0].ndim

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Array) -> Array:
        part = np.searchsorted(self._starts, rows, side="right") - 1
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for place in np.unique(part):
            here = part == place
            out[here] = self.parts[place][rows[here] - self._starts[place]]
        return out


@final
@dataclass(frozen=True, eq=False)
class FeatureArray:
    """Features of N items; nothing is read before it is taken.

    Attributes:
        values: (S, R, F) stored array, usually a memory map.
        rows: (N,) stored row of each item.
        scale: (F,) factor for int8 values, or None.
        lengths: (S,) real regions of each stored row, or None for all.
        boxes: (S, R, 4), or None.
        where: what to call them in messages.
        classes: (S, R, C) probabilities of the classes of regions, or None.

    Raises:
        ValueError: wrong number of axes or kind of number, or parts that do not fit together.
    """

    values: Array | RowStack
    rows: Tensor
    scale: Array | None = None
    lengths: Array | None = None
    boxes: Array | RowStack | None = None
    where: str = "features"
    classes: Array | None = None

    def __post_init__(self) -> None:
        shape, kind = tuple(self.values.shape), self.values.dtype
        if self.values.ndim != 3:
            raise ValueError(
                f"{self.where} have shape {shape}; (items, regions, width) or "
                "(items, width) are read"
            )
        if kind.name not in KINDS:
            raise ValueError(f"{self.where} are {kind.name}; {', '.join(KINDS)} are read")
        if (kind == np.int8) != (self.scale is not None):
            raise ValueError(f"{self.where}: int8 features need a scale, and only they have one")
        for what, part, wanted in (
            ("the scale", self.scale, shape[2:]),
            ("the lengths", self.lengths, shape[:1]),
            ("the boxes", self.boxes, (*shape[:2], 4)),
            ("the classes", self.classes, (*shape[:2], *_last(self.classes))),
        ):
            if part is not None and tuple(part.shape) != wanted:
                raise ValueError(
                    f"{self.where} have shape {shape}, so {what} need {wanted}, not "
                    f"{tuple(part.shape)}"
                )

    @staticmethod
    def of(
        values: Array,
        *,
        scale: Array | None = None,
        lengths: Array | None = None,
        boxes: Array | None = None,
        where: str = "features",
        classes: Array | None = None,
    ) -> FeatureArray:
        """Features of every stored row; (N, F) is taken as one region each."""
        values = values[:, None, :] if values.ndim == 2 else values
        rows = torch.arange(len(values))
        return FeatureArray(values, rows, scale, lengths, boxes, where, classes)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        """F."""
        return int(self.values.shape[2])

    @property
    def regions(self) -> int:
        """R."""
        return int(self.values.shape[1])

    def subset(self, rows: Tensor) -> FeatureArray:
        """The features of these items, in this order; nothing is read."""
        return replace(self, rows=self.rows[rows])

    def take(self, rows: Tensor) -> ModalityBatch:
        """Float32 features of these items, their masks and boxes; 0 where a mask is False.

        Raises:
            ValueError: a value is not a number.
        """
        values, mask = self._read(rows)
        if not torch.isfinite(values.sum()) and not torch.isfinite(values).all():
            bad = rows[~torch.isfinite(values).flatten(1).all(1)]
            raise ValueError(
                f"{self.where}: row {int(bad[0])} holds NaN or infinite values; "
                "`counterfoil data check` lists all such rows"
            )
        boxes = None
        if self.boxes is not None:
            stored = self.rows[rows].numpy()
            boxes = torch.from_numpy(np.asarray(self.boxes[stored], np.float32))
        return ModalityBatch(rows, values, mask, boxes)

    def likely(self, rows: Tensor) -> Tensor:
        """(N, R, C) float32 probabilities of the classes of the regions of these items."""
        assert self.classes is not None, "nobody says which classes the regions have"
        return torch.from_numpy(np.asarray(self.classes[self.rows[rows].numpy()], np.float32))

    def look(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(N, R, F) features of these items as stored, and (N,) bool, True where finite."""
        values, _ = self._read(rows)
        return values, torch.isfinite(values).flatten(1).all(1)

    def _read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        stored = self.rows[rows].numpy()
        values = torch.from_numpy(np.asarray(self.values[stored])).float()
        if self.scale is not None:
            values *= torch.from_numpy(np.asarray(self.scale, np.float32))
        if self.lengths is None:
            return values, torch.ones(values.shape[:2], dtype=torch.bool)
        lengths = torch.from_numpy(np.asarray(self.lengths[stored], np.int64))
        mask = torch.arange(values.shape[1]) < lengths.unsqueeze(1)
        return values.masked_fill_(~mask.unsqueeze(2), 0.0), mask


def _last(array: Array | None) -> tuple[int, ...]:
    return () if array is None else tuple(array.shape[2:3])


# Writes and opens feature folders, whose files `counterfoil.data.features` lists.


AT_ONCE = 512

Kind = Literal["float16", "float32", "int8"]


@final
class FeaturesManifest(BaseModel):
    """What ``features.json`` says; the ids alone are enough in a folder that somebody else made.

    Attributes:
        format: version of the layout.
        ids: (N,) image of each row.
        kind: how numbers are stored.
        model: what the features came from.
        settings: of the extraction, so that it is not done twice.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    format: int = Field(default=1, ge=1)
    ids: list[str]
    kind: str = ""
    model: str = ""
    settings: dict[str, Any] | None = None


FEATURES = ArtifactFormat(
    name="image features",
    manifest=FeaturesManifest,
    remedy='write the features again; the file needs {"ids": [...]} with one string for each row',
    file="features.json",
)


@final
@dataclass(frozen=True, eq=False, slots=True)
class FeatureTable:
    """Features and whose they are.

    Attributes:
        ids: (N,) image of each row, or None where rows are in the order of the data set.
        features: the rows.
    """

    ids: Sequence[str] | None
    features: FeatureArray


def open_features(folder: Path) -> FeatureTable:
    """The features in a folder, memory-mapped.

    Raises:
        ValueError: a file is missing or damaged, or ids and rows are not equally many.
    """
    ids = FEATURES.read_manifest(folder).ids
    values = read_array(folder / "features.npy", "image features")
    if len(values) != len(ids):
        raise ValueError(
            f"{folder / 'features.json'} names {len(ids)} images, but features.npy has "
            f"{len(values)} rows"
        )
    scale, lengths = _optional(folder / "scale.npy"), _optional(folder / "lengths.npy")
    boxes = _optional(folder / "boxes.npy", mapped=True)
    where = str(folder / "features.npy")
    features = FeatureArray.of(
        values,
        scale=scale,
        lengths=lengths,
        boxes=boxes,
        where=where,
        classes=_optional(folder / "classes.npy", mapped=True),
    )
    return FeatureTable(ids, features)


def write_features(
    folder: Path,
    ids: Sequence[str],
    features: FeatureArray,
    *,
    kind: Kind = "float16",
    model: str = "",
) -> None:
    """Write features as a folder that `open_features` reads; only a block is in memory at a time.

    Args:
        folder: where to; what stood there is replaced when all is written.
        ids: (N,) image of each row.
        features: what to write.
        kind: how numbers are stored; int8 keeps one scale for each dimension.
        model: what the features came from.

    Raises:
        ValueError: ids and features are not equally many, or a value is not a number.
    """
    if len(ids) != len(features):
        raise ValueError(f"{len(ids)} ids were given for {len(features)} rows of features")
    scale = _scale(features) if kind == "int8" else None
    with FEATURES.writing(folder) as temporary:
        shape = (len(features), features.regions, features.width)
        out = np.lib.format.open_memmap(temporary / "features.npy", "w+", np.dtype(kind), shape)
        for rows, values in _blocks(features):
            out[rows.start : rows.stop] = write_feature_array(values, kind, scale)
        out.flush()
        del out
        _beside(temporary, features, scale)
        FEATURES.write_manifest(temporary, FeaturesManifest(ids=list(ids), kind=kind, model=model))


def _beside(folder: Path, features: FeatureArray, scale: Array | None) -> None:
    order = features.rows.numpy()
    for name, part in (
        ("scale", scale),
        ("lengths", None if features.lengths is None else features.lengths[order]),
        ("boxes", None if features.boxes is None else features.boxes[order]),
        ("classes", None if features.classes is None else features.classes[order]),
    ):
        if part is not None:
            np.save(folder / f"{name}.npy", part)


def write_feature_array(
    values: npt.NDArray[np.float32], kind: Kind, scale: Array | None = None
) -> npt.NDArray[Any]:
    """Values as they are stored.

    Raises:
        ValueError: a value is too large for float16.
    """
    if kind == "int8":
        assert scale is not None
        return np.clip(np.rint(values / scale), -127, 127).astype(np.int8)
    if kind == "float16" and len(values) and np.abs(values).max() > np.finfo(np.float16).max:
        raise ValueError(
            f"a feature of {np.abs(values).max():.3g} does not fit into float16; store float32"
        )
    return values.astype(kind)


def _scale(features: FeatureArray) -> npt.NDArray[np.float32]:
    largest = np.zeros(features.width, np.float32)
    for _, values in _blocks(features):
        largest = np.maximum(largest, np.abs(values).max((0, 1)))
    return np.maximum(largest / 127, np.finfo(np.float32).tiny).astype(np.float32)


def _blocks(features: FeatureArray) -> Iterable[tuple[range, npt.NDArray[np.float32]]]:
    with progress("features written", len(features)) as done:
        for start in range(0, len(features), AT_ONCE):
            rows = range(start, min(start + AT_ONCE, len(features)))
            values = features.take(torch.arange(rows.start, rows.stop)).values
            yield rows, values.numpy()
            done(len(rows))


def _optional(path: Path, *, mapped: bool = False) -> Array | None:
    return read_array(path, "part of the features", mapped=mapped) if path.exists() else None


# Mean and deviation of features, from a sample that is read block by block.


SAMPLE = 2_000  # items
AT_ONCE_MOMENTS = 64  # of them in memory


def feature_mean_std(features: FeatureArray) -> tuple[Tensor, Tensor]:
    """(F,) mean and deviation over the real regions of evenly spread items, in float64."""
    total, count = torch.zeros(features.width, dtype=torch.float64), 0
    for real in _blocks_moments(features):
        total, count = total + real.sum(0), count + len(real)
    mean, squares = total / max(count, 1), torch.zeros_like(total)
    for real in _blocks_moments(features):
        squares += (real - mean).square().sum(0)
    return mean, (squares / max(count, 1)).sqrt().clamp(min=1e-6)


def _blocks_moments(features: FeatureArray) -> Iterator[Tensor]:
    size = min(SAMPLE, len(features))
    rows = torch.linspace(0, len(features) - 1, size, dtype=torch.float64).round().long()
    for start in range(0, size, AT_ONCE_MOMENTS):
        items = features.take(rows[start : start + AT_ONCE_MOMENTS])
        yield items.values[items.mask].double()
