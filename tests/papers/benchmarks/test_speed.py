"""The table of speed says which targets are met, and waiting is measured."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import types

import pytest

import benchmarks
from benchmarks.speed import Result, __main__, scale, waiting


@pytest.mark.parametrize(("ratio", "met", "code"), [(1.0, "met", 0), (1.3, "missed", 1)])
def test_the_table_says_which_targets_are_met(monkeypatch, tmp_path, capsys, ratio, met, code):
    found = [Result("a product", ratio, 1.2), Result("another", 9.0), Result("start", 1, unit="s")]
    fake = types.SimpleNamespace(results=lambda threads: found)
    monkeypatch.setitem(sys.modules, "benchmarks.speed.scan", fake)
    table = tmp_path / "table.md"
    words = ["scan", "--threads", "1", "--markdown", str(table)]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
    assert __main__.main() == code
    lines = table.read_text().splitlines()
    assert f"| a product | {ratio:.2f} | <= 1.2 | {met} |  |  |" in lines
    assert "| another | 9.00 |  |  |  |  |" in lines
    assert "| start | 1.00 s |  |  |  |  |" in lines
    assert met in capsys.readouterr().out


def test_all_benchmarks_are_importable():
    """Each is a command of its own, which nothing else imports."""
    for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def test_waiting_counts_the_seconds_of_a_process():
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    cpu, wall = waiting.ended(sys.executable, "-c", busy)
    assert 0.25 < cpu <= wall + 0.1
    cpu, wall = waiting.ended(sys.executable, "-c", "import time; time.sleep(0.3)")
    assert cpu < 0.3 <= wall


def test_scale_measures_exact_lists_and_proposals(monkeypatch):
    pytest.importorskip("faiss")
    for name, value in {"COUNTS": (400,), "TEXTS": 200, "WIDTH": 16, "CENTRES": 10}.items():
        monkeypatch.setattr(scale, name, value)
    exact, proposed = scale.results(1)
    assert "ns a score" in exact.note
    assert "100.0% of the exact lists of images, 100.0% of the hardest" in proposed.note
