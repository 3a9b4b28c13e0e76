"""Readers of data sets; `load_dataset` recognises the format of a path."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from counterfoil.core import registry
from counterfoil.core.config import unknown_name
from counterfoil.core.console import info
from counterfoil.core.shipped import SHIPPED
from counterfoil.data.checks import warn_of_left_out
from counterfoil.data.corrections import apply_corrections, corrections_beside, read_corrections
from counterfoil.data.dataset import ImageTextDataset, divided_by
from counterfoil.data.features import features_of, is_feature_table, warn_of_zeros
from counterfoil.data.files import find_pictures
from counterfoil.data.images import PictureFiles
from counterfoil.data.readers.columns import SPLIT, find_column
from counterfoil.data.readers.source import Format, Source

# The readers of this package, each imported when a path is read; of those of one `Format.order` the
# first that matches reads it.
_OWN = (
    "counterfoil.data.readers.huggingface:SAVED",
    "counterfoil.data.readers.karpathy:KARPATHY",
    "counterfoil.data.readers.dci:DCI",
    "counterfoil.data.readers.embeddings:EMBEDDINGS",
    "counterfoil.data.readers.coco:COCO",
    "counterfoil.data.readers.tokens:TOKENS",
    "counterfoil.data.readers.tables:TABLE",
    "counterfoil.data.readers.folder:BESIDE",
    "counterfoil.data.readers.webdataset:SHARDS",
    "counterfoil.data.readers.huggingface:PARQUET",
    "counterfoil.data.readers.folder:ALONE",
)
# what people have and no reader reads, by the ending, and what to do
_NOT_READ = {
    (".xlsx", ".xls", ".ods", ".numbers"): "is a spreadsheet; save it as CSV in UTF-8",
    (".gz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".rar", ".tgz"): "is packed; unpack it first",
    (".pkl", ".pickle"): "is pickled, which may run code; save it as JSON or CSV",
}


def load_dataset(
    source: str | Path | Any,
    *,
    images: str | Path | None = None,
    features: str | Path | None = None,
    name: str | None = None,
    restval: str = "train",
    splits: Sequence[str] = (),
    corrections: str | Path | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    split_column: str | None = None,
    fractions: Mapping[str, float] | None = None,
    seed: int = 0,
) -> ImageTextDataset:
    """Load a data set from files, whose format is recognised, or from memory.

    ``load_dataset("flickr8k", features="flickr8k_regions")`` has images and region features, joined
    by image id; ``load_dataset([("beach.jpg", "a dog by the sea"), ...])`` is from memory.

    Args:
        source: a file or folder; "scenes" or "scenes:seed=3,images=2000" for rendered scenes;
            "hf:NAME" for a data set of the Hugging Face hub. Or data in memory: a list of
            (picture, caption) pairs, a table of pandas, polars or pyarrow, a list of dicts, a
            `datasets.Dataset`, with the columns that files have; pictures are paths, PIL images,
            bytes of a file or uint8 arrays. Or a dict of arrays: "images" (I, D) or (I, R, D)
            vectors, "texts" (T, D) vectors or "captions" (T,) words or both, "owner" (T,) the image
            row of each text, and "image_ids", "text_ids", "splits" (I,).
        images: folder of the images, if they are not beside the captions.
        features: of the images: feature folder, precomp folder, ``img_db`` of UNITER, `.tsv` of
            bottom-up attention, or `.npy` file.
        name: of the data set in tables.
        restval: split of COCO's "restval" images.
        splits: splits of a precomp folder to read; all by default.
        corrections: file of label corrections, see `counterfoil.data.corrections`; by default
            ``corrections.jsonl`` in the data's folder, if it exists.
        image_column: of a table; by default one of the usual names.
        caption_column: of a table; by default one of the usual names, or numbered ones.
        split_column: of a table; by default "split" and the like. Images without a split get one
            by the hash of their id (80/10/10).
        fractions: divide the images anew, as ``{"train": 0.8, "dev": 0.1, "test": 0.1}``.
        seed: of `fractions`.

    Raises:
        ValueError: the format is unknown, a file is damaged, a value in memory does not fit, or the
            corrections are of other data.
    """
    on_disk = isinstance(source, str | Path)
    asked = Source(
        path=Path(source) if on_disk else Path(),
        images=_path(images),
        name=name,
        restval=restval,
        splits=tuple(splits),
        image_column=image_column,
        caption_column=caption_column,
        split_column=split_column,
    )
    if on_disk:
        dataset = _read(asked, str(source))
    else:
        from counterfoil.data.readers.memory import read_memory  # which loads those of tables

        dataset = read_memory(source, asked)
    decided, table = _path(corrections), _path(features)
    if decided is None and on_disk:
        decided = corrections_beside(str(source))
    # A .npy file has a row for every image of the uncorrected data, so it is attached first.
    if table is not None and table.is_file():
        dataset = _with_features(dataset, table)
    if decided is not None:
        dataset = apply_corrections(dataset, read_corrections(decided))
    if table is not None and not table.is_file():
        dataset = _with_features(dataset, table)
    if fractions is not None:
        dataset = _divided(dataset, fractions, seed)
    warn_of_left_out(dataset)
    for stored in (dataset.features, dataset.text_features):
        if stored is not None:
            warn_of_zeros(stored)
    return dataset


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def _with_features(dataset: ImageTextDataset, table: Path) -> ImageTextDataset:
    return replace(dataset, features=features_of(dataset.image_ids, table))


def _divided(
    dataset: ImageTextDataset, fractions: Mapping[str, float], seed: int
) -> ImageTextDataset:
    """The data set with other splits; a column that held them is gone."""
    splits = divided_by(dataset.image_ids, fractions, seed)
    old = find_column(list(dataset.columns), SPLIT)
    columns = {name: values for name, values in dataset.columns.items() if name != old}
    return replace(dataset, splits=splits, columns=columns)


def _read(source: Source, given: str) -> ImageTextDataset:
    kind, _, rest = given.partition(":")
    if kind == "scenes" and not source.path.exists():
        _check_options(source, holds_pictures=True, has_columns=False)
        dataset = _scenes(rest)
        return dataset if source.name is None else replace(dataset, name=source.name)
    if kind == "hf":
        from counterfoil.data.readers.huggingface import read_huggingface

        _check_options(source, holds_pictures=True, has_columns=True)
        return read_huggingface(rest, source)
    source.path = source.path.expanduser()
    if not source.path.exists():
        hub = f'; for a data set of the hub write "hf:{given}"' if given.count("/") == 1 else ""
        raise ValueError(f"{given} does not exist; give {_known()}, or scenes{hub}")
    if not source.path.is_dir() and not source.path.is_file():
        raise ValueError(f"{given} is neither a file nor a folder; give {_known()}, or scenes")
    # a table of bottom-up attention has no names of columns
    if ".tsv" in source.path.suffixes and source.path.is_file() and is_feature_table(source.path):
        raise ValueError(
            f"{given} holds features of images and no captions; name it with a data "
            f"set, as in --data my-photos/:features={given}, or convert it first: counterfoil "
            f"features {given} FOLDER"
        )
    for format in _formats(source):
        if format.matches(source):
            foreign = registered_formats(source.path, foreign=True)
            if source.path.is_dir() and any(other is format for other in foreign):
                info(f"{source.path} is read as {format.name}, a reader of another package")
            return _read_as(format, source)
    raise ValueError(_unknown(source))


def own_formats() -> tuple[Format, ...]:
    """The formats of this package."""
    return tuple(resolve_name(place) for place in _OWN)


def _formats(source: Source) -> list[Format]:
    """The formats to try, in their order."""
    registered = registered_formats(source.path)
    return sorted((*registered, *own_formats()), key=attrgetter("order"))


def registered_formats(path: Path, *, foreign: bool = False) -> Iterator[Format]:
    """The registered formats whose pattern fits a file, or a file in a folder.

    `foreign` are those of other packages alone.
    """
    for pattern in registry.names("reader"):
        if foreign and pattern in SHIPPED["reader"]:
            continue
        if path.match(pattern) if path.is_file() else any(path.glob(pattern)):
            yield registry.find("reader", pattern)


def _read_as(format: Format, source: Source) -> ImageTextDataset:
    _check_options(source, holds_pictures=format.holds_pictures, has_columns=format.has_columns)
    dataset = format.read(source)
    if format.named_pictures and source.images is not None:
        return replace(dataset, pictures=_pictures_of(dataset.image_ids, source))
    return dataset


def _known() -> str:
    """The formats that are read, for messages."""
    others = (registry.find("reader", pattern).name for pattern in registry.names("reader"))
    return ", ".join(dict.fromkeys((*(format.name for format in own_formats()), *others)))


def _unknown(source: Source) -> str:
    """What is wrong with a path that no format fits."""
    path = source.path
    for pattern in registry.absent("reader") if path.is_dir() else ():
        if any(path.glob(pattern)):
            return registry.without_papers(f"the reader of {path} (a folder with {pattern})")
    for format in registered_formats(path) if path.is_file() else ():
        if format.matches(Source(path=path.parent)):
            return f"{path} is a file of {format.name}; give its folder, {path.parent}"
    files = [path] if path.is_file() else [f for f in source.listing.files if f.parent == path]
    for endings, reason in _NOT_READ.items():
        for file in files:
            if file.suffix.lower() in endings:
                return f"{file} {reason}"
    document = source.document(path) if path.suffix.lower() == ".json" else None
    keys = ", ".join(map(repr, list(document)[:5])) if isinstance(document, dict) else ""
    form = f" (JSON with the keys {keys})" if keys else ""
    left_out = () if path.is_file() else source.listing.left_out
    besides = f"; {'; '.join(map(str, left_out))}" if left_out else ""
    return f"{path} is no data set{form}: looked for {_known()}{besides}"


def _pictures_of(image_ids: Sequence[str], source: Source) -> PictureFiles:
    """Image files whose names, with or without extension, are the ids of the images."""
    listing = source.pictures
    paths = find_pictures(image_ids, listing, where=str(listing.folder))
    missing = [name for name, path in zip(image_ids, paths) if not path.is_file()]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(image_ids)} images have no picture in {listing.folder}, such "
            f"as {missing[0]!r}"
        )
    return PictureFiles(paths)


def _check_options(source: Source, *, holds_pictures: bool, has_columns: bool) -> None:
    """Refuse options that a format does not take."""
    if source.images is not None and holds_pictures:
        raise ValueError(f"{source.path} has its own pictures; leave out images={source.images}")
    if source.columns and not has_columns:
        names = " and ".join(name.replace("_", "-") for name in source.columns)
        raise ValueError(f"{source.path} has no columns; leave out {names}")


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
