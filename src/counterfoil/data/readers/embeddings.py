"""Precomputed vectors: ``images.npy`` (I, D) and ``texts.npy`` (T, D).

``owner.npy`` or ``owner.json`` contains the image row of each text, -1 for none. Without it every
image has the same number of texts, image after image. ``image_ids.json`` and ``captions.txt`` (one
a line) are optional.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from counterfoil.core.io import (
    atomic_folder,
    read_array,
    read_json,
    read_text_lines,
    write_json,
    write_text_lines,
)
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import Array, FeatureArray


def is_embeddings(folder: Path) -> bool:
    """Whether a folder contains such vectors."""
    return (folder / "images.npy").exists() or (folder / "texts.npy").exists()


def read_embeddings(folder: Path, *, name: str | None = None) -> ImageTextDataset:
    """Read vectors as a data set, all in the split "test".

    Raises:
        ValueError: a file is missing, or numbers of images and texts do not fit.
    """
    images, texts = (
        read_array(folder / f"{what}.npy", f"vectors of {what}") for what in ("images", "texts")
    )
    for what, array in (("images", images), ("texts", texts)):
        if array.ndim not in (2, 3) or not len(array):
            raise ValueError(
                f"{folder / what}.npy has shape {array.shape}; ({what}, width) is needed"
            )
    text_to_image = read_text_to_image(folder, images=len(images), texts=len(texts))
    return ImageTextDataset(
        name=name or folder.resolve().name,
        image_ids=_image_ids(folder, len(images)),
        text_ids=[f"text/{row}" for row in range(len(texts))],
        texts=_captions(folder, len(texts)),
        text_to_image=text_to_image,
        splits=["test"] * len(images),
        features=_features(images, folder / "images.npy"),
        text_features=_features(texts, folder / "texts.npy"),
    )


def write_embeddings(dataset: ImageTextDataset, folder: Path) -> None:
    """Write the vectors of a data set.

    Raises:
        ValueError: it lacks one of them.
    """
    if dataset.features is None or dataset.text_features is None:
        raise ValueError(
            f"{dataset.name} lacks vectors of its images or its texts; both are needed"
        )
    with atomic_folder(folder) as temporary:
        for what, features in (("images", dataset.features), ("texts", dataset.text_features)):
            values = features.take(torch.arange(len(features))).values.numpy()
            np.save(
                temporary / f"{what}.npy", values.squeeze(1) if values.shape[1] == 1 else values
            )
        np.save(temporary / "owner.npy", dataset.text_to_image.numpy())
        write_json(temporary / "image_ids.json", list(dataset.image_ids))
        if any(dataset.texts):
            write_text_lines(temporary / "captions.txt", dataset.texts)


def read_text_to_image(folder: Path, *, images: int, texts: int) -> Tensor:
    """(T,) image row of each text.

    Raises:
        ValueError: the file does not match the vectors, or there is none and texts do not divide.
    """
    array, listed = folder / "owner.npy", folder / "owner.json"
    if array.exists():
        given = read_array(array, "the image of each text", mapped=False)
        return _checked(given, array, images=images, texts=texts)
    if listed.exists():
        plain = read_json(listed, "the image of each text")
        if not isinstance(plain, list) or not all(type(row) is int for row in plain):
            raise ValueError(f"{listed} needs a list with the image row of each text")
        given = np.array(plain, dtype=np.int64)
        return _checked(given, listed, images=images, texts=texts)
    if texts % images:
        raise ValueError(
            f"{folder}: {texts:,} texts for {images:,} images do not divide; write the image row "
            "of each text into owner.npy or owner.json"
        )
    return torch.arange(texts) // (texts // images)


def _checked(given: Array, path: Path, *, images: int, texts: int) -> Tensor:
    if given.shape != (texts,) or given.dtype.kind not in "iu":
        raise ValueError(
            f"{path} has shape {given.shape} of {given.dtype.name}; {texts:,} whole numbers are "
            "needed, the image row of each text"
        )
    if not -1 <= int(given.min()) <= int(given.max()) < images:
        raise ValueError(
            f"{path} names images {int(given.min())} to {int(given.max())}, but there are 0 to "
            f"{images - 1}, and -1 for none"
        )
    return torch.from_numpy(given.astype(np.int64))


def _features(array: Array, path: Path) -> FeatureArray:
    if array.dtype == np.float64:
        array = np.asarray(array, np.float32)
    return FeatureArray.of(array, where=str(path))


def _image_ids(folder: Path, count: int) -> list[str]:
    path = folder / "image_ids.json"
    if not path.exists():
        return [f"image/{row}" for row in range(count)]
    ids = read_json(path, "image ids")
    if not isinstance(ids, list) or len(ids) != count or len(set(map(str, ids))) != count:
        raise ValueError(f"{path} needs a list of {count:,} different image ids")
    return [str(name) for name in ids]


def _captions(folder: Path, count: int) -> list[str]:
    path = folder / "captions.txt"
    if not path.exists():
        return [""] * count
    captions = read_text_lines(path, "captions")
    if len(captions) != count:
        raise ValueError(f"{path} has {len(captions):,} lines for {count:,} texts")
    return captions
