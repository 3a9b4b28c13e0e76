"""The published tables are those that their raw results give."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.experiments.ledger import read
from benchmarks.experiments.summary import as_markdown, first_of, lines

DOCS = Path(__file__).parents[2] / "docs"
LEDGERS = sorted((DOCS / "evidence").glob("*.jsonl"))


def test_there_are_raw_results() -> None:
    assert LEDGERS


@pytest.mark.parametrize("ledger", LEDGERS, ids=lambda path: path.stem)
def test_the_page_shows_what_the_raw_results_say(ledger: Path) -> None:
    entries = read(ledger)
    page = "".join(path.read_text("utf-8") for path in (DOCS / "results").glob("*.md"))
    assert as_markdown(entries, lines(entries, first_of(entries))) in page
    assert f"docs/evidence/{ledger.name}" in page
