"""Files of foil sets: JSON, JSON lines, tables, and parquet files with the pictures in them."""

from __future__ import annotations

import ast
import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, final

from counterfoil.core.io import parse_json, read_json, read_text, read_text_lines
from counterfoil.data.images import Pictures
from counterfoil.data.readers.source import split_of_file

Rows: TypeAlias = Sequence[tuple[str, Any]]  # entries, each with a name for messages
ENDINGS = (".json", ".jsonl", ".tsv", ".csv", ".parquet")
TRUE_CAPTIONS = frozenset({"caption", "true_caption", "title"})  # fields of a true caption
_LISTS = frozenset(  # columns of tables that may hold lists
    {"foils", "neg_caption", "hard_negs", "valid_hard_negs_atom", "valid_hard_negs_comp"}
)
_OF_DATASETS = frozenset({"dataset_infos.json", "dataset_info.json"})  # of the hub, about the data
_OF_FILES = "_file_name"  # of a column of pictures, in a folder of pictures of Hugging Face


@final
@dataclass(frozen=True, slots=True)
class StoredPictures:
    """Pictures in columns of parquet files, decoded when opened."""

    tables: dict[str, Any] = field(default_factory=dict)  # a data set of one column each
    places: dict[str, tuple[str, int]] = field(default_factory=dict)  # table and row, by name
    names: dict[str, str] = field(default_factory=dict)  # by a digest of the picture

    def name(self, cell: Mapping[str, Any] | None, table: str, row: int) -> str | None:
        """The name of a picture: its file's, unless another picture has it; None for no picture."""
        if cell is None:
            return None
        content, path = cell["bytes"], cell["path"] or ""
        digest = hashlib.sha256(content if content is not None else path.encode()).hexdigest()
        if digest not in self.names:
            name = Path(path).name or f"{row}-{digest[:12]}"
            self.names[digest] = f"{name}-{digest[:12]}" if name in self.places else name
            self.places[self.names[digest]] = (table, row)
        return self.names[digest]

    def of(self, names: Sequence[str], where: str) -> Pictures:
        """The pictures of these names."""
        from counterfoil.data.readers.huggingface import DatasetPictures

        return DatasetPictures(self.tables, [self.places[name] for name in names], where)


def foil_files(sources: Sequence[str], split: str) -> list[Path]:
    """The files of a foil set: those named, and those of a split in a folder that is named.

    A folder that `datasets` saved stands for itself.

    Raises:
        ValueError: there is none, or a folder has several splits and not this one.
    """
    from counterfoil.data.readers.huggingface import is_huggingface

    files: list[Path] = []
    for path in map(Path, sources):
        if not path.exists():
            raise ValueError(
                f"{path} does not exist; give a file of foils, a folder of them, or scenes"
            )
        if not path.is_dir() or is_huggingface(path):
            files.append(path)
            continue
        # the hub keeps the files of a data set in a folder of this name
        places = (path, path / "data")
        inside = next(filter(None, map(_listed, places)), None)
        if inside is None:
            raise ValueError(f"{path} holds no file of foils, {', '.join(ENDINGS)}")
        files += _of_split(path, inside, split)
    return files


def _of_split(folder: Path, files: Sequence[Path], split: str) -> list[Path]:
    """The files of one split, where names of files say several."""
    splits = {file: split_of_file(file, file.parent) for file in files}
    names = sorted({name for name in splits.values() if name})
    if len(names) < 2:
        return list(files)
    if split not in names:
        raise ValueError(f"{folder} holds the splits {', '.join(names)}; name the files of one")
    return [file for file in files if splits[file] in ("", split)]


def _listed(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    files = sorted(folder.iterdir())
    return [file for file in files if file.suffix in ENDINGS and file.name not in _OF_DATASETS]


def read_stored(path: Path, split: str, pictures: StoredPictures) -> Rows:
    """The entries of a parquet file or a folder that `datasets` saved; names stand for pictures.

    Equal pictures have one name. The pictures are added to `pictures`.

    Raises:
        ValueError: it cannot be read, or has several splits and not this one.
    """
    from counterfoil.data.readers.huggingface import load_tables, picture_columns

    tables = load_tables(str(path))
    if len(tables) > 1 and split not in tables:
        raise ValueError(f"{path} holds the splits {', '.join(tables)}; name the file of one")
    table = tables[split] if split in tables else next(iter(tables.values()))
    named: dict[str, list[str | None]] = {}
    for column, cells in picture_columns(table).items():
        key = f"{path} {column}"
        pictures.tables[key] = cells
        named[column] = [pictures.name(cell[column], key, row) for row, cell in enumerate(cells)]
    rows = []
    for place, row in enumerate(table.remove_columns(list(named))):
        whole = {**row, **{column: names[place] for column, names in named.items()}}
        rows.append((f"row {place}", {k: v for k, v in whole.items() if v is not None}))
    return _named(rows)


def read_rows(path: Path) -> Rows:
    """The entries of a JSON list, JSON object, JSON lines or a table, with names for messages.

    Raises:
        ValueError: the file is missing, or no JSON, JSON lines, or table.
    """
    if path.suffix in (".tsv", ".csv"):
        return _named(_table_rows(path))
    if path.suffix == ".jsonl" or _is_lines(path):
        lines = enumerate(read_text_lines(path, "foils"), 1)
        return _named(
            [
                (f"line {number}", parse_json(line, f"{path}, line {number}"))
                for number, line in lines
                if line.strip()
            ]
        )
    plain = read_json(path, "a set of foils")
    if isinstance(plain, dict) and TRUE_CAPTIONS & plain.keys():
        plain = _of_columns(path, plain)
    if isinstance(plain, dict):
        return _named([(f"entry {key!r}", entry) for key, entry in plain.items()])
    if isinstance(plain, list):
        return _named([(f"entry {n}", entry) for n, entry in enumerate(plain)])
    raise ValueError(f"{path} holds no entries; a JSON list or object of them is needed")


def _named(rows: Rows) -> Rows:
    """Entries with pictures by the names of Hugging Face, to whom "image_file_name" is "image"."""
    return [
        (name, {key.removesuffix(_OF_FILES): value for key, value in plain.items()})
        if isinstance(plain, dict) and any(key.endswith(_OF_FILES) for key in plain)
        else (name, plain)
        for name, plain in rows
    ]


def _is_lines(path: Path) -> bool:
    """Whether a file holds an object a line, which `datasets` and pandas also call .json."""
    lines = [line for line in read_text_lines(path, "foils") if line.strip()][:2]
    return len(lines) == 2 and all(line.startswith("{") and line.endswith("}") for line in lines)


def _of_columns(path: Path, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of a table that pandas wrote by columns, {"caption": {"0": …}, …}."""
    if not all(isinstance(column, dict) for column in columns.values()):
        raise ValueError(f"{path} is one entry; a list of entries is needed, or one a line")
    names = dict.fromkeys(name for column in columns.values() for name in column)
    return {
        name: {key: column[name] for key, column in columns.items() if name in column}
        for name in names
    }


def _table_rows(path: Path) -> Rows:
    text = io.StringIO(read_text(path, "foils"), newline="")
    rows = csv.DictReader(text, delimiter="\t" if path.suffix == ".tsv" else ",")
    try:
        return [(f"line {n}", _with_lists(path, n, row)) for n, row in enumerate(rows, 2)]
    except csv.Error as error:
        raise ValueError(f"{path} is no table: {error}, in line {rows.line_num + 1}") from None


def _with_lists(path: Path, number: int, row: Mapping[str | None, Any]) -> dict[str, Any]:
    """A row of a table, with lists of foils parsed."""
    entry = {str(key): value for key, value in row.items() if value is not None and key}
    for key in entry.keys() & _LISTS:
        if entry[key].startswith("["):
            try:
                entry[key] = ast.literal_eval(entry[key])
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                shown = " ".join(entry[key].split())
                raise ValueError(
                    f"{path}, line {number}: {key} is no list of foils: {shown[:40]}"
                ) from None
    return entry
