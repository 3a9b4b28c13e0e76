"""Hugging Face data sets and parquet files with an image column and a caption column."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from PIL import Image

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
from counterfoil.data.images import Pictures, decode_picture, size_and_time
from counterfoil.data.readers.tables import split_of_name

_IMAGE = ("image", "img", "picture")
_CAPTION = ("caption", "captions", "sentences", "sentence", "text", "texts", "raw")
_ID = ("image_id", "id", "filename", "file_name", "imgid", "cocoid")


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
        split, place = self.rows[row]
        (cell,) = self.sources[split][place].values()
        if cell is None:
            raise ValueError(f"{self.place(row)} cannot be read as a picture: the cell is empty")
        content, path = cell["bytes"], cell["path"]
        if content is None and not path:
            raise ValueError(f"{self.place(row)} cannot be read as a picture: the cell is empty")
        file = Path(path) if content is None else io.BytesIO(content)
        return decode_picture(file, self.place(row))

    def place(self, row: int) -> str:
        split, place = self.rows[row]
        return f"{self.name}/{split or 'row'}/{place}@{self.sources[split]._fingerprint}"

    def fingerprint(self, row: int) -> str:
        split, place = self.rows[row]
        path = self._paths[split].get(place)
        stamp = "" if path is None else f"{path}{size_and_time(Path(path))}"
        return f"{self.place(row)} {self._stamps[split]} {stamp}"


def _file_stamps(table: Any) -> list[tuple[int, int] | None]:
    """Size and time of the files of a data set."""
    return [size_and_time(Path(file["filename"])) for file in table.cache_files]


def _paths(table: Any) -> dict[int, str]:
    """Rows of a column of images that are files of their own, with their paths."""
    import pyarrow.compute as pc

    (column,) = table.column_names
    cells = table.with_format("arrow").data.column(column)
    content = pc.struct_field(cells, "bytes")
    if not content.null_count:
        return {}
    paths = pc.if_else(pc.is_null(content), pc.struct_field(cells, "path"), None).to_pylist()
    return {row: path for row, path in enumerate(paths) if path}


def is_huggingface(folder: Path) -> bool:
    """Return True if a folder was written by ``save_to_disk``."""
    several = (folder / "dataset_dict.json").exists()
    return several or all((folder / n).exists() for n in ("dataset_info.json", "state.json"))


def is_parquet(path: Path) -> bool:
    """Return True if a path is a parquet file, or a folder with parquet files."""
    return path.suffix == ".parquet" if path.is_file() else any(path.glob("*.parquet"))


def read_huggingface(source: str, *, name: str | None = None) -> ImageTextDataset:
    """Read a data set from a folder (``save_to_disk``), from parquet files or from the hub.

    The caption column contains a caption or a list of them. Rows with one image id are merged.
    Other columns of text, numbers and dates are `ImageTextDataset.columns`; where the rows of an
    image differ, the first value counts. A "split" column takes precedence over the splits of the
    data set; without one, a single split "train" is divided by the hash of the id. A parquet file
    belongs to the split that its name begins with, as in ``validation-00000-of-00001.parquet``.
    """
    tables = _load(source)
    name = name or source.rstrip("/").rpartition("/")[2].removesuffix(".parquet")
    columns = {split: _column(table, _IMAGE, source) for split, table in tables.items()}
    images: dict[str, _ImageEntry] = {}
    for row in _rows(tables, source):
        first = images.setdefault(row.id, row)
        if first is row:
            continue
        if first.split != row.split:
            raise ValueError(
                f"{source}: image {row.id!r} is in splits {first.split!r} and {row.split!r}"
            )
        first.texts.extend(row.texts)
        first_values(first.columns, row.columns)
    sources = {split: _pictures(table, columns[split]) for split, table in tables.items()}
    return build_dataset(
        name,
        [
            DatasetEntry(image.id, image.split, tuple(image.texts), columns=image.columns)
            for image in images.values()
        ],
        where=source,
        pictures=DatasetPictures(sources, [(i.table, i.row) for i in images.values()], name),
    )


def _pictures(table: Any, column: str) -> Any:
    """The images of a table as bytes and paths, which are decoded here as everywhere."""
    import datasets

    return table.select_columns([column]).cast_column(column, datasets.Image(decode=False))


def _load(source: str) -> dict[str, Any]:
    needs = f'the data set {source!r} needs datasets: pip install "counterfoil[hf]"'
    datasets = optional_import("datasets", needs)
    try:
        for file in (Path(source), *Path(source).glob("**/*")):
            if file.exists() and not file.is_dir():
                check_file(file)  # a pipe would hang in pyarrow, where no signal ends it
        if is_parquet(Path(source)):
            loaded = _load_parquet(Path(source))
        elif Path(source).is_dir():
            loaded = datasets.load_from_disk(source)
        else:
            loaded = datasets.load_dataset(source)
    except Exception as error:  # datasets raises a dozen classes of its own
        first = (str(error).strip() or repr(error)).splitlines()[0]
        raise ValueError(f"the data set {source!r} cannot be read: {first}") from error
    return dict(loaded) if isinstance(loaded, dict) else {str(loaded.split or ""): loaded}


def _load_parquet(path: Path) -> dict[str, Any]:
    """Tables of parquet files by split; an image is decoded from its bytes or its path."""
    import datasets

    files: dict[str, list[str]] = {}
    for file in [path] if path.is_file() else sorted(path.glob("*.parquet")):
        files.setdefault(split_of_name(file.stem) or "train", []).append(str(file))
    tables = {split: datasets.Dataset.from_parquet(some) for split, some in files.items()}
    for split, table in tables.items():
        column = _column(table, _IMAGE, str(path))
        tables[split] = table.cast_column(column, datasets.Image())
    return tables


def _rows(tables: Mapping[str, Any], source: str) -> Iterator[_ImageEntry]:
    """Every row as an image of its own; pictures are not decoded."""
    import datasets

    for split, table in tables.items():
        caption = _column(table, _CAPTION, source)
        labels = {n: f for n, f in table.features.items() if isinstance(f, datasets.ClassLabel)}
        plain = [
            name
            for name, feature in table.features.items()
            if isinstance(feature, datasets.Value) and "binary" not in feature.dtype
        ]
        key = next((n for n in _ID if n in table.column_names), None)
        split_name = "split" if "split" in table.column_names else None
        wanted = dict.fromkeys([caption, *filter(None, (key, split_name)), *labels, *plain])
        for place, row in enumerate(table.select_columns(list(wanted))):
            for name, feature in labels.items():
                row[name] = None if row[name] in (None, -1) else feature.int2str(row[name])
            unsplit = len(tables) == 1 and canonical_split(split) in ("", "train", "all")
            row_split = row.get("split") or ("" if unsplit else split)
            if not isinstance(row_split, str):
                raise ValueError(
                    f"{source}, row {place}: the split is {row_split!r}; text is needed"
                )
            columns: dict[str, ColumnValue] = {}
            row["split"] = canonical_split(row_split) if split_name else None
            first_values(columns, row, (caption, str(key)))
            yield _ImageEntry(
                f"{split or 'row'}/{place}" if key is None else str(row[key]),
                split,
                place,
                canonical_split(row_split),
                _captions(row[caption], source, place),
                columns,
            )


def _column(table: Any, names: tuple[str, ...], source: str) -> str:
    for name in names:
        if name in table.column_names:
            return name
    raise ValueError(
        f"{source} has the columns {', '.join(map(repr, table.column_names))}, but no {names[0]!r}"
    )


def _captions(value: Any, source: str, place: int) -> list[str]:
    items = value if isinstance(value, list) else [value]
    texts = [item.get("raw") if isinstance(item, dict) else item for item in items]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"{source}, row {place}: the caption is {value!r}; text or a list of texts is needed"
        )
    return [str(text) for text in texts]
