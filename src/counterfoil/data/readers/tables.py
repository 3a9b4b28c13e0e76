"""Tables of captions: ``captions.jsonl``, ``.csv`` and ``.tsv``, or named ``metadata``.

Columns:

    image      file, relative to the folder; for other names see `IMAGE`
    caption    one caption, or "captions", a JSON list of them; for other names see `CAPTION`
    id         optional, the image's id; the file by default
    split      optional, as in "train"; by default that of the subfolder
    others     optional, as album or year: `ImageTextDataset.columns`

Rows with one image are merged: of a column in which they differ, the first value counts.
Columns are separated by commas, semicolons, tabs or bars; capitals in their names do not count.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from counterfoil.core.console import warn
from counterfoil.core.io import parse_json, read_text, read_text_lines
from counterfoil.data.dataset import ColumnValue, canonical_split, column_number, first_values
from counterfoil.data.files import FolderFiles, find_pictures, plain_name

LISTS = tuple(
    f"{name}.{ending}" for name in ("captions", "metadata") for ending in ("jsonl", "csv", "tsv")
)
IMAGE = (
    "image", "file_name", "filename", "filepath", "file_path", "image_path", "path", "file",
    "image_name", "img",
)  # fmt: skip
CAPTION = ("caption", "captions", "text", "title", "sentence", "comment", "description")
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
SPLIT_NAMES = ("train", "training", "dev", "val", "valid", "validation", "test")


@final
@dataclass(slots=True)
class ImageEntry:
    """An image whose rows are being read."""

    path: Path
    split: str
    texts: list[str] = field(default_factory=list)
    columns: dict[str, ColumnValue] = field(default_factory=dict)


def read_table(file: Path, listing: FolderFiles) -> dict[str, ImageEntry]:
    """Images of a list in order of first appearance; `listing` has the pictures."""
    by_id: dict[str, ImageEntry] = {}
    first_names: dict[str, str] = {}  # rows may write one picture as a.jpg and ./a.jpg
    rows = _json_rows(file) if file.suffix == ".jsonl" else _table_rows(file)
    for number, row in rows:
        where = f"{file}, line {number}"
        image_name, caption_name = _column(row, IMAGE, where), _column(row, CAPTION, where)
        picture = row[image_name]
        if not isinstance(picture, str) or not picture.strip():
            raise ValueError(f"{where}: the image is {picture!r}; the name of a file is needed")
        if picture.startswith(("http://", "https://")):
            raise ValueError(
                f"{where}: the image is the address {picture!r}; pictures are not fetched, "
                "download them first, for example with img2dataset, whose shards are read"
            )
        picture = first_names.setdefault(plain_name(picture), picture)
        for name in ("id", "split"):
            if not isinstance(row.get(name), str | int | None) or isinstance(row.get(name), bool):
                raise ValueError(f"{where}: the {name} is {row[name]!r}; text is needed")
        key = picture if row.get("id") in (None, "") else str(row["id"])
        split = canonical_split(str(row.get("split") or "")) or split_of_folder(
            Path(plain_name(picture))
        )
        image = by_id.setdefault(key, ImageEntry(Path(picture), split))
        if (image.path, image.split) != (Path(picture), split):
            raise ValueError(
                f"{where}: image {key!r} is {picture!r} in split {split!r} here, but another file "
                "or split further up"
            )
        image.texts += _captions(row[caption_name], where)
        if row.get("split"):
            row["split"] = split
        first_values(image.columns, row, (image_name, caption_name, "id"))
    if file.suffix != ".jsonl":
        _read_numbers([image.columns for image in by_id.values()])
    names = [str(image.path) for image in by_id.values()]
    for image, path in zip(by_id.values(), find_pictures(names, listing, where=str(file))):
        image.path = path
    return by_id


def _read_numbers(images: Sequence[dict[str, ColumnValue]]) -> None:
    """Read the columns of a table whose every value is a number, and no code as 007, as numbers."""
    texts = {
        name
        for columns in images
        for name, value in columns.items()
        if column_number(value) is None
    }
    for columns in images:
        for name in columns.keys() - texts:
            if (number := column_number(columns[name])) is not None:
                columns[name] = number


def _column(row: dict[str, Any], names: tuple[str, ...], where: str) -> str:
    for name in names:
        if name in row:
            return name
    raise ValueError(
        f"{where}: there is no {names[0]!r} among the columns {', '.join(map(repr, row))}; name "
        f"one of them {', '.join(names[:-1])} or {names[-1]}"
    )


def _captions(value: Any, where: str) -> list[str]:
    if isinstance(value, str) and value.startswith("["):  # a list in a cell of a table
        try:
            value = parse_json(value, where)
        except ValueError:
            return [str(value)]
    captions = [value] if isinstance(value, str) else value
    if not isinstance(captions, list) or not all(isinstance(text, str) for text in captions):
        raise ValueError(f"{where}: the caption is {value!r}; text or a list of texts is needed")
    return captions


def _json_rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(read_text_lines(file, "captions"), 1):
        if not line.strip():
            continue
        row = parse_json(line, f"{file}, line {number}")
        if not isinstance(row, dict):
            raise ValueError(f'{file}, line {number}: {{"image": ..., "caption": ...}} is needed')
        yield number, row


def _table_rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    text = _table_text(file)
    if not text.strip():
        return
    separator = _separator(text, file)
    reader = csv.DictReader(
        io.StringIO(text, newline=""),
        delimiter=separator,
        strict=True,
        skipinitialspace=separator == "|",  # people write "a.jpg| 0| A dog ."
    )
    # a duplicate after lowering keeps its own spelling, so that no column is lost
    names = [name.strip() for name in reader.fieldnames or ()]
    lowered = [name.lower() for name in names]
    reader.fieldnames = [low if lowered.count(low) == 1 else n for n, low in zip(names, lowered)]
    try:
        for row in reader:
            number = reader.line_num
            if None in row or None in row.values():
                raise ValueError(
                    f"{file}, line {number} has another number of columns than the first line; "
                    "quote captions that hold the separator"
                )
            yield number, row
    except csv.Error as error:
        raise ValueError(f"{file}, line {reader.line_num + 1}: {error}") from None


def _table_text(file: Path) -> str:
    """The text of a table; one that spreadsheets wrote in Windows' code page is read as such."""
    try:
        return read_text(file, "captions")
    except ValueError as error:
        if "is not UTF-8" not in str(error):
            raise
    try:
        text = file.read_bytes().decode("cp1252")
    except UnicodeDecodeError:
        raise ValueError(f"{file} is neither UTF-8 nor cp1252 text; save it as UTF-8") from None
    warn(f"{file} is not UTF-8 and was read as cp1252; save it as UTF-8 if letters look wrong")
    return text


def _separator(text: str, file: Path) -> str:
    """The separator under which the first line names an image and a caption."""
    first = text.lstrip("\r\n").partition("\n")[0]
    usual = "\t" if file.suffix == ".tsv" else ","
    for separator in dict.fromkeys((usual, *SEPARATORS)):
        columns = {name.strip(' "\r').lower() for name in first.split(separator)}
        if columns & set(IMAGE) and columns & set(CAPTION):
            return separator
    raise ValueError(
        f"{file}: the first line is {first.strip()[:80]!r}; it needs the names of the columns, one "
        f"of {', '.join(IMAGE)} and one of {', '.join(CAPTION)}, separated by commas, semicolons, "
        "tabs or bars"
    )


def split_of_folder(file: Path) -> str:
    """The split that the first folder of a relative path names; "" for none.

    >>> split_of_folder(Path("val/beach.jpg")), split_of_folder(Path("beaches/1.jpg"))
    ('dev', '')
    """
    folder = file.parts[0].lower() if len(file.parts) > 1 else ""
    return canonical_split(folder) if folder in SPLIT_NAMES else ""


def split_of_name(stem: str) -> str:
    """The split that the name of a shard begins with; "" for none.

    >>> split_of_name("validation-00000-of-00001"), split_of_name("00012")
    ('dev', '')
    """
    first = stem.lower().partition("-")[0].partition("_")[0]
    return canonical_split(first) if first in SPLIT_NAMES else ""
