"""Entries of a file: a JSON list, a JSON object by key, one object a line, or a table."""

from __future__ import annotations

import ast
import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from counterfoil.corpus.lines import read_lines, read_text
from counterfoil.files import read_json

Rows: TypeAlias = Sequence[tuple[str, Any]]
LISTS = frozenset({"foils", "neg_caption"})  # columns of tables


def read_rows(path: Path) -> Rows:
    """The entries of a file with what to call each of them in a message.

    Raises:
        ValueError: it is missing, or no JSON, lines of JSON, or table.
    """
    if path.suffix in (".tsv", ".csv"):
        return _table(path)
    if path.suffix == ".jsonl":
        return _lines(path)
    plain = read_json(path, "a set of foils")
    if isinstance(plain, dict) and isinstance(plain.get("annotations"), list):
        return [(f"annotations[{n}]", one) for n, one in enumerate(plain["annotations"])]
    if isinstance(plain, dict):
        return [(f"entry {key!r}", one) for key, one in plain.items()]
    if isinstance(plain, list):
        return [(f"entry {n}", one) for n, one in enumerate(plain)]
    raise ValueError(f"{path} holds no entries; a JSON list or object of them is needed")


def _lines(path: Path) -> Rows:
    rows = []
    for number, line in enumerate(read_lines(path, "foils"), 1):
        try:
            if line.strip():
                rows.append((f"line {number}", json.loads(line)))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number} is no JSON: {error}") from None
    return rows


def _table(path: Path) -> Rows:
    text = io.StringIO(read_text(path, "foils"), newline="")
    rows = csv.DictReader(text, delimiter="\t" if path.suffix == ".tsv" else ",")
    try:
        return [(f"line {n}", _unpacked(path, n, row)) for n, row in enumerate(rows, 2)]
    except csv.Error as error:
        raise ValueError(f"{path} is no table: {error}, in line {rows.line_num + 1}") from None


def _unpacked(path: Path, number: int, row: Mapping[str | None, Any]) -> dict[str, Any]:
    """A line of a table, with its lists of foils as lists."""
    found = {str(key): value for key, value in row.items() if value is not None}
    for key in found.keys() & LISTS:
        if found[key].startswith("["):
            try:
                found[key] = ast.literal_eval(found[key])
            except (ValueError, SyntaxError):
                raise ValueError(
                    f"{path}, line {number}: {key} is no list of foils: {found[key][:40]}"
                ) from None
    return found
