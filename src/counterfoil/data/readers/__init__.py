"""Recognises what a path is, and reads it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from counterfoil.core.config import unknown_name
from counterfoil.data.corrections import apply_corrections, corrections_beside, read_corrections
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import PictureFiles, Pictures, is_picture_name
from counterfoil.data.readers.embeddings import is_embeddings, read_embeddings
from counterfoil.data.readers.folder import LISTS, is_folder, read_folder
from counterfoil.data.readers.huggingface import is_huggingface, read_huggingface
from counterfoil.data.readers.karpathy import is_karpathy, read_karpathy
from counterfoil.data.readers.precomp import features_of, is_precomp, read_precomp

KNOWN = (
    "a Karpathy JSON (or a folder with dataset_*.json), captions.jsonl, .csv or .tsv, "
    "pictures with a .txt beside each, a precomp folder (train_ims.npy, train_caps.txt), "
    "embeddings (images.npy, texts.npy), a saved Hugging Face data set"
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
    """The data set that a path holds; what kind of data set it is shows in its files.

    ``open_corpus("flickr8k", features="flickr8k_regions")`` gives pictures and region features,
    joined by image id.

    Args:
        source: a file or folder; "scenes" or "scenes:seed=3,images=2000" for rendered pictures;
            "hf:NAME" for a data set of the Hugging Face hub.
        images: folder of the pictures, where they do not lie beside the captions.
        features: feature folder, precomp folder or `.npy` file with features of the images.
        name: what to call the data set in tables.
        restval: the split that COCO's "restval" images belong to.
        splits: of a precomp folder, the splits to read; all by default.
        decisions: file of label corrections, see `counterfoil.data.corrections`; by default
            ``corrections.jsonl`` or ``decisions.jsonl`` in the data's folder, where there is one.

    Raises:
        ValueError: it is nothing that can be read, it is damaged, or the decisions are of other
            data.
    """
    dataset = _read(str(source), _path(images), name, restval, splits)
    corrections, table = _path(decisions) or corrections_beside(str(source)), _path(features)
    if table is not None and table.is_file():  # a row for every image, dropped or not
        dataset = _featured(dataset, table)
    if corrections is not None:
        dataset = apply_corrections(dataset, read_corrections(corrections))
    return dataset if table is None or table.is_file() else _featured(dataset, table)


def _featured(dataset: ImageTextDataset, table: Path) -> ImageTextDataset:
    return replace(dataset, features=features_of(dataset.image_ids, table))


def _read(
    source: str, images: Path | None, name: str | None, restval: str, splits: Sequence[str]
) -> ImageTextDataset:
    kind, _, rest = source.partition(":")
    if kind == "scenes" and not Path(source).exists():
        _check_own(source, images)
        return _named(_scenes(rest), name)
    if kind == "hf":
        _check_own(source, images)
        return read_huggingface(rest, name=name)
    path = Path(source).expanduser()
    if not path.exists():
        hub = f'; for a data set of the hub write "hf:{source}"' if source.count("/") == 1 else ""
        raise ValueError(f"{source} does not exist; give {KNOWN}, or scenes{hub}")
    if is_karpathy(path):
        return read_karpathy(path, images=images, restval=restval, name=name)
    if path.name in LISTS or path.suffix in (".jsonl", ".csv", ".tsv"):
        return read_folder(path, images=images, name=name)
    if path.is_file():
        raise ValueError(f"{path} is no data set: looked for {KNOWN}")
    return _folder(path, images, name, restval, splits)


def _folder(
    path: Path, images: Path | None, name: str | None, restval: str, splits: Sequence[str]
) -> ImageTextDataset:
    if is_huggingface(path):
        _check_own(str(path), images)
        return read_huggingface(str(path), name=name)
    listed = sorted(path.glob("dataset_*.json"))
    if len(listed) > 1:
        names = ", ".join(file.name for file in listed)
        raise ValueError(f"{path} holds {names}; give the path of the one to read")
    if listed:
        return read_karpathy(listed[0], images=images, restval=restval, name=name)
    if is_precomp(path):
        return _pictured(read_precomp(path, name=name, splits=splits), images)
    if is_embeddings(path):
        return _pictured(read_embeddings(path, name=name), images)
    if is_folder(path):
        return read_folder(path, images=images, name=name)
    raise ValueError(f"{path} is no data set: looked for {KNOWN}")


def _pictured(dataset: ImageTextDataset, folder: Path | None) -> ImageTextDataset:
    return dataset if folder is None else replace(dataset, pictures=pictures_of(dataset, folder))


def pictures_of(dataset: ImageTextDataset, folder: Path) -> Pictures:
    """The pictures whose file names, with or without their ending, are the ids of the images.

    Raises:
        ValueError: images have no picture there.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; the pictures are needed there")
    files = {file.name: file for file in folder.iterdir() if is_picture_name(file)}
    files = {file.stem: file for file in files.values()} | files
    lost = [name for name in dataset.image_ids if name not in files]
    if lost:
        raise ValueError(
            f"{len(lost)} of {len(dataset)} images have no picture in {folder}, such as {lost[0]!r}"
        )
    return PictureFiles([files[name] for name in dataset.image_ids])


def _check_own(source: str, images: Path | None) -> None:
    """Refuse a folder of pictures for data that hold theirs."""
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
    dataset: ImageTextDataset = scenes(**values)
    return dataset


def _named(dataset: ImageTextDataset, name: str | None) -> ImageTextDataset:
    return dataset if name is None else replace(dataset, name=name)


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)
