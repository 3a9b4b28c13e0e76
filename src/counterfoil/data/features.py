"""Memory-mapped features of images or texts: regions, grid cells, or one vector for each item.

A feature folder contains

    features.npy   (N, R, F) or (N, F), float16, float32 or int8
    scale.npy      (F,) float32, only beside int8: value = stored * scale
    lengths.npy    (N,) number of real regions, if it differs between items
    boxes.npy      (N, R, 4) x1, y1, x2, y2 as fractions of the image, if known; or (N, R, 6), with
                   width and height where they are stored apart
    classes.npy    (N, R, C) class probabilities of a detector, class 0 is the background
    features.json  {"ids": [...], "model": ..., "kind": ...}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol, final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from counterfoil.core import registry
from counterfoil.core.artifact import ArtifactFormat
from counterfoil.core.console import warn
from counterfoil.core.io import is_given, read_array
from counterfoil.core.types import ModalityBatch

Array = npt.NDArray[Any]
KINDS = ("float16", "float32", "int8")
LARGEST = 1e18  # of a value; squares of larger ones overflow float32, and scores become NaN


class StoredRows(Protocol):
    """An array on disk from which rows are taken: a memory map, several of them, or a database."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of all axes."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the stored numbers, as of a numpy array."""

    @property
    def ndim(self) -> int:
        """Number of axes of the array, rows included."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: Array) -> Array: ...


@final
class RowStack:
    """Concatenation of arrays that copies nothing until rows are indexed.

    Args:
        parts: arrays whose shapes differ in the first axis only.
        dtype: of the rows; by default all parts have to have one dtype.

    Raises:
        ValueError: shapes or dtypes differ.
    """

    def __init__(self, parts: Sequence[Array], dtype: npt.DTypeLike | None = None) -> None:
        shapes = {(part.shape[1:], np.dtype(dtype or part.dtype)) for part in parts}
        if len(shapes) != 1:
            listed = ", ".join(f"{part.shape} {part.dtype.name}" for part in parts)
            raise ValueError(
                f"arrays of {listed} cannot be read as one; all need the same regions, width and "
                "kind of number"
            )
        self.parts = tuple(parts)
        lengths = [len(part) for part in parts]
        self._starts = np.cumsum([0, *lengths[:-1]])
        self.shape = (sum(lengths), *parts[0].shape[1:])
        self.dtype, self.ndim = np.dtype(dtype or parts[0].dtype), parts[0].ndim

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Array) -> Array:
        part = np.searchsorted(self._starts, rows, side="right") - 1
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for number in np.unique(part):
            inside = part == number
            out[inside] = self.parts[number][rows[inside] - self._starts[number]]
        return out


@final
@dataclass(frozen=True, eq=False, repr=False)
class FeatureArray:
    """Features of N items, read from disk when items are taken.

    Attributes:
        values: (S, R, F) stored array, usually a memory map.
        rows: (N,) stored row of each item.
        scale: (F,) factor for int8 values, or None.
        lengths: (S,) real regions of each stored row, or None for all.
        boxes: (S, R, 4), or (S, R, 6) with widths and heights, or None.
        where: file name for errors.
        classes: (S, R, C) class probabilities of regions, or None.

    Raises:
        ValueError: wrong dtype or number of axes, or shapes that do not fit together.
    """

    values: StoredRows
    rows: Tensor
    scale: Array | None = None
    lengths: Array | None = None
    boxes: StoredRows | None = None
    where: str = "features"
    classes: StoredRows | None = None

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
        classes = () if self.classes is None else self.classes.shape[2:3]
        box = 4 if self.boxes is None else self.boxes.shape[-1]
        for part, array, expected in (
            ("scale", self.scale, shape[2:]),
            ("lengths", self.lengths, shape[:1]),
            ("boxes", self.boxes, (*shape[:2], 6 if box == 6 else 4)),
            ("classes", self.classes, (*shape[:2], *classes)),
        ):
            if array is not None and tuple(array.shape) != expected:
                raise ValueError(
                    f"{self.where} have shape {shape}, so the {part} need {expected}, not "
                    f"{tuple(array.shape)}"
                )
        counts = np.zeros(0) if self.lengths is None else np.asarray(self.lengths, np.float64)
        if not bool(((counts >= 0) & (counts <= shape[1]) & (counts % 1 == 0)).all()):
            raise ValueError(
                f"{self.where} have {shape[1]} regions, so the lengths have to be whole numbers "
                f"from 0 to {shape[1]}"
            )
        if self.scale is not None and not bool(np.isfinite(self.scale).all()):
            raise ValueError(f"{self.where}: the scale holds NaN or infinite numbers")

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
        """Features of all stored rows; (N, F) is read as one region for each item."""
        values = values[:, None, :] if values.ndim == 2 else values
        rows = torch.arange(len(values))
        return FeatureArray(values, rows, scale, lengths, boxes, where, classes)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        """Numbers of a region's feature vector, F."""
        return int(self.values.shape[2])

    @property
    def regions(self) -> int:
        """Regions of an item, R."""
        return int(self.values.shape[1])

    def __repr__(self) -> str:
        shape = (len(self), *self.values.shape[1:])
        return f"FeatureArray({self.where}: {shape} {self.values.dtype.name})"

    def subset(self, rows: Tensor) -> FeatureArray:
        """Some items, in the given order; nothing is read."""
        return replace(self, rows=self.rows[rows])

    def take(self, rows: Tensor) -> ModalityBatch:
        """Read float32 features of some items with masks and boxes; values are 0 outside the mask.

        Raises:
            ValueError: a value is not a number.
        """
        values, mask = self._read(rows)
        # The norm is a cheap first test; many values may overflow it, so the exact one follows.
        if not torch.isfinite(torch.linalg.vector_norm(values)) and not _usable(values).all():
            bad = rows[~_usable(values)]
            raise ValueError(
                f"{self.where}: row {int(bad[0])} holds NaN or infinite values, or larger ones "
                f"than {LARGEST:.0e}; `counterfoil data check` lists all such rows"
            )
        boxes = None
        if self.boxes is not None:
            stored = self.rows[rows].numpy()
            boxes = torch.from_numpy(np.asarray(self.boxes[stored], np.float32))
            if not bool(boxes.isfinite().all()):
                raise ValueError(f"{self.where}: the boxes hold NaN or infinite numbers")
        return ModalityBatch(rows, values, mask, boxes)

    def mapped(self) -> Tensor | None:
        """(N, R, F) features of all items as they lie in their file, without a copy in memory.

        None where an item is more, or other, than its float32 numbers there, or items do not follow
        each other as in the file. Writing changes the memory of this process alone, not the file.

        Raises:
            ValueError: a value is not a number.
        """
        file, count = self.values, len(self)
        if not (
            isinstance(file, np.memmap)
            and file.dtype == np.float32
            and file.flags.c_contiguous
            and file.filename is not None
            and Path(file.filename).stat().st_size - file.offset == file.nbytes  # all of it
            and self.scale is None
            and self.lengths is None
            and count
            and torch.equal(self.rows, int(self.rows[0]) + torch.arange(count))
        ):
            return None
        first = int(self.rows[0])
        for rows in torch.split(torch.arange(count), _CHECKED):
            if not np.isfinite(np.linalg.norm(file[first + rows[0] : first + rows[-1] + 1])):
                self.take(rows)  # tells which one
        stored: Array = np.memmap(file.filename, np.float32, "c", file.offset, file.shape)
        return torch.from_numpy(stored[first : first + count])

    def likely(self, rows: Tensor) -> Tensor:
        """(N, R, C) float32 class probabilities of the regions of some items."""
        assert self.classes is not None, "these features have no class probabilities"
        return torch.from_numpy(np.asarray(self.classes[self.rows[rows].numpy()], np.float32))

    def take_unchecked(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(N, R, F) unchecked features of some items, and (N,) bool, True if `take` reads them."""
        values, _ = self._read(rows)
        return values, _usable(values)

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


def _usable(values: Tensor) -> Tensor:
    """(N,) bool, whether all values of an item are numbers of usable size."""
    return (values.abs() <= LARGEST).flatten(1).all(1)  # False for NaN


_CHECKED = 16_384  # items that are checked at once
PROBES = 16  # items that are looked at when a data set is loaded


def warn_of_zeros(features: FeatureArray) -> None:
    """Warn of features that are all zero, by a sample: every score would be the same."""
    rows = torch.linspace(0, len(features) - 1, min(PROBES, len(features))).round().long()
    if len(rows) and not features.take_unchecked(rows)[0].any():
        warn(f"{features.where} are zero in every row of a sample, so that all scores are equal")


# Feature folders.

_PARTS = {"scale": False, "lengths": False, "boxes": True, "classes": True}  # True: memory-mapped

Kind = Literal["float16", "float32"]


@final
class FeaturesManifest(BaseModel):
    """Contents of ``features.json``; folders of other programs need the ids only."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    format: int = Field(default=1, ge=1)
    ids: list[str]  # (N,) image of each row
    kind: str = ""  # dtype of the stored numbers
    model: str = ""  # that computed the features
    settings: dict[str, Any] | None = None  # so that a complete extraction is not repeated


FEATURES = ArtifactFormat(
    name="image features",
    manifest=FeaturesManifest,
    remedy='write the features again; the file needs {"ids": [...]} with one string for each row',
    file="features.json",
    foreign=True,
)


@final
@dataclass(frozen=True, eq=False, slots=True)
class FeatureTable:
    """Features with the ids of their images."""

    ids: Sequence[str] | None  # None if rows are in the order of the data set
    features: FeatureArray


@final
@dataclass(frozen=True, slots=True)
class FeatureFormat:
    """A format of stored features that is registered.

    Attributes:
        matches: whether a path is of this format; cheap.
        open: the reader.
    """

    matches: Callable[[Path], bool]
    open: Callable[[Path], FeatureTable]


def open_features(folder: Path) -> FeatureTable:
    """Open a feature folder, memory-mapped.

    Raises:
        ValueError: a file is missing or damaged, or the numbers of ids and rows differ.
    """
    stored = FEATURES.open(folder)
    ids = stored.manifest.ids
    values = read_array(folder / "features.npy", "image features")
    if len(values) != len(ids):
        raise ValueError(
            f"{folder / 'features.json'} names {len(ids)} images, but features.npy has "
            f"{len(values)} rows"
        )
    parts = {
        name: read_array(folder / f"{name}.npy", "part of the features", mapped=mapped)
        for name, mapped in _PARTS.items()
        if is_given(folder / f"{name}.npy")
    }
    stored.check("features.npy", *(f"{name}.npy" for name in parts))
    return FeatureTable(ids, FeatureArray.of(values, where=str(folder / "features.npy"), **parts))


def open_feature_table(path: Path) -> FeatureTable:
    """Open stored features: a feature folder, a ``.npy`` file, or what is registered.

    Rows of a `.npy` file are in the order of the data set's images.

    Raises:
        ValueError: there are none, or they are damaged.
    """
    if path.is_file() and path.suffix == ".npy":
        array = read_array(path, "image features")
        return FeatureTable(None, FeatureArray.of(array, where=str(path)))
    if FEATURES.exists(path):
        return open_features(path)
    if (format := _registered_format(path)) is not None:
        return format.open(path)
    raise ValueError(
        f"{path} holds no image features: looked for features.json beside features.npy, for "
        "train_ims.npy and the like, for an img_db of UNITER, for a .tsv of bottom-up attention, "
        "and for a single .npy file; `counterfoil features --model MODEL` computes features"
    )


def is_feature_table(path: Path) -> bool:
    """Return True for features in a registered format."""
    return _registered_format(path) is not None


def _registered_format(path: Path) -> FeatureFormat | None:
    formats = (registry.find("features", name) for name in registry.names("features"))
    return next((format for format in formats if format.matches(path)), None)


def features_of(image_ids: Sequence[str], path: Path) -> FeatureArray:
    """Features of some images, in the given order.

    Ids are matched exactly; else without folder and extension; else by the number at their end, as
    in COCO's file names.
    """
    table = open_feature_table(path)
    if table.ids is None:
        if len(table.features) != len(image_ids):
            raise ValueError(
                f"{path} has {len(table.features)} rows for {len(image_ids)} images; one row for "
                "each image in the order of the data set is needed, or a folder that names them"
            )
        return table.features
    fewest = list(image_ids)  # without features, under the best of the three keys
    for key in (str, _stem, _number):
        rows = _rows(image_ids, table.ids, key)
        missing = [name for name, row in zip(image_ids, rows) if row is None]
        if not missing:
            return table.features.subset(torch.tensor(rows, dtype=torch.long))
        fewest = min(fewest, missing, key=len)
    raise ValueError(
        f"{len(fewest)} of {len(image_ids)} images have no features in {path}, such as "
        f"{fewest[0]!r}; ids there look like {next(iter(table.ids), '')!r}"
    )


def _rows(
    image_ids: Sequence[str], table_ids: Sequence[str], key: Callable[[str], str | None]
) -> list[int | None]:
    """Table row of each image by a key of its id; None if there is none or keys are not unique."""
    image_keys, table_keys = [key(name) for name in image_ids], [key(name) for name in table_ids]
    if len(set(table_keys)) < len(table_keys) or len(set(image_keys)) < len(image_keys):
        return [None] * len(image_ids)
    place = {name: row for row, name in enumerate(table_keys)}
    return [None if name is None else place.get(name) for name in image_keys]


def _stem(name: str) -> str:
    return PurePosixPath(name).stem


def _number(name: str) -> str | None:
    digits = re.search(r"\d+$", _stem(name))
    return str(int(digits[0])) if digits else None


def write_feature_array(values: npt.NDArray[np.float32], kind: Kind) -> npt.NDArray[Any]:
    """Convert values to the dtype they are stored in.

    Raises:
        ValueError: a value is too large for float16.
    """
    if kind == "float16" and len(values) and np.abs(values).max() > np.finfo(np.float16).max:
        raise ValueError(
            f"a feature of {np.abs(values).max():.3g} does not fit into float16; store float32"
        )
    return values.astype(kind)


# Mean and standard deviation.

SAMPLE = 2_000  # items that statistics are computed from
_SAMPLE_BLOCK = 64  # of these in memory


def feature_mean_std(features: FeatureArray) -> tuple[Tensor, Tensor]:
    """(F,) mean and standard deviation over the real regions of evenly spaced items, in float64."""
    # Two passes: the deviation from the mean is exact, unlike E[x²] − E[x]².
    total, count = torch.zeros(features.width, dtype=torch.float64), 0
    for real in _sampled_regions(features):
        total, count = total + real.sum(0), count + len(real)
    mean, squares = total / max(count, 1), torch.zeros_like(total)
    for real in _sampled_regions(features):
        squares += (real - mean).square().sum(0)
    return mean, (squares / max(count, 1)).sqrt().clamp(min=1e-6)


def _sampled_regions(features: FeatureArray) -> Iterator[Tensor]:
    """(n, F) real regions of the sample, block by block."""
    size = min(SAMPLE, len(features))
    rows = torch.linspace(0, len(features) - 1, size, dtype=torch.float64).round().long()
    for start in range(0, size, _SAMPLE_BLOCK):
        items = features.take(rows[start : start + _SAMPLE_BLOCK])
        yield items.values[items.mask].double()
