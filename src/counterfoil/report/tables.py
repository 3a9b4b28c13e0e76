"""Tables of a page in the terminal, and how numbers are written."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from counterfoil.report.page import TableBlock, TableCell


def terminal_table(block: TableBlock, protocol: str = "") -> Table:
    """Convert a table of a page to a table for the terminal, with the protocol below it."""
    note = f"{protocol}. {block.note}".rstrip() if protocol else block.note
    title = Text(block.title) if block.title else None
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.caption, table.caption_justify = Text(note), "left"
    plain = all(isinstance(cell, str) for row in block.rows for cell in row)
    for place, name in enumerate(block.head):
        table.add_column(
            Text(name), justify="right" if place else "left", no_wrap=not plain and place == 0
        )
    for row in block.rows:
        if len(row) == 1 < len(block.head):
            table.add_row(Text(_text(row[0]), style="bold"))
        else:
            table.add_row(*(_cell(cell) for cell in row))
    return table


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
        return Text(cell)
    number = (cell.value, "bold" if cell.best else "")
    under = cell.under.replace(" to ", "…")  # fits two runs into 80 columns
    return Text.assemble(number, "\n", (under, "dim")) if under else Text.assemble(number)
