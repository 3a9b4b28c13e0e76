"""Readers of data sets; `load_dataset` recognises the format of a path."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from counterfoil.core.config import unknown_name
from counterfoil.data.checks import warn_of_left_out
from counterfoil.data.corrections import apply_corrections, corrections_beside, read_corrections
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import features_of, warn_of_zeros
from counterfoil.data.files import find_pictures, list_files
from counterfoil.data.images import PictureFiles
from counterfoil.data.readers.embeddings import is_embeddings, read_embeddings
from counterfoil.data.readers.folder import is_folder, is_picture_folder, read_folder
from counterfoil.data.readers.huggingface import is_huggingface, is_parquet, read_huggingface
from counterfoil.data.readers.karpathy import is_karpathy, read_karpathy
from counterfoil.data.readers.tables import LISTS
from counterfoil.data.readers.webdataset import is_webdataset, read_webdataset
from counterfoil.papers.readers.precomp import is_precomp, read_precomp
from counterfoil.papers.readers.uniter import (
    is_detector_table,
    is_text_database,
    read_text_database,
)

KNOWN = (
    "a Karpathy JSON (or a folder with dataset_*.json), captions.jsonl, .csv or .tsv, "
    "pictures alone or with a .txt beside each, a precomp folder (train_ims.npy, train_caps.txt), "
    "embeddings (images.npy, texts.npy), a txt_db of UNITER, a saved Hugging Face data set, "
    "parquet files, WebDataset shards (.tar)"
)


def load_dataset(
    source: str | Path,
    *,
    images: str | Path | None = None,
    features: str | Path | None = None,
    name: str | None = None,
    restval: str = "train",
    splits: Sequence[str] = (),
    decisions: str | Path | None = None,
) -> ImageTextDataset:
    """Load a data set; its format is recognised by its files.

    ``load_dataset("flickr8k", features="flickr8k_regions")`` has images and region features, joined
    by image id.

    Args:
        source: a file or folder; "scenes" or "scenes:seed=3,images=2000" for rendered scenes;
            "hf:NAME" for a data set of the Hugging Face hub.
        images: folder of the images, if they are not beside the captions.
        features: of the images: feature folder, precomp folder, ``img_db`` of UNITER, `.tsv` of
            bottom-up attention, or `.npy` file.
        name: of the data set in tables.
        restval: split of COCO's "restval" images.
        splits: splits of a precomp folder to read; all by default.
        decisions: file of label corrections, see `counterfoil.data.corrections`; by default
            ``corrections.jsonl`` or ``decisions.jsonl`` in the data's folder, if it exists.

    Raises:
        ValueError: the format is unknown, a file is damaged, or the corrections are of other data.
    """
    dataset = _read(str(source), _path(images), name, restval, splits)
    corrections, table = _path(decisions) or corrections_beside(str(source)), _path(features)
    # A .npy file has a row for every image of the uncorrected data, so it is attached first.
    if table is not None and table.is_file():
        dataset = _with_features(dataset, table)
    if corrections is not None:
        dataset = apply_corrections(dataset, read_corrections(corrections))
    if table is not None and not table.is_file():
        dataset = _with_features(dataset, table)
    warn_of_left_out(dataset)
    for stored in (dataset.features, dataset.text_features):
        if stored is not None:
            warn_of_zeros(stored)
    return dataset


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def _with_features(dataset: ImageTextDataset, table: Path) -> ImageTextDataset:
    return replace(dataset, features=features_of(dataset.image_ids, table))


def _read(
    source: str, images: Path | None, name: str | None, restval: str, splits: Sequence[str]
) -> ImageTextDataset:
    kind, _, rest = source.partition(":")
    if kind == "scenes" and not Path(source).exists():
        _check_no_images(source, images)
        dataset = _scenes(rest)
        return dataset if name is None else replace(dataset, name=name)
    if kind == "hf":
        _check_no_images(source, images)
        return read_huggingface(rest, name=name)
    path = Path(source).expanduser()
    if not path.exists():
        hub = f'; for a data set of the hub write "hf:{source}"' if source.count("/") == 1 else ""
        raise ValueError(f"{source} does not exist; give {KNOWN}, or scenes{hub}")
    return _read_files(path, images, name, restval, splits)


def _read_files(
    path: Path, images: Path | None, name: str | None, restval: str, splits: Sequence[str]
) -> ImageTextDataset:
    listed = [] if is_huggingface(path) else sorted(path.glob("dataset_*.json"))
    if len(listed) > 1:
        names = ", ".join(file.name for file in listed)
        raise ValueError(f"{path} holds {names}; give the path of the one to read")
    if listed or is_karpathy(path):
        return read_karpathy(*listed or [path], images=images, restval=restval, name=name)
    if path.is_file() and is_detector_table(path):
        raise ValueError(
            f"{path} holds features of images and no captions; name it as --features of a data "
            f"set, or convert it first: counterfoil features {path} FOLDER"
        )
    if not is_huggingface(path):
        for is_format, read in (
            (is_precomp, partial(read_precomp, splits=splits)),
            (is_text_database, read_text_database),
            (is_embeddings, read_embeddings),
        ):
            if is_format(path):
                dataset = read(path, name=name)
                pictures = None if images is None else pictures_of(dataset.image_ids, images)
                return replace(dataset, pictures=pictures)
        if path.name in LISTS or path.suffix in (".jsonl", ".csv", ".tsv") or is_folder(path):
            return read_folder(path, images=images, name=name)
        if not is_webdataset(path) and not is_parquet(path):
            if is_picture_folder(path):
                return read_folder(path, images=images, name=name)
            raise ValueError(f"{path} is no data set: looked for {KNOWN}")
    _check_no_images(str(path), images)
    if is_webdataset(path):
        return read_webdataset(path, name=name)
    return read_huggingface(str(path), name=name)


def pictures_of(image_ids: Sequence[str], folder: Path) -> PictureFiles:
    """Image files whose names, with or without extension, are the ids of the images."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; the pictures are needed there")
    paths = find_pictures(image_ids, list_files(folder), where=str(folder))
    missing = [name for name, path in zip(image_ids, paths) if not path.is_file()]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(image_ids)} images have no picture in {folder}, such as "
            f"{missing[0]!r}"
        )
    return PictureFiles(paths)


def _check_no_images(source: str, images: Path | None) -> None:
    """Refuse an image folder for data that contain their images."""
    if images is not None:
        raise ValueError(f"{source} has its own pictures; leave out --images {images}")


def _scenes(settings: str) -> ImageTextDataset:
    from counterfoil.data.scenes import scenes

    known = list(inspect.signature(scenes).parameters)
    values: dict[str, Any] = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = (part.strip() for part in setting.partition("="))
        if key not in known:
            raise ValueError(unknown_name(key, known, "a setting of scenes"))
        if key == "features":
            values[key] = value
            continue
        if not value.removeprefix("-").isdecimal():
            raise ValueError(f"scenes: {setting!r} needs a whole number, as in {key}=3")
        values[key] = int(value)
    return scenes(**values)
