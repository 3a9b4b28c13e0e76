"""Data sets from memory: pairs, tables, Hugging Face data sets, and arrays of vectors."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import torch
from PIL import Image

from counterfoil.core.console import warn
from counterfoil.core.rgb import rgb
from counterfoil.data.dataset import ImageTextDataset, build_dataset
from counterfoil.data.files import LeftOut
from counterfoil.data.images import PictureFiles, Pictures, decode_picture, size_and_time
from counterfoil.data.readers.annotations import Annotations, merged_images
from counterfoil.data.readers.columns import SPLIT, find_column, image_column
from counterfoil.data.readers.embeddings import VECTORS, dataset_of_vectors
from counterfoil.data.readers.source import Source
from counterfoil.data.readers.tables import add_rows

NAME = "data"  # of a data set that has none
ACCEPTED = (
    "a list of (picture, caption) pairs, a table of pandas, polars or pyarrow, a list of dicts, a "
    f"datasets.Dataset, or a dict of arrays ({', '.join(VECTORS)})"
)

_Stored: TypeAlias = Path | bytes | Image.Image


def read_memory(given: Any, source: Source) -> ImageTextDataset:
    """Read what is in memory, with the columns and the name of a source.

    Args:
        given: what `ACCEPTED` says. A picture is a path, a PIL image, the bytes of a file, or a
            (H, W) or (H, W, 3) uint8 array; equal pictures in memory are one image.
        source: paths are relative to `Source.images`, or to the current folder.

    Raises:
        ValueError: it is something else, a column or a picture is missing, or a value does not fit.
    """
    library = type(given).__module__.partition(".")[0]
    if library == "datasets":
        return _read_datasets(given, source)
    if isinstance(given, Mapping) and _holds_vectors(given):
        _check_no_columns(source, "a dict of arrays")
        return dataset_of_vectors(given, source.name or NAME, "the dict")
    if (rows := _rows_of_table(given, library)) is not None:
        return _read_rows(rows, f"the {type(given).__name__}", source)
    if isinstance(given, np.ndarray | torch.Tensor):
        raise ValueError(
            f"an array of shape {tuple(given.shape)} has no captions; give a dict of "
            f"{', '.join(VECTORS)}"
        )
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        raise ValueError(f"{type(given).__name__} is no data set; give a path, or {ACCEPTED}")
    items = list(given)
    if items and all(isinstance(item, Mapping) for item in items):
        return _read_rows(
            [{str(k): v for k, v in row.items()} for row in items], "the list", source
        )
    _check_no_columns(source, "a list of pairs")
    return _read_rows([_pair(item, place) for place, item in enumerate(items)], "the list", source)


def _check_no_columns(source: Source, what: str) -> None:
    for argument, column in source.columns.items():
        raise ValueError(f"{what} has no columns; leave out {argument}={column!r}")


def _pair(item: Any, place: int) -> dict[str, Any]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        shown = repr(item) if len(repr(item)) < 80 else f"{repr(item)[:80]} …"
        raise ValueError(
            f"item {place} of the list is {shown}; a pair is needed, as ('beach.jpg', 'a dog by "
            "the sea'); two lists become pairs by list(zip(paths, captions)), and arrays of "
            "vectors are given as {'images': …, 'captions': …, 'owner': …}"
        )
    return {"image": item[0], "caption": item[1]}


def _rows_of_table(given: Any, library: str) -> list[dict[str, Any]] | None:
    """The rows of a table as dicts with None for what is missing; None if it is no table."""
    if library == "pandas" and hasattr(given, "columns"):
        plain = given.astype(object).where(given.notna(), None)
        return [{str(k): v for k, v in row.items()} for row in plain.to_dict("records")]
    if library == "polars" and hasattr(given, "collect"):
        given = given.collect()
    if library == "polars" and hasattr(given, "to_dicts"):
        rows: list[dict[str, Any]] = given.to_dicts()
        return rows
    if library == "pyarrow" and hasattr(given, "column_names"):
        rows = given.to_pylist()
        return rows
    if isinstance(given, Mapping):
        columns = {str(name): list(values) for name, values in given.items() if _is_list(values)}
        if len(columns) < len(given) or len({len(values) for values in columns.values()}) > 1:
            shown = ", ".join(
                f"{name!r}: {len(values) if _is_list(values) else type(values).__name__}"
                for name, values in given.items()
            )
            raise ValueError(
                f"a dict of columns needs lists of one length, not {{{shown}}}; give {ACCEPTED}"
            )
        return [dict(zip(columns, row)) for row in zip(*columns.values())]
    return None


def _is_list(values: Any) -> bool:
    return isinstance(values, Sequence | np.ndarray | torch.Tensor) and not isinstance(values, str)


def _holds_vectors(given: Mapping[Any, Any]) -> bool:
    """Whether a dict has vectors of images, or of texts, as the files of embeddings are called."""
    return any(np.ndim(given[key]) >= 2 for key in ("images", "texts") if _is_array(given.get(key)))


def _is_array(value: Any) -> bool:
    if isinstance(value, np.ndarray | torch.Tensor):
        return True
    return isinstance(value, list) and bool(value) and isinstance(value[0], list | np.ndarray)


def _read_datasets(given: Any, source: Source) -> ImageTextDataset:
    """A `datasets.Dataset`, or the splits of a `datasets.DatasetDict`."""
    import datasets

    from counterfoil.data.readers.huggingface import holds_pictures, read_tables

    tables = dict(given) if isinstance(given, dict) else {str(given.split or ""): given}
    if not all(isinstance(table, datasets.Dataset) for table in tables.values()):
        raise ValueError(
            f"{type(given).__name__} is read from a stream, and its images are needed in any "
            "order; take what you need: datasets.Dataset.from_list(list(data.take(1000)))"
        )
    tables = {str(split): table.with_format(None) for split, table in tables.items()}
    where = f"the {type(given).__name__}"
    info = next(iter(tables.values())).info if tables else None
    name = source.name or (info and info.dataset_name) or NAME
    if any(holds_pictures(table, source.image_column) for table in tables.values()):
        if source.images is not None:
            raise ValueError(f"{where} has its own pictures; leave out images={source.images}")
        return read_tables(tables, where, source, name=name)
    rows: list[dict[str, Any]] = []
    for split, table in tables.items():
        own = source.split_column or find_column(table.column_names, SPLIT)
        more = {} if own or len(tables) == 1 else {"split": split}
        rows += [{**row, **more} for row in table.to_list()]
    return _read_rows(rows, where, source, name=name)


def _read_rows(
    rows: Sequence[dict[str, Any]], where: str, source: Source, *, name: str = ""
) -> ImageTextDataset:
    """Rows with a picture each; rows of one image are merged."""
    if not rows:
        raise ValueError(f"{where} is empty; at least one picture with a caption is needed")
    names = list(dict.fromkeys(column for row in rows for column in row))
    column = image_column(names, where, source.image_column)
    held: dict[str, _Stored] = {}  # pictures by the names that stand in their place
    digests: dict[str, str] = {}
    named = []
    for place, row in enumerate(rows):
        image = _picture(row.get(column), f"{where}, row {place}")
        if image is not None and not isinstance(image, str):
            key = digests.setdefault(_digest(image), f"picture/{place:06d}")
            held.setdefault(key, image)
            image = key
        named.append((f"{where}, row {place}", {**row, column: image}))
    notes, bad = Annotations(), list[str]()
    add_rows(notes, source, named, names, bad, cells=False)
    if bad:
        others = f" (and {len(bad) - 1:,} other rows do not fit)" if len(bad) > 1 else ""
        raise ValueError(f"{bad[0]}{others}")
    for annotation in notes.rows:
        annotation.split = source.split_named(annotation.split)
    folder = Path.cwd() if source.images is None else source.images.absolute()
    paths = [folder / Path(row.picture).expanduser() for row in notes.rows]
    images = merged_images(zip(notes.rows, paths))
    _check_files([i.path for i in images if i.first.picture not in held], rows[0], where, folder)
    left_out = [LeftOut(reason, tuple(some)) for reason, some in notes.left_out.items()]
    for remark in left_out:
        warn(f"{where}: {remark}")
    return build_dataset(
        source.name or name or NAME,
        [image.entry for image in images],
        where=where,
        pictures=HeldPictures((i.id, held.get(i.first.picture, i.path)) for i in images)
        if held
        else PictureFiles(image.path for image in images),
        left_out=left_out,
    )


def _picture(value: Any, where: str) -> _Stored | str | None:
    """A picture, or the name of its file; None where there is none."""
    if isinstance(value, Mapping) and value.get("bytes") is not None:  # as Hugging Face stores it
        value = value["bytes"]
    if isinstance(value, Mapping):
        value = value.get("path")
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        try:
            return Image.fromarray(value)
        except (TypeError, ValueError, KeyError):
            raise ValueError(
                f"{where}: the image is an array of shape {value.shape} of {value.dtype}; a (H, W, "
                "3) or (H, W) one of uint8 is needed"
            ) from None
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, str | bytes | Image.Image):
        return value
    raise ValueError(
        f"{where}: the image is {type(value).__name__}; a path, a PIL image, bytes or an array is "
        "needed"
    )


def _digest(picture: _Stored) -> str:
    """A hash of a picture in memory."""
    if isinstance(picture, bytes):
        return hashlib.sha256(picture).hexdigest()
    assert isinstance(picture, Image.Image)
    about = f"{picture.mode} {picture.size} {picture.info.get('transparency')}"
    return hashlib.sha256(about.encode() + picture.tobytes()).hexdigest()


def _check_files(paths: Sequence[Path], first: Mapping[str, Any], where: str, folder: Path) -> None:
    """Refuse pictures that are not there."""
    missing = [path for path in paths if not os.path.isfile(path)]  # noqa: PTH113 - long names
    if not missing:
        return
    caption = first.get("caption")
    if isinstance(caption, str) and os.path.isfile(folder / caption):  # noqa: PTH113
        raise ValueError(
            f"{where} has captions first; write the picture first, as ({caption!r}, 'a dog by the "
            "sea')"
        )
    raise ValueError(
        f"{where}: {len(missing):,} of {len(paths):,} pictures are not there, such as "
        f"{missing[0]}; images= names the folder that the paths are relative to"
    )


@final
class HeldPictures(Pictures):
    """Images in memory, and files among them; a row is an id and what `Pictures.stored` returns."""

    def __init__(self, rows: Iterable[tuple[str, _Stored]]) -> None:
        super().__init__(
            (name, stored, "" if isinstance(stored, Path) else _digest(stored))
            for name, stored in rows
        )

    def open(self, row: int) -> Image.Image:
        _, stored, _ = self.rows[row]
        if isinstance(stored, Image.Image):
            return rgb(stored)
        file = stored if isinstance(stored, Path) else io.BytesIO(stored)
        return decode_picture(file, self.place(row))

    def place(self, row: int) -> str:
        name, stored, _ = self.rows[row]
        return str(stored) if isinstance(stored, Path) else str(name)

    def fingerprint(self, row: int) -> str:
        _, stored, digest = self.rows[row]
        return digest or f"{stored}{size_and_time(stored)}"

    def stored(self, row: int) -> Path | bytes | None:
        _, stored, _ = self.rows[row]
        return None if isinstance(stored, Image.Image) else stored

    def byte_count(self, row: int) -> int | None:
        _, stored, _ = self.rows[row]
        if isinstance(stored, bytes):
            return len(stored)
        known = size_and_time(stored) if isinstance(stored, Path) else None
        return known and known[0]
