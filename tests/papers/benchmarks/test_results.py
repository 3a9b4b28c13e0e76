"""The published tables are those that their ledgers give."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import adapter_batch, small_data
from benchmarks.experiments.catalogue import find
from benchmarks.experiments.ledger import read
from benchmarks.experiments.summary import as_markdown, write_pages
from counterfoil.training.config import adapter_config

DOCS = Path(__file__).parents[3] / "docs"
FEW = DOCS / "evidence" / "small-data.jsonl"
ADAPTERS = DOCS / "evidence" / "adapter-batch.jsonl"
# ledgers that have tests of their own
NAMES = (
    "truths",
    "exact-lists",
    "exact-lists-towers",
    "equal-cost",
    "methods",
    "listwise",
    "macro-foils",
    "pointing",
    "both-ways",
    "margins",
    "replacing",
)
OWN = (DOCS / "evidence" / f"{name}.jsonl" for name in NAMES)
OTHERS = {FEW, ADAPTERS, *OWN}
LEDGERS = sorted(set((DOCS / "evidence").glob("*.jsonl")) - OTHERS)


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


def test_the_page_shows_the_table_of_few_photos(tmp_path) -> None:
    page = DOCS / "results" / "defaults.md"
    rows = small_data.read(FEW)
    assert (
        f"{small_data.BEGIN}\n{small_data.as_markdown(rows)}\n{small_data.END}" in page.read_text()
    )
    copy = tmp_path / "page.md"
    copy.write_text(f"before\n{small_data.BEGIN}\nstale\n{small_data.END}\nafter\n")
    small_data.write_page(copy, rows)
    assert copy.read_text().endswith(f"{small_data.as_markdown(rows)}\n{small_data.END}\nafter\n")


def test_the_page_shows_the_table_of_the_batch_of_adapters(tmp_path) -> None:
    """Five fresh seeds at every size, with the settings that the default has."""
    rows = adapter_batch.read(ADAPTERS)
    table = adapter_batch.as_markdown(rows)
    begin, end = adapter_batch.BEGIN, adapter_batch.END
    assert f"{begin}\n{table}\n{end}" in (DOCS / "results" / "defaults.md").read_text()
    copy = tmp_path / "page.md"
    copy.write_text(f"before\n{begin}\nstale\n{end}\nafter\n")
    adapter_batch.write_page(copy, rows)
    assert copy.read_text() == f"before\n{begin}\n{table}\n{end}\nafter\n"
    found = {(row["size"], row["seed"], row["method"]): row["settings"] for row in rows}
    assert len(rows) == len(found) == len(adapter_batch.PHOTOS) * len(adapter_batch.SEEDS) * 2
    for (size, _, method), settings in found.items():
        plan = adapter_config(5 * size if method == "default" else 0)
        assert settings["batch"] == plan.batch == (512 if method == "default" else 128)
        assert settings["rate"] == plan.optimiser.rate


def test_few_photos_are_compared_on_seeds_that_have_all_cells() -> None:
    """The best cell on test in the mean is the oracle; each seed's dev split chooses its own."""
    first = {"way": "frozen", "size": 50}
    rows = [
        first
        | {"seed": seed, "method": "grid", "rate": rate, "length": 25}
        | {"test_last": test, "dev_last": dev}
        for seed, cells in {0: ((1, 10, 1), (2, 20, 9)), 1: ((1, 40, 5), (2, 20, 3))}.items()
        for rate, test, dev in cells
    ]
    rows += [
        first | {"seed": seed, "method": method, "test_best": 24.0 + seed, "test_last": 22.0}
        for seed in (0, 1, 2)
        for method in ("default", "before")
    ]
    found = small_data.line(rows, "frozen", 50)
    assert found is not None
    assert (found.seeds, found.cells, found.best) == ((0, 1), 2, (1, 25))
    assert (found.oracle, found.on_dev) == ((10, 40), (20, 40))
    assert (found.default, found.differences) == ((24, 25), (14, -15))
    assert small_data.line(rows, "photos", 50) is None
