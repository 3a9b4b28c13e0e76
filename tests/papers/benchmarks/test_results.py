"""The published tables are those that their ledgers give."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.experiments.catalogue import find
from benchmarks.experiments.ledger import read
from benchmarks.experiments.summary import as_markdown, write_pages

DOCS = Path(__file__).parents[3] / "docs"
LEDGERS = sorted((DOCS / "evidence").glob("*.jsonl"))


def test_there_are_ledgers() -> None:
    assert LEDGERS


@pytest.mark.parametrize("ledger", LEDGERS, ids=lambda path: path.stem)
def test_a_page_shows_the_table_of_each_ledger(ledger: Path) -> None:
    pages = "".join(path.read_text("utf-8") for path in (DOCS / "results").glob("*.md"))
    assert as_markdown(find(ledger.stem), read(ledger)) in pages
    assert f"images/{ledger.stem}.svg" in pages
    assert (DOCS / "images" / f"{ledger.stem}.svg").exists()


def test_pages_are_written_anew_from_the_ledgers(tmp_path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    page = next(
        path
        for path in (tmp_path / "docs" / "results").glob("*.md")
        if "<!-- table:" in path.read_text()
    )
    before = page.read_text("utf-8")
    page.write_text(before.replace("| adapters on CCA |", "| stale |"), "utf-8")
    assert page.read_text("utf-8") != before
    write_pages(tmp_path / "docs")
    assert page.read_text("utf-8") == before
