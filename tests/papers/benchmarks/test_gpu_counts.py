"""The table of counted operations on the page of speed is the script's."""

from __future__ import annotations

from pathlib import Path

from benchmarks.speed import gpu_counts

PAGE = Path(__file__).parents[3] / "docs" / "results" / "speed.md"


def test_the_page_has_the_counts(capsys):
    gpu_counts.main()
    assert capsys.readouterr().out in PAGE.read_text("utf-8")
