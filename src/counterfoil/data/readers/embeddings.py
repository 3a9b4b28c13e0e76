"""Precomputed vectors: ``images.npy`` (I, D) and ``texts.npy`` (T, D).

``owner.npy`` or ``owner.json`` contains the image row of each text, -1 for none. Without it every
image has the same number of texts, image after image. ``image_ids.json``, ``text_ids.json``,
``captions.json`` or ``captions.txt`` (one a line) and ``splits.json`` (the split of each image;
without it all are "test") are optional.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from counterfoil.core.io import is_given, read_array, read_json, read_text_lines
from counterfoil.data.dataset import ImageTextDataset, canonical_split
from counterfoil.data.features import Array, FeatureArray
from counterfoil.data.readers.source import Format


def is_embeddings(folder: Path) -> bool:
    """Return True if a folder contains such vectors."""
    return is_given(folder / "images.npy") or is_given(folder / "texts.npy")


def read_embeddings(folder: Path, *, name: str | None = None) -> ImageTextDataset:
    """Read vectors as a data set."""
    images, texts = (
        _read_vectors(folder / f"{modality}.npy", modality) for modality in ("images", "texts")
    )
    return ImageTextDataset(
        name=name or folder.resolve().name,
        image_ids=_ids(folder, "image", len(images)),
        text_ids=_ids(folder, "text", len(texts)),
        texts=_captions(folder, len(texts)),
        text_to_image=_text_to_image(folder, images=len(images), texts=len(texts)),
        splits=_splits(folder, len(images)),
        features=FeatureArray.of(images, where=str(folder / "images.npy")),
        text_features=FeatureArray.of(texts, where=str(folder / "texts.npy")),
    )


def _read_vectors(path: Path, noun: str) -> Array:
    array = read_array(path, f"vectors of {noun}")
    if array.ndim not in (2, 3) or (not len(array) and noun == "images"):  # texts may be missing
        raise ValueError(f"{path} has shape {array.shape}; ({noun}, width) is needed")
    return np.asarray(array, np.float32) if array.dtype == np.float64 else array


def _text_to_image(folder: Path, *, images: int, texts: int) -> Tensor:
    """(T,) image row of each text."""
    if not texts:
        return torch.empty(0, dtype=torch.long)
    path = folder / "owner.npy"
    if is_given(path):
        rows = read_array(path, "the image of each text", mapped=False)
    elif is_given(path := folder / "owner.json"):
        plain = read_json(path, "the image of each text")
        if not isinstance(plain, list) or not all(type(row) is int for row in plain):
            raise ValueError(f"{path} needs a list with the image row of each text")
        rows = np.array(plain, dtype=np.int64)
    elif texts % images:
        raise ValueError(
            f"{folder}: {texts:,} texts for {images:,} images do not divide; write the image row "
            "of each text into owner.npy or owner.json"
        )
    else:
        return torch.arange(texts) // (texts // images)
    if rows.shape != (texts,) or rows.dtype.kind not in "iu":
        raise ValueError(
            f"{path} has shape {rows.shape} of {rows.dtype.name}; {texts:,} whole numbers are "
            "needed, the image row of each text"
        )
    if not -1 <= int(rows.min()) <= int(rows.max()) < images:
        raise ValueError(
            f"{path} names images {int(rows.min())} to {int(rows.max())}, but there are 0 to "
            f"{images - 1}, and -1 for none"
        )
    return torch.from_numpy(rows.astype(np.int64))


def _ids(folder: Path, noun: str, count: int) -> list[str]:
    path = folder / f"{noun}_ids.json"
    if not is_given(path):
        return [f"{noun}/{row}" for row in range(count)]
    ids = read_json(path, f"{noun} ids")
    named = isinstance(ids, list) and all(type(name) in (str, int) for name in ids)
    if not named or len(ids) != count or len(set(map(str, ids))) != count:
        raise ValueError(f"{path} needs a list of {count:,} different {noun} ids")
    return [str(name) for name in ids]


def _splits(folder: Path, count: int) -> list[str]:
    path = folder / "splits.json"
    if not is_given(path):
        return ["test"] * count
    splits = read_json(path, "the split of each image")
    names = splits if isinstance(splits, list) else []
    if len(names) != count or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{path} needs a list with the names of {count:,} splits, one an image")
    return [canonical_split(name) for name in names]


def _captions(folder: Path, count: int) -> list[str]:
    path = folder / "captions.json"
    if is_given(path):
        captions: list[str] = read_json(path, "captions")
        if not isinstance(captions, list) or not all(type(text) is str for text in captions):
            raise ValueError(f"{path} needs a list of captions")
    elif is_given(path := folder / "captions.txt"):
        captions = read_text_lines(path, "captions")
    else:
        return [""] * count
    if len(captions) != count:
        raise ValueError(f"{path} has {len(captions):,} captions for {count:,} texts")
    return captions


EMBEDDINGS = Format(
    "embeddings (images.npy, texts.npy)",
    lambda source: is_embeddings(source.path),
    lambda source: read_embeddings(source.path, name=source.name),
    named_pictures=True,
    order=2,
)
