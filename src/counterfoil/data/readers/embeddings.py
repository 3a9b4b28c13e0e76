"""Precomputed vectors: ``images.npy`` (I, D) and ``texts.npy`` (T, D).

``owner.npy`` or ``owner.json`` contains the image row of each text, -1 for none. Without it every
image has the same number of texts, image after image. ``image_ids.json``, ``text_ids.json``,
``captions.json`` or ``captions.txt`` (one a line) and ``splits.json`` (the split of each image;
without it all are "test") are optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterfoil.core.config import unknown_name
from counterfoil.core.io import is_given, read_array, read_json, read_text_lines
from counterfoil.data.dataset import ImageTextDataset, canonical_split, splits_of
from counterfoil.data.features import Array, FeatureArray
from counterfoil.data.readers.source import Format

_NOUNS = {
    "images": "vectors of images",
    "texts": "vectors of texts",
    "owner": "the image of each text",
    "captions": "captions",
    "image_ids": "image ids",
    "text_ids": "text ids",
    "splits": "the split of each image",
}
VECTORS = tuple(_NOUNS)  # names of the parts of such a data set


def is_embeddings(folder: Path) -> bool:
    """Return True if a folder contains such vectors."""
    return is_given(folder / "images.npy") or is_given(folder / "texts.npy")


def read_embeddings(folder: Path, *, name: str | None = None) -> ImageTextDataset:
    """Read vectors as a data set."""
    parts: dict[str, Any] = {}
    places: dict[str, str] = {}
    for key, noun in _NOUNS.items():
        json, array, text = (folder / f"{key}.{ending}" for ending in ("json", "npy", "txt"))
        if key in ("images", "texts") or (key == "owner" and is_given(array)):
            parts[key], path = read_array(array, noun, mapped=key != "owner"), array
        elif is_given(json):
            parts[key], path = read_json(json, noun), json
        elif key == "captions" and is_given(text):
            parts[key], path = read_text_lines(text, noun), text
        else:
            continue
        places[key] = str(path)
    return dataset_of_vectors(parts, name or folder.resolve().name, str(folder), places)


def dataset_of_vectors(
    parts: Mapping[str, Any], name: str, where: str, places: Mapping[str, str] | None = None
) -> ImageTextDataset:
    """A data set of arrays and lists that are named as the files of embeddings are, see `VECTORS`.

    Without splits, vectors of both sides are "test"; images whose captions are words are divided
    as every data set is.

    Args:
        parts: arrays and lists by their names.
        name: of the data set.
        where: they are from, for messages.
        places: where each is from, if it is a file.

    Raises:
        ValueError: a name is unknown, a part is missing, or parts do not fit together.
    """
    for key in parts:
        if key not in VECTORS:
            raise ValueError(f"{where}: {unknown_name(str(key), [*VECTORS], 'a part of vectors')}")
    given = {
        key: ((places or {}).get(key, f"{key} of {where}"), value)
        for key, value in parts.items()
        if value is not None
    }
    if "images" not in given:
        raise ValueError(f"{where} has no images; (images, width) vectors are needed")
    if "texts" not in given and "captions" not in given:
        raise ValueError(f"{where} has neither texts (vectors) nor captions (words)")
    images = _vectors(*given["images"], "images")
    texts = _vectors(*given["texts"], "texts") if "texts" in given else None
    captions = [""] * (0 if texts is None else len(texts))
    if "captions" in given:
        captions = _captions(*given["captions"], None if texts is None else len(texts))
    count = len(captions)
    image_ids = _ids(*given.get("image_ids", ("", None)), "image", len(images))
    splits = splits_of(image_ids) if texts is None else ["test"] * len(images)
    return ImageTextDataset(
        name=name,
        image_ids=image_ids,
        text_ids=_ids(*given.get("text_ids", ("", None)), "text", count),
        texts=captions,
        text_to_image=_owner(*given["owner"], images=len(images), texts=count)
        if count and "owner" in given
        else _in_equal_parts(count, len(images), where),
        splits=_splits(*given["splits"], len(images)) if "splits" in given else splits,
        features=FeatureArray.of(images, where=given["images"][0]),
        text_features=None if texts is None else FeatureArray.of(texts, where=given["texts"][0]),
    )


def _vectors(place: str, value: Any, noun: str) -> Array:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if array.ndim not in (2, 3) or (not len(array) and noun == "images"):  # texts may be missing
        raise ValueError(f"{place} has shape {array.shape}; ({noun}, width) is needed")
    return np.asarray(array, np.float32) if array.dtype == np.float64 else array


def _in_equal_parts(texts: int, images: int, where: str) -> Tensor:
    """(T,) image row of each text, where every image has as many."""
    if texts % images:
        raise ValueError(
            f"{where}: {texts:,} texts for {images:,} images do not divide; write the image row "
            "of each text into owner (of a folder: owner.npy or owner.json)"
        )
    return torch.arange(texts) // max(1, texts // images)


def _owner(place: str, value: Any, *, images: int, texts: int) -> Tensor:
    """(T,) image row of each text."""
    if not isinstance(value, np.ndarray | Tensor):
        if not isinstance(value, list | tuple) or not all(type(row) is int for row in value):
            raise ValueError(f"{place} needs a list with the image row of each text")
        value = np.array(value, dtype=np.int64)
    rows = np.asarray(value)
    if rows.shape != (texts,) or rows.dtype.kind not in "iu":
        raise ValueError(
            f"{place} has shape {rows.shape} of {rows.dtype.name}; {texts:,} whole numbers are "
            "needed, the image row of each text"
        )
    if not -1 <= int(rows.min()) <= int(rows.max()) < images:
        raise ValueError(
            f"{place} names images {int(rows.min())} to {int(rows.max())}, but there are 0 to "
            f"{images - 1}, and -1 for none"
        )
    return torch.from_numpy(rows.astype(np.int64))


def _ids(place: str, value: Any, noun: str, count: int) -> list[str]:
    if value is None:
        return [f"{noun}/{row}" for row in range(count)]
    ids = _list(value)
    named = all(type(name) in (str, int) for name in ids)
    if not named or len(ids) != count or len(set(map(str, ids))) != count:
        raise ValueError(f"{place} needs a list of {count:,} different {noun} ids")
    return [str(name) for name in ids]


def _splits(place: str, value: Any, count: int) -> list[str]:
    names = _list(value)
    if len(names) != count or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{place} needs a list with the names of {count:,} splits, one an image")
    return [canonical_split(name) for name in names]


def _captions(place: str, value: Any, count: int | None) -> list[str]:
    captions = _list(value)
    if not all(type(text) is str for text in captions):
        raise ValueError(f"{place} needs a list of captions")
    if count is not None and len(captions) != count:
        raise ValueError(f"{place} has {len(captions):,} captions for {count:,} texts")
    return captions


def _list(value: Any) -> list[Any]:
    """The items of a list, a tuple, an array or a column of a table; none of anything else."""
    if isinstance(value, list | tuple):
        return list(value)
    plain = value.tolist() if hasattr(value, "tolist") else []
    return plain if isinstance(plain, list) else []


EMBEDDINGS = Format(
    "embeddings (images.npy, texts.npy)",
    lambda source: is_embeddings(source.path),
    lambda source: read_embeddings(source.path, name=source.name),
    named_pictures=True,
    order=2,
)
