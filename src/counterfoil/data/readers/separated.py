"""Rows of tables whose columns are separated by commas, semicolons, tabs or bars.

Spreadsheets and programs quote cells; people and `cut` do not. Each row is read quoted where that
gives the number of columns that the first line has, over several lines if need be, and else as it
stands. The caption takes what is too much: it is the one column that holds separators.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from counterfoil.data.images import ENDINGS
from counterfoil.data.readers.columns import (
    IMAGE,
    NAMED,
    caption_columns,
    find_column,
)
from counterfoil.data.readers.source import HEAD, Source, read_any_text

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
MOST_LINES = 1000  # of a quoted cell
# of quoted cells; a space after a separator is none of the cell, or quotes have a \ before them
_DIALECTS: tuple[dict[str, Any], ...] = (
    {},
    {"skipinitialspace": True},
    {"skipinitialspace": True, "escapechar": "\\", "doublequote": False},
)
_NUMBER_AND_TEXT = re.compile(r"\s*(\d+)\s+(\S.*)")


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """How the cells of a table stand in its lines.

    Attributes:
        separator: of the cells.
        names: of the columns.
        start: line of the first row, from 0.
        image: place of the column of images.
        caption: place of the column of captions; -1 for several.
        spaced: a space after a separator is none of the cell.
        numbered: images are called by numbers, not by the names of files.
    """

    separator: str
    names: tuple[str, ...]
    start: int
    image: int
    caption: int
    spaced: bool
    numbered: bool = False

    def begins(self, line: str) -> bool:
        """Return True if a line can only be the beginning of a row."""
        cells = line.split(self.separator)
        return len(cells) >= len(self.names) and self.is_name(cells[self.image])

    def is_name(self, cell: str) -> bool:
        """Return True for what may be the name of a picture."""
        name = cell.strip(' "')
        return name.isdigit() if self.numbered else name.lower().endswith(ENDINGS)

    def fit(self, cells: list[str]) -> list[str] | None:
        """The cells of an unquoted line, one a column; None if they do not fit."""
        count = len(self.names)
        while len(cells) > count and not cells[-1].strip():
            cells = cells[:-1]
        more = len(cells) - count
        if more > 0 and self.caption >= 0:
            end = self.caption + more + 1
            text = self.separator.join(cells[self.caption : end])
            cells = [*cells[: self.caption], text, *cells[end:]]
            if self.caption < self.image and not self.is_name(cells[self.image]):
                return None
        # Flickr30k as Kaggle has it lacks one bar: "2199200615.jpg| 4   A dog runs"
        match = _NUMBER_AND_TEXT.fullmatch(cells[-1])
        if match and more == -1 and 0 < self.caption == count - 1:
            cells = [*cells[:-1], *match.groups()]
        if max(self.image, self.caption) < len(cells) < count and self.caption >= 0:
            cells = [*cells, *[""] * (count - len(cells))]
        return cells if len(cells) == count else None


def find_layout(file: Path, source: Source, text: str | None = None) -> Layout | None:
    """The layout that the first lines of a table show; None if it shows no image and caption."""
    lines = list(io.StringIO(source.head(file) if text is None else text, newline=""))
    start, usual = 0, "\t" if file.suffix.lower() == ".tsv" else ","
    separators = list(dict.fromkeys((usual, *SEPARATORS)))
    while start < len(lines) and _is_preface(lines[start]):
        if (line := lines[start].strip().lower()).startswith("sep=") and len(line) == 5:
            separators = [line[4]]
        start += 1
    if start == len(lines):
        return None
    options = [
        layout
        for separator in separators
        if (layout := _layout(lines, start, separator, source)) is not None
    ]
    if options:
        return options[0]
    for separator in separators:
        cells = lines[start].split(separator)
        if len(cells) > 1 and cells[0].strip(' "').lower().endswith(ENDINGS):
            numbered = len(cells) > 2 and cells[1].strip().isdigit()
            names = ("image", "number", "caption") if numbered else ("image", "caption")
            spaced = cells[1].startswith(" ")
            return Layout(separator, names, start, 0, len(names) - 1, spaced)
    return None


def _is_preface(line: str) -> bool:
    """Return True for blank lines and comments above a table, and Excel's ``sep=;``."""
    text = line.strip()
    return not text or text.startswith("#") or (text.lower().startswith("sep=") and len(text) == 5)


def _layout(lines: Sequence[str], start: int, separator: str, source: Source) -> Layout | None:
    """The layout that a first line shows under a separator."""
    header = lines[start][:HEAD]
    raw = next(csv.reader([header], delimiter=separator, skipinitialspace=True), [])
    names = [name.strip() for name in raw]
    # a duplicate after lowering keeps its own spelling, so that no column is lost
    small = [name.lower() for name in names]
    names = [low if small.count(low) == 1 else name for low, name in zip(small, names)]
    image = find_column(names, [source.image_column or "", *IMAGE])
    chosen = source.caption_column
    captions = [find_column(names, [chosen])] if chosen else caption_columns(names)
    captions = [name for name in captions if name is not None and name != image]
    # what was chosen and is not there is refused later, with the columns that are
    choice = len(names) > 1 and bool(chosen or source.image_column)
    if (image is None or not captions) and not choice:
        return None
    spaced = header.count(f"{separator} ") == len(names) - 1 > 0
    place = names.index(image) if image else 0
    first = "".join(lines[start + 1 : start + 2]).split(separator)
    return Layout(
        separator,
        tuple(names),
        start + 1,
        place,
        names.index(captions[0]) if len(captions) == 1 and captions[0] else -1,
        spaced,
        numbered=place < len(first) and first[place].strip(' "').isdigit(),
    )


def read_separated(
    source: Source, file: Path, bad: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a table by column; messages of rows that do not fit are added to `bad`."""
    text = read_any_text(file, code_page=True)
    if not text.strip():
        return
    layout = find_layout(file, source, text)
    if layout is None:
        raise ValueError(f"{file}: {_no_layout(file.name, text)}")
    lines = list(io.StringIO(text, newline=""))
    at = layout.start
    while at < len(lines):
        line = lines[at].rstrip("\r\n")
        if not line.strip(f"{layout.separator} "):
            at += 1
            continue
        cells, used = _record(lines, at, layout)
        if cells is not None:
            yield f"{file}, line {at + used}", dict(zip(layout.names, cells))
        elif not line.startswith("#"):
            bad.append(
                f"{file}, line {at + 1} has another number of columns than the first line; quote "
                "captions that hold the separator"
            )
        at += used


def _no_layout(name: str, text: str) -> str:
    """Return a sentence that says which columns a table lacks, and quotes its headings."""
    first = next(line for line in text.splitlines() if line.strip())[:HEAD]
    usual = {noun: ", ".join(names) for noun, names in NAMED.items()}
    rows = [next(csv.reader([first], delimiter=each, skipinitialspace=True)) for each in SEPARATORS]
    headings = [cell.strip() for cell in max(rows, key=len)]
    if len(headings) == 1:
        return (
            f"the first line is {first.strip()[:80]!r}; it needs the names of the columns, one of "
            f"{usual['image']} and one of {usual['caption']}, separated by commas, semicolons, "
            "tabs or bars"
        )
    captions = caption_columns(headings)
    found = {"image": find_column(headings, IMAGE), "caption": captions[0] if captions else None}
    others = iter([each for each in headings if each not in found.values()])
    missing = [noun for noun, column in found.items() if column is None]
    chosen = ",".join(f"{noun}-column={next(others, '…')}" for noun in missing)
    return (
        f"among its headings {', '.join(map(repr, headings))} is none for "
        f"{' and none for '.join(f'the {noun}s' for noun in missing)}; choose yours, as in "
        f"{shlex.quote(f'{name}:{chosen}')}, or write a first line with one of "
        f"{' and one of '.join(usual[noun] for noun in missing)}"
    )


def _record(lines: Sequence[str], at: int, layout: Layout) -> tuple[list[str] | None, int]:
    """The cells of the row that begins at a line, and its number of lines."""
    line = lines[at].rstrip("\r\n")
    if '"' in line:
        for dialect in _DIALECTS:
            if ("escapechar" in dialect and '\\"' not in line) or (layout.spaced and not dialect):
                continue
            quoted = _quoted(lines, at, layout, dialect)
            if quoted is not None and len(quoted[0]) == len(layout.names):
                return quoted
    cells = line.split(layout.separator)
    if layout.spaced:
        cells = [cell.lstrip(" ") for cell in cells]
    return layout.fit(cells), 1


def _quoted(
    lines: Sequence[str], at: int, layout: Layout, dialect: dict[str, Any]
) -> tuple[list[str], int] | None:
    """The cells of a row whose cells are quoted properly; None if they are not."""

    def following() -> Iterator[str]:
        yield lines[at]
        for line in lines[at + 1 : at + MOST_LINES]:
            if layout.begins(line):  # a quote that is never closed would take in rows
                return
            yield line

    reader = csv.reader(following(), delimiter=layout.separator, strict=True, **dialect)
    try:
        cells = next(reader)
    except (csv.Error, StopIteration):
        return None
    while len(cells) > len(layout.names) and not cells[-1].strip():
        cells.pop()
    return cells, reader.line_num
