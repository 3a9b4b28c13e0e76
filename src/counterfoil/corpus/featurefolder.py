"""Writes and opens feature folders, whose files `counterfoil.corpus.regions` lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field

from counterfoil.core.artifact import ArtifactFormat
from counterfoil.core.console import progress
from counterfoil.corpus.regions import Array, Features
from counterfoil.files import read_array

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
    features: Features


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
    features = Features.of(
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
    features: Features,
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
            out[rows.start : rows.stop] = stored(values, kind, scale)
        out.flush()
        del out
        _beside(temporary, features, scale)
        FEATURES.write_manifest(temporary, FeaturesManifest(ids=list(ids), kind=kind, model=model))


def _beside(folder: Path, features: Features, scale: Array | None) -> None:
    order = features.rows.numpy()
    for name, part in (
        ("scale", scale),
        ("lengths", None if features.lengths is None else features.lengths[order]),
        ("boxes", None if features.boxes is None else features.boxes[order]),
        ("classes", None if features.classes is None else features.classes[order]),
    ):
        if part is not None:
            np.save(folder / f"{name}.npy", part)


def stored(
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


def _scale(features: Features) -> npt.NDArray[np.float32]:
    largest = np.zeros(features.width, np.float32)
    for _, values in _blocks(features):
        largest = np.maximum(largest, np.abs(values).max((0, 1)))
    return np.maximum(largest / 127, np.finfo(np.float32).tiny).astype(np.float32)


def _blocks(features: Features) -> Iterable[tuple[range, npt.NDArray[np.float32]]]:
    with progress("features written", len(features)) as done:
        for start in range(0, len(features), AT_ONCE):
            rows = range(start, min(start + AT_ONCE, len(features)))
            values = features.take(torch.arange(rows.start, rows.stop)).values
            yield rows, values.numpy()
            done(len(rows))


def _optional(path: Path, *, mapped: bool = False) -> Array | None:
    return read_array(path, "part of the features", mapped=mapped) if path.exists() else None
