"""Where an analysis goes: a table in the terminal, a page, and its numbers as JSON beside it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from counterfoil import world
from counterfoil.core.console import output
from counterfoil.evaluate.analysis_page import AnalysisPage, render
from counterfoil.evaluate.table import plain
from counterfoil.files import check_file, check_new, write_json, write_text
from counterfoil.recipes.show import console


def check_out(out: Path) -> None:
    """Refuse a page that could not be written, before anything is computed.

    Raises:
        ValueError: it is no ``.html`` file, or it or its ``.json`` is already there.
    """
    if out.suffix != ".html":
        raise ValueError(f"{out} is no page; name a file that ends in .html")
    check_file(out)
    for path in (out, out.with_suffix(".json")):
        check_new(path, "a new page with --out")


def publish(page: AnalysisPage, numbers: dict[str, Any], out: Path) -> None:
    """Print the tables, write the page and, beside it, the numbers; the first process does."""
    if world.rank():
        return
    text = render(page)
    for table in page.tables:
        console.print(plain(table, page.protocol))
    known = {"title": page.title, "protocol": page.protocol}
    made = asdict(page.provenance)
    write_json(out.with_suffix(".json"), {**known, "provenance": made, **numbers})
    write_text(out, text)
    output(page.headline)
    output(f"{out}, {out.with_suffix('.json')}")
