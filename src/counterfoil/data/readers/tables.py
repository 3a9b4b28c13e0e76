"""Tables of captions: CSV and the like, JSON lines, and JSON lists of objects.

Columns:

    image      file, relative to the folder of the table or of the pictures
    caption    one caption, a list of them, or numbered columns as caption_0, caption_1
    id         optional, the image's id; the file by default
    split      optional, as in "train"; by default that of the file's name or of the folder
    others     optional, as album or year: `ImageTextDataset.columns`

`counterfoil.data.readers.columns` has the names that are known. Rows with one image are merged: of
a column in which they differ, the first value counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from counterfoil.core.io import parse_json
from counterfoil.core.optional import optional_import
from counterfoil.data.dataset import ColumnValue, column_number, first_values
from counterfoil.data.images import ENDINGS
from counterfoil.data.readers.annotations import (
    NO_CAPTION,
    Annotation,
    Annotations,
    annotation_format,
)
from counterfoil.data.readers.columns import (
    ID,
    IMAGE,
    SPLIT,
    caption_columns,
    captions_column,
    captions_of,
    chosen_column,
    find_column,
    image_column,
    plain_column,
)
from counterfoil.data.readers.separated import find_layout, read_separated
from counterfoil.data.readers.source import Source, lines_of, read_any_text

LISTS = tuple(
    f"{name}.{ending}"
    for name in ("captions", "metadata")
    for ending in ("jsonl", "csv", "tsv", "parquet")
)
_SEPARATED = (".csv", ".tsv", ".txt")
_LINES = (".jsonl", ".jsonlines")
_LISTS_OF = ("data", "annotations", "images", "items", "samples", "rows")  # keys of JSON files
_KEY = re.compile(r'"([^"\\]{1,40})"\s*:')
_TECHNICAL = ("sentids",)
MOST_BAD = 3  # rows that are left out; above it only less than a hundredth
_Row = tuple[str, dict[str, Any]]  # where it stands, and its values


def is_table(source: Source, file: Path) -> bool:
    """Return True for a table with a column of images and one of captions."""
    ending, given = file.suffix.lower(), file == source.path
    if ending in _LINES:
        return given or file.name in LISTS or _has_columns(source, _keys(source.head(file)))
    if ending in _SEPARATED:
        known = given or (file.name in LISTS and ending != ".txt")
        layout = None if known else find_layout(file, source)
        return known or (layout is not None and _has_columns(source, layout.names))
    if ending == ".parquet":
        names = parquet_columns(file) if given or file.name in LISTS else {}
        image = find_column(list(names), [source.image_column or "", *IMAGE])
        plain = image is not None and names[image] in ("string", "large_string", "int64")
        return plain and _has_columns(source, list(names))
    return ending == ".json" and _is_json_table(source, file)


def _keys(head: str) -> list[str]:
    return list(dict.fromkeys(_KEY.findall(head)))


def _has_columns(source: Source, names: Sequence[str]) -> bool:
    """Return True if there is a column of images and one of captions, known or chosen."""
    image = find_column(names, [source.image_column] if source.image_column else IMAGE)
    if source.caption_column:
        return image is not None and find_column(names, [source.caption_column]) is not None
    return image is not None and bool(caption_columns(names))


def _is_json_table(source: Source, file: Path) -> bool:
    head = source.head(file).lstrip()
    keys = _keys(head)
    named = bool(keys) and (keys[0].lower().endswith(ENDINGS) or keys[0].isdigit())
    if not head.startswith(("[", "{")) or not (
        named or file == source.path or _has_columns(source, keys)
    ):
        return False
    rows = _json_table(source.document_or_none(file))
    return rows is not None and _has_columns(
        source, list(dict.fromkeys(k for r in rows for k in r))
    )


def _json_table(document: Any) -> list[dict[str, Any]] | None:
    """The rows of a JSON document: of a list, of a list in it, or of captions by picture."""
    if isinstance(document, dict):
        lists = [document[key] for key in _LISTS_OF if isinstance(document.get(key), list)]
        if len(lists) == 1:
            return _json_table(lists[0])
        named = (key.lower().endswith(ENDINGS) or key.isdigit() for key in document)
        if not document or not all(named):
            return None
        return [
            {"image": key, **(value if isinstance(value, dict) else {"caption": value})}
            for key, value in document.items()
        ]
    if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
        return None
    return document


def parquet_columns(file: Path) -> dict[str, str]:
    """The columns of a parquet file and their types; none where it cannot be read."""
    try:
        parquet = optional_import("pyarrow.parquet", "")
        schema = parquet.read_schema(file)
    except (ValueError, OSError):
        return {}
    return {name: str(kind) for name, kind in zip(schema.names, schema.types)}


def read_table(source: Source, file: Path) -> Annotations:
    """Read the rows of a table; those that do not fit are left out, with a warning.

    Raises:
        ValueError: columns are missing, or many rows do not fit.
    """
    result = Annotations()
    bad: list[str] = []
    cells = file.suffix.lower() in _SEPARATED
    rows = list(_rows(source, file, bad))
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    if rows:
        add_rows(result, source, rows, names, bad, cells=cells)
    if bad and (not result.rows or len(bad) > max(MOST_BAD, len(rows) / 100)):
        others = f" (and {len(bad) - 1:,} other rows do not fit)" if len(bad) > 1 else ""
        raise ValueError(f"{bad[0]}{others}")
    for message in bad:
        result.leave_out(
            "rows that do not fit", message.removeprefix(f"{file}, ").partition(";")[0]
        )
    if cells:
        _read_numbers([row.columns for row in result.rows])
    return result


def _rows(source: Source, file: Path, bad: list[str]) -> Iterator[_Row]:
    ending = file.suffix.lower()
    if ending in _SEPARATED:
        yield from read_separated(source, file, bad)
    elif ending in _LINES:
        for number, line in enumerate(lines_of(read_any_text(file)), 1):
            if line.strip():
                row = parse_json(line, f"{file}, line {number}")
                if not isinstance(row, dict):
                    raise ValueError(
                        f'{file}, line {number}: {{"image": ..., "caption": ...}} is needed'
                    )
                yield f"{file}, line {number}", row
    elif ending == ".parquet":
        parquet = optional_import("pyarrow.parquet", f'{file} needs pyarrow: pip install "pyarrow"')
        for number, row in enumerate(parquet.read_table(file).to_pylist()):
            yield f"{file}, row {number}", row
    else:
        for number, row in enumerate(_json_table(source.document(file)) or ()):
            yield f"{file}, entry {number}", dict(row)


def add_rows(
    result: Annotations,
    source: Source,
    rows: Sequence[_Row],
    names: Sequence[str],
    bad: list[str],
    *,
    cells: bool,
) -> None:
    """Add rows as annotations."""
    first = rows[0][0]
    image = image_column(names, first, source.image_column)
    captions = captions_column([n for n in names if n != image], first, source.caption_column)
    others = [name for name in names if name != image and name not in captions]
    id_name, split_name = find_column(others, ID), find_column(others, SPLIT)
    if source.split_column:
        split_name = chosen_column(source.split_column, others, first)
    numbers = plain_column(image).endswith("id")
    for where, row in rows:
        texts: list[str] = []
        nulls = 0
        try:
            # rows of JSON may differ in their keys
            named = image if image in row else find_column(list(row), IMAGE) or image
            own = captions if any(n in row for n in captions) else caption_columns(list(row))
            picture = _picture(row.get(named), where, numbers=numbers)
            for name in own or captions:
                found, more = captions_of(row.get(name), where, cell=cells)
                texts, nulls = texts + found, nulls + more
        except _AddressError:
            raise
        except ValueError as error:
            bad.append(str(error))
            continue
        if nulls and (len(captions) == 1 or not texts):
            result.leave_out(NO_CAPTION, picture)
        key, split = _word(row, id_name, "id", where), _word(row, split_name, "split", where)
        if split_name is not None and split:
            row[split_name] = source.split_named(split)
        annotation = Annotation(picture, texts, where, key, split)
        first_values(annotation.columns, row, (named, *captions, *own, id_name or "", *_TECHNICAL))
        result.rows.append(annotation)
    _use_ids(result.rows)


def _word(row: Mapping[str, Any], name: str | None, noun: str, where: str) -> str:
    value = None if name is None else row.get(name)
    if not isinstance(value, str | int | None) or isinstance(value, bool):
        raise ValueError(f"{where}: the {noun} is {value!r}; text is needed")
    return "" if value is None else str(value)


class _AddressError(ValueError):
    """Pictures are on the web."""


def _picture(value: Any, where: str, *, numbers: bool) -> str:
    """The name of a row's picture."""
    if isinstance(value, Mapping):  # as Hugging Face stores it
        value = value.get("path") or value.get("file_name")
    if numbers and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: the image is {value!r}; the name of a file is needed")
    if value.startswith(("http://", "https://")):
        raise _AddressError(
            f"{where}: the image is the address {value!r}; pictures are not fetched, download them "
            "first, for example with img2dataset, whose shards are read"
        )
    return value.strip()


def _use_ids(rows: Sequence[Annotation]) -> None:
    """Take ids that differ among the rows of one picture as those of captions, not of images."""
    ids: dict[str, set[str]] = {}
    for row in rows:
        ids.setdefault(row.picture, set()).add(row.id)
    if all(len(own) == 1 for own in ids.values()):
        return
    numbers = [row.id for row in rows]
    of_texts = all(len(row.texts) == 1 for row in rows) and len(set(numbers)) == len(numbers)
    for row in rows:
        row.text_ids, row.id = (row.id,) if of_texts else (), ""


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


TABLE = annotation_format(
    "captions.jsonl, .csv or .tsv, or a table or JSON list of another name with columns of images "
    "and captions",
    is_table,
    read_table,
    has_columns=True,
)
