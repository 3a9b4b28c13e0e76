"""Tables of ledgers in pages of the documentation, each between two marks."""

from __future__ import annotations

from pathlib import Path

from counterfoil.core.io import write_text


def table_place(text: str, start: str, end: str) -> tuple[str, str, str]:
    """The text of a page up to its first mark, the table, and the text from the last mark on.

    Raises:
        ValueError: the page has no place for a table.
    """
    before, mark, rest = text.partition(f"{start}\n")
    table, closed, after = rest.partition(end)
    if not (mark and closed):
        raise ValueError(f"no place {start} … {end} for the table")
    return before + mark, table, end + after


def put_table(page: Path, start: str, end: str, table: str) -> None:
    """Write a table between the marks of a page.

    Raises:
        ValueError: the page has no place for it.
    """
    try:
        before, _, after = table_place(page.read_text("utf-8"), start, end)
    except ValueError as error:
        raise ValueError(f"{page} has {error}") from None
    write_text(page, f"{before}{table}\n{after}")
