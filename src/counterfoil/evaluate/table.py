"""The results of a report as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from counterfoil.evaluate.analysis_page import Rows
from counterfoil.evaluate.report import GROUPS, Cell, RunResult, row


def table(runs: Sequence[RunResult], protocol: str) -> Table:
    """Metrics by run, each over its interval, with differences from the first run.

    Args:
        runs: at least one; all but the first carry a comparison with it.
        protocol: in one sentence; it stands below, with what the intervals are.
    """
    note = f"{protocol}. Below each number: 95 % interval."
    shown = Table(box=box.SIMPLE_HEAD, caption=Text(note), caption_justify="left")
    shown.add_column("", no_wrap=True)
    for run in runs:
        shown.add_column(Text(run.name), justify="right")
        if run.against:
            shown.add_column("difference", justify="right")
            shown.add_column("p", justify="right", no_wrap=True)
    for title, metrics in GROUPS:
        shown.add_row(Text(title, style="bold"))
        for metric in metrics:
            line = row(tuple(runs), metric)
            shown.add_row(f"  {line.metric}", *(part for c in line.cells for part in _parts(c)))
    return shown


def plain(rows: Rows, protocol: str = "") -> Table:
    """A table of words and numbers.

    Args:
        rows: the cells.
        protocol: in one sentence; it stands below.
    """
    note = f"{protocol}. {rows.note}".rstrip() if protocol else rows.note
    shown = Table(title=Text(rows.title), title_justify="left", box=box.SIMPLE_HEAD)
    shown.caption, shown.caption_justify = Text(note), "left"
    for place, name in enumerate(rows.head):
        shown.add_column(Text(name), justify="right" if place else "left")
    for cells in rows.rows:
        shown.add_row(*(Text(cell) for cell in cells))
    return shown


def _parts(cell: Cell) -> list[Text]:
    span = cell.under.replace(" to ", "…")
    number = Text.assemble((cell.value, "bold" if cell.best else ""), "\n", (span, "dim"))
    return [number] if cell.p is None else [number, Text(cell.p)]
