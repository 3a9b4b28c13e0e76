"""Hugging Face data sets and parquet files with an image column and a caption column."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from PIL import Image

from counterfoil.core.console import warn
from counterfoil.core.io import check_file
from counterfoil.core.optional import optional_import
from counterfoil.data.dataset import (
    ColumnValue,
    DatasetEntry,
    ImageTextDataset,
    build_dataset,
    canonical_split,
    first_values,
)
from counterfoil.data.files import FolderFiles, LeftOut, mostly
from counterfoil.data.images import Pictures, decode_picture, size_and_time
from counterfoil.data.readers.annotations import NO_CAPTION
from counterfoil.data.readers.columns import (
    ID,
    IMAGE,
    SPLIT,
    captions_column,
    captions_of,
    chosen_column,
    find_column,
    image_column,
    plain_column,
)
from counterfoil.data.readers.source import Format, Source, split_of_file


@final
@dataclass(slots=True)
class _ImageEntry:
    """An image whose rows are being read; `table` and `row` are those of its picture."""

    id: str
    table: str
    row: int
    split: str
    texts: list[str]
    columns: dict[str, ColumnValue]
    nulls: int  # captions that are null
    named: bool  # whether a column names the image


@final
class DatasetPictures(Pictures):
    """Images in columns of data sets, decoded when opened; a row is a split and a row of it.

    `sources` has for each split a data set of one column, its images as bytes or paths.
    """

    def __init__(
        self, sources: Mapping[str, Any], rows: Iterable[tuple[str, int]], name: str
    ) -> None:
        super().__init__(rows)
        self.sources, self.name = sources, name
        self._stamps = {split: _file_stamps(table) for split, table in sources.items()}
        self._paths = {split: _paths(table) for split, table in sources.items()}

    def open(self, row: int) -> Image.Image:
        stored = self.stored(row)
        file = stored if isinstance(stored, Path) else io.BytesIO(stored)
        return decode_picture(file, self.place(row))

    def stored(self, row: int) -> Path | bytes:
        split, place = self.rows[row]
        (cell,) = self.sources[split][place].values()
        content, path = (None, "") if cell is None else (cell["bytes"], cell["path"] or "")
        if content is None and not path:
            raise ValueError(f"{self.place(row)} cannot be read as a picture: the cell is empty")
        return Path(path) if content is None else bytes(content)

    def place(self, row: int) -> str:
        split, place = self.rows[row]
        return f"{self.name}/{split or 'row'}/{place}@{self.sources[split]._fingerprint}"

    def fingerprint(self, row: int) -> str:
        split, place = self.rows[row]
        path = self._paths[split].get(place)
        stamp = "" if path is None else f"{path}{size_and_time(Path(path))}"
        return f"{self.place(row)} {self._stamps[split]} {stamp}"

    def byte_count(self, row: int) -> int | None:
        split, place = self.rows[row]
        count: int | None = self._byte_counts[split][place]
        if (path := self._paths[split].get(place)) is not None:
            known = size_and_time(Path(path))
            count = known and known[0]
        return count

    @cached_property
    def _byte_counts(self) -> dict[str, list[int | None]]:
        """Of the images that are in the tables."""
        return {split: _lengths(table) for split, table in self.sources.items()}


def _file_stamps(table: Any) -> list[tuple[int, int] | None]:
    """Size and time of the files of a data set."""
    return [size_and_time(Path(file["filename"])) for file in table.cache_files]


def _lengths(table: Any) -> list[int | None]:
    import pyarrow.compute as pc

    lengths: list[int | None] = _in_order(table, pc.binary_length(_contents(table))).to_pylist()
    return lengths


def _in_order(table: Any, values: Any) -> Any:
    """Values of all rows as the data set orders them, which may be a choice of rows."""
    return values if table._indices is None else values.take(table._indices.column(0))


def _contents(table: Any) -> Any:
    """The bytes of a column of images, which are not copied."""
    import pyarrow.compute as pc

    (column,) = table.column_names
    return pc.struct_field(table.data.column(column), "bytes")


def _paths(table: Any) -> dict[int, str]:
    """Rows of a column of images that are files of their own, with their paths."""
    import pyarrow.compute as pc

    content = _contents(table)
    if not content.null_count:
        return {}
    (column,) = table.column_names
    cells = pc.struct_field(table.data.column(column), "path")
    paths = _in_order(table, pc.if_else(pc.is_null(content), cells, None)).to_pylist()
    return {row: path for row, path in enumerate(paths) if path}


def is_huggingface(folder: Path) -> bool:
    """Return True if a folder was written by ``save_to_disk``."""
    several = (folder / "dataset_dict.json").exists()
    return several or all((folder / n).exists() for n in ("dataset_info.json", "state.json"))


def is_parquet(path: Path, listing: FolderFiles | None = None) -> bool:
    """Return True if a path is a parquet file, or a folder with parquet files."""
    return bool(mostly(path, ".parquet", listing=listing))


def read_huggingface(source: str, options: Source | None = None) -> ImageTextDataset:
    """Read a data set from a folder (``save_to_disk``), from parquet files or from the hub.

    For `options` see `read_tables`. A parquet file belongs to the split that its name says, as in
    ``validation-00000-of-00001.parquet``.
    """
    name = source.rstrip("/").rpartition("/")[2].removesuffix(".parquet")
    return read_tables(load_tables(source), source, options or Source(path=Path(source)), name=name)


def read_tables(
    tables: Mapping[str, Any], where: str, options: Source, *, name: str
) -> ImageTextDataset:
    """Read data sets of Hugging Face, by split.

    The caption column contains a caption or a list of them; captions that are null are left out.
    Rows with one image id are merged, and where no column has ids, rows of a split with one
    picture, of equal bytes or one path. Other columns of text, numbers and dates are
    `ImageTextDataset.columns`; where the rows of an image differ, the first value counts. A "split"
    column takes precedence over the splits of the data set; without one, a single split "train" is
    divided by the hash of the id. One picture in several splits is warned of.

    Args:
        tables: by split; "" for none.
        where: they are from, for messages.
        options: names of columns and of the data set.
        name: of the data set, if the options have none.
    """
    name = options.name or name
    columns = {s: _image_column(table, where, options.image_column) for s, table in tables.items()}
    sources = {split: _pictures(table, columns[split]) for split, table in tables.items()}
    repeated = _repeated(sources)
    by_picture: dict[str, dict[str, str]] = {}  # ids by split, of pictures that are repeated
    images: dict[str, _ImageEntry] = {}
    silent: list[str] = []
    for row in _rows(tables, columns, where, options):
        row.split = options.restval if row.split == "restval" else row.split
        if not row.named and (picture := repeated.get((row.table, row.row))):
            row.id = by_picture.setdefault(picture, {}).setdefault(row.split, row.id)
        silent += [row.id] * row.nulls
        first = images.setdefault(row.id, row)
        if first is row:
            continue
        if first.split != row.split:
            raise ValueError(
                f"{where}: image {row.id!r} is in splits {first.split!r} and {row.split!r}"
            )
        first.texts.extend(row.texts)
        first_values(first.columns, row.columns)
    left_out = [LeftOut(NO_CAPTION, tuple(silent))] if silent else []
    for remark in left_out:
        warn(f"{where}: {remark}")
    _warn_of_shared(by_picture, where)
    return build_dataset(
        name,
        [
            DatasetEntry(image.id, image.split, tuple(image.texts), columns=image.columns)
            for image in images.values()
        ],
        where=where,
        pictures=DatasetPictures(sources, [(i.table, i.row) for i in images.values()], name),
        left_out=left_out,
    )


def _pictures(table: Any, column: str) -> Any:
    """The images of a table as bytes and paths, which are decoded here as everywhere."""
    import datasets

    return table.select_columns([column]).cast_column(column, datasets.Image(decode=False))


_TAIL = 256  # bytes at the end of a picture, by which those of one length nearly always differ


def _repeated(sources: Mapping[str, Any]) -> dict[tuple[str, int], str]:
    """Rows whose picture another row has too, with a key of its bytes or path.

    Only pictures of one length and end are read as a whole.
    """
    pictures: dict[tuple[str, int], Any] = {}
    ends: dict[tuple[str, int], object] = {}
    for split, table in sources.items():
        contents, paths = _contents(table), _paths(table)
        chosen = None if table._indices is None else table._indices.column(0).to_pylist()
        for row, stored in enumerate(range(len(table)) if chosen is None else chosen):
            if (buffer := contents[stored].as_buffer()) is not None:
                pictures[split, row] = buffer
                ends[split, row] = len(buffer), bytes(memoryview(buffer)[-_TAIL:])
            elif row in paths:
                ends[split, row] = paths[row]
    counts = Counter(ends.values())
    return {
        place: hashlib.sha256(pictures[place]).hexdigest() if place in pictures else str(end)
        for place, end in ends.items()
        if counts[end] > 1
    }


def _warn_of_shared(by_picture: Mapping[str, Mapping[str, str]], where: str) -> None:
    """Warn of pictures that are in several splits."""
    shared = [ids for ids in by_picture.values() if len(ids) > 1]
    if shared:
        (one, first), (other, second), *_ = shared[0].items()
        count = "1 picture is" if len(shared) == 1 else f"{len(shared):,} pictures are"
        warn(
            f"{where}: {count} in several splits, such as {first} in {one} and {second} in "
            f"{other}; a model is then tested on what it was trained on, so keep all rows of a "
            "picture in one split"
        )


def load_tables(source: str) -> dict[str, Any]:
    """The data sets of a folder (``save_to_disk``), of parquet files or of the hub, by split.

    Raises:
        ValueError: it cannot be read, or `datasets` is not installed.
    """
    needs = f'the data set {source!r} needs datasets: pip install "counterfoil[hf]"'
    datasets = optional_import("datasets", needs)
    try:
        if not is_huggingface(Path(source)) and is_parquet(Path(source)):
            loaded = _load_parquet(Path(source))
        elif Path(source).is_dir():
            for file in Path(source).glob("**/*"):
                if file.exists() and not file.is_dir():
                    check_file(file)  # a pipe would hang in pyarrow, where no signal ends it
            loaded = datasets.load_from_disk(source)
        else:
            loaded = datasets.load_dataset(source)
    except Exception as error:  # datasets raises a dozen classes of its own
        first = (str(error).strip() or repr(error)).splitlines()[0]
        raise ValueError(f"the data set {source!r} cannot be read: {first}") from error
    return dict(loaded) if isinstance(loaded, dict) else {str(loaded.split or ""): loaded}


def _load_parquet(path: Path) -> dict[str, Any]:
    """Tables of parquet files by split."""
    import datasets

    files: dict[str, list[str]] = {}
    folder = path if path.is_dir() else path.parent
    for file in mostly(path, ".parquet"):
        files.setdefault(split_of_file(file, folder) or "train", []).append(str(file))
    return {split: datasets.Dataset.from_parquet(some) for split, some in files.items()}


def holds_pictures(table: Any, column: str | None) -> bool:
    """Whether a data set has pictures in it, in a column if one is named, and not only names."""
    holding = _holding(table)
    return column in holding if column else find_column(holding, IMAGE) is not None


def _holding(table: Any) -> list[str]:
    """The columns that may hold pictures."""
    import datasets

    return [
        name
        for name, feature in table.features.items()
        if isinstance(feature, datasets.Image | dict)
        or (isinstance(feature, datasets.Value) and "binary" in feature.dtype)
    ]


def picture_columns(table: Any) -> dict[str, Any]:
    """The columns of a data set that hold pictures, as data sets of bytes and paths."""
    return {
        name: _pictures(table, name)
        for name in _holding(table)
        if {"bytes", "path"} <= _fields(table.features[name])
    }


def _fields(feature: Any) -> set[str]:
    """What a column of pictures holds."""
    return set(feature) if isinstance(feature, dict) else {"bytes", "path"}


def _image_column(table: Any, source: str, chosen: str | None) -> str:
    """The column of pictures: bytes with a path, or a path; a name or address alone is none."""
    holding = _holding(table)
    found = None if chosen else find_column(holding, IMAGE)
    named = [name for name in table.column_names if plain_column(name) in ("image", "img")]
    names = table.column_names if chosen else named or table.column_names
    return found or image_column(names, source, chosen, known=IMAGE[:4])


def _rows(
    tables: Mapping[str, Any], images: Mapping[str, str], source: str, options: Source
) -> Iterator[_ImageEntry]:
    """Every row as an image of its own; pictures are not decoded."""
    import datasets

    for split, table in tables.items():
        names = [name for name in table.column_names if name != images[split]]
        captions = captions_column(names, source, options.caption_column)
        labels = {n: f for n, f in table.features.items() if isinstance(f, datasets.ClassLabel)}
        plain = [
            name
            for name, feature in table.features.items()
            if isinstance(feature, datasets.Value) and "binary" not in feature.dtype
        ]
        others = [name for name in names if name not in captions]
        key, split_name = find_column(others, (*ID, "filename")), find_column(others, SPLIT)
        if options.split_column:
            split_name = chosen_column(options.split_column, others, source)
        wanted = dict.fromkeys([*captions, *filter(None, (key, split_name)), *labels, *plain])
        for place, row in enumerate(table.select_columns(list(wanted))):
            for name, feature in labels.items():
                row[name] = None if row[name] in (None, -1) else feature.int2str(row[name])
            unsplit = len(tables) == 1 and canonical_split(split) in ("", "train", "all")
            row_split = (split_name and row[split_name]) or ("" if unsplit else split)
            if not isinstance(row_split, str):
                raise ValueError(
                    f"{source}, row {place}: the split is {row_split!r}; text is needed"
                )
            columns: dict[str, ColumnValue] = {}
            if split_name:
                row[split_name] = canonical_split(row_split)
            first_values(columns, row, (*captions, str(key)))
            found = [captions_of(row[name], f"{source}, row {place}") for name in captions]
            texts = [text for own, _ in found for text in own]
            yield _ImageEntry(
                f"{split or 'row'}/{place}" if key is None or row[key] is None else str(row[key]),
                split,
                place,
                canonical_split(row_split),
                texts,
                columns,
                0 if texts and len(captions) > 1 else sum(nulls for _, nulls in found),
                key is not None and row[key] is not None,
            )


SAVED = Format(
    "a saved Hugging Face data set",
    lambda source: is_huggingface(source.path),
    lambda source: read_huggingface(str(source.path), source),
    holds_pictures=True,
    has_columns=True,
    order=0,
)
PARQUET = Format(
    "parquet files",
    lambda source: is_parquet(source.path, source.inside),
    lambda source: read_huggingface(str(source.path), source),
    holds_pictures=True,
    has_columns=True,
    order=2,
)
