"""Tables of a page in the terminal, and how numbers are written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import cast, final

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from counterfoil.report.page import TableBlock, TableCell

MISSING = "–"  # where there is no number


@final
@dataclass(frozen=True, slots=True)
class TerminalTable:
    """A table of a page as the terminal shows it, with the protocol below it.

    Numbers and intervals are never broken: a table that is wider than the terminal is shown in
    several, each with the first column.
    """

    block: TableBlock
    protocol: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The tables, and below them the note in lines of full width."""
        block = self.block
        if block.title:
            yield Text(block.title, style="table.title")
        for columns in _groups(block, options.max_width):
            yield _table(block, columns, options.max_width)
        note = f"{self.protocol}. {block.note}".rstrip() if self.protocol else block.note
        if note:
            yield Text(note, style="table.caption")


def terminal_text(block: TableBlock, protocol: str = "") -> str:
    """A table as the terminal shows it, without colours."""
    out = Console(file=StringIO(), width=Console().width, markup=False, color_system=None)
    out.print(TerminalTable(block, protocol))
    lines = cast("StringIO", out.file).getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines)


_OVERHEAD = 3  # characters around a column, and one more of the table
_NAME = 12
_SPAN = re.compile(r"(?<=\d)(%?) to (?=[+−]?\d)")


def _groups(block: TableBlock, width: int) -> list[list[int]]:
    """Columns of each table that is shown; differences stay beside what differs."""
    parts: list[list[int]] = []
    for place, name in enumerate(block.head[1:], 1):
        if parts and name in ("difference", "p"):
            parts[-1].append(place)
        else:
            parts.append([place])
    groups = [[0]]
    for part in parts:
        together = _taken(block, [0, *part]) <= width
        for columns in [part] if together else [[place] for place in part]:
            if _taken(block, [*groups[-1], *columns]) > width and len(groups[-1]) > 1:
                groups.append([0])
            groups[-1].extend(columns)
    return groups


def _taken(block: TableBlock, columns: Sequence[int]) -> int:
    """The least width of a table of some columns."""
    return 1 + sum(_least(block, place) + _OVERHEAD for place in columns)


def _table(block: TableBlock, columns: Sequence[int], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for place, wide in zip(columns, _widths(block, columns, width), strict=True):
        table.add_column(
            Text(block.head[place], overflow="fold"),
            justify="right" if place else "left",
            width=wide,
            overflow="fold",
        )
    for row in block.rows:
        if len(row) == 1 < len(block.head):
            table.add_row(Text(_text(row[0]), style="bold"))
        else:
            table.add_row(*(_cell(row[place]) for place in columns))
    return table


def _widths(block: TableBlock, columns: Sequence[int], width: int) -> list[int]:
    """Width of each column: all of its text where there is room, else its longest word or more."""
    cells = [_column(block, place) for place in columns]
    wanted = [max(cell_len(line) for text in own for line in text.split("\n")) for own in cells]
    widths = [_least(block, place) for place in columns]
    spare = width - 1 - sum(wide + _OVERHEAD for wide in widths)
    headings = [cell_len(_text(row[0])) for row in block.rows if len(row) == 1 < len(block.head)]
    more = min(max(spare, 0), max(max(headings, default=0) - widths[0], 0))  # stay on one line
    widths[0], spare = widths[0] + more, spare - more
    while spare > 0 and any(wide < want for wide, want in zip(widths, wanted)):
        for place, want in enumerate(wanted):
            if widths[place] < want and spare > 0:
                widths[place] += 1
                spare -= 1
    return widths


def _column(block: TableBlock, place: int) -> list[str]:
    """Texts of a column with its head, as they are shown; headings of rows stand in the first."""
    rows = [row for row in block.rows if len(row) > place]
    return [block.head[place], *(_cell(row[place]).plain for row in rows)]


def _least(block: TableBlock, place: int) -> int:
    """The longest word of a column; of a name in the head, which may be broken, a part."""
    head, *texts = _column(block, place)
    words = [min(cell_len(word), _NAME) for word in head.split()]
    words += [cell_len(word) for text in texts for word in text.split()]
    return max(words, default=1)


def format_number(value: float, form: str = "+.3f") -> str:
    """Format a number with a minus sign as wide as the plus sign.

    >>> format_number(-0.5), format_number(0.25, ".1f")
    ('−0.500', '0.2')
    """
    return format(value, form).replace("-", "−")


def format_interval(value: float, low: float, high: float, form: str = ".1f") -> str:
    """Format a number with its interval.

    >>> format_interval(66.5, 63.0, 70.25)
    '66.5 (63.0 to 70.2)'
    """
    ends = f"{format_number(low, form)} to {format_number(high, form)}"
    return f"{format_number(value, form)} ({ends})"


def _text(cell: str | TableCell) -> str:
    return cell if isinstance(cell, str) else cell.value


def _cell(cell: str | TableCell) -> Text:
    if isinstance(cell, str):
        return Text(_SPAN.sub(r"\1…", cell))  # which no line breaks
    number = (cell.value, "bold" if cell.best else "")
    under = cell.under.replace(" to ", "…")  # fits two runs into 80 columns
    return Text.assemble(number, "\n", (under, "dim")) if under else Text.assemble(number)
