"""Reports of runs, and what logs of trainings hold."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from analysis_cases import batches, write_run
from counterfoil.analysis.runs import (
    PERCENTILES,
    caption_difficulty,
    cost_table,
    difficulty_figures,
    first_and_last,
    foil_accuracies,
    foil_table,
    report,
    training_cost,
)

# Reports: what is compared under which name, and what training cost.


LOG = (
    {"step": 2, "epoch": 0.5, "seconds": 60.0, "pairs_per_second": 10.0, "memory_mb": 512.0},
    {"step": 4, "epoch": 1.0, "seconds": 30.0, "pairs_per_second": 1_000.0, "memory_mb": 2048.0},
    {"step": 4, "epoch": 1.0, "mined_seconds": 90.0, "dev_rsum": 100.0},
    {"step": 6, "epoch": 1.5, "seconds": 180.0, "pairs_per_second": 30.0, "memory_mb": 1024.0},
)


def logged(folder: Path, *lines: object) -> Path:
    folder.mkdir()
    log = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(log)
    return folder


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Path:
    """A run with the tests of two trainings."""
    folder = tmp_path_factory.mktemp("report") / "run"
    write_run(folder, batches((8, 16)))
    return folder


def test_cost_is_the_most_of_each_session_and_the_median_of_speeds(tmp_path):
    found = training_cost("own", logged(tmp_path / "own", *LOG))
    assert (found["steps"], found["epochs"], found["minutes"]) == (6, 1.5, 3.0)
    assert (found["memory_mb"], found["pairs_per_second"]) == (2048.0, 30.0)
    assert found["mined_minutes"] == 1.5
    (row,) = cost_table([found]).rows
    assert row == ("own", "6", "1.5", "3.0", "2.00", "30", "1.5")


def test_what_a_log_does_not_tell_is_left_open(tmp_path):
    found = training_cost("own", logged(tmp_path / "own", {"step": 1_234}))
    assert found["minutes"] is None
    assert cost_table([found]).rows == (("own", "1,234", "0", "–", "–", "–", "–"),)


@pytest.mark.parametrize("line", [{"epoch": 1.0}, {"step": 1, "seconds": "long"}, {"step": None}])
def test_a_log_of_something_else_is_named(line, tmp_path):
    folder = logged(tmp_path / "own", line)
    with pytest.raises(ValueError, match=r"metrics\.jsonl cannot be read as the log of a training"):
        training_cost("own", folder)
    with pytest.raises(ValueError, match="does not exist"):
        training_cost("own", tmp_path / "nowhere")


def test_foils_are_in_order_of_their_sets(tmp_path):
    def measured(name: str, of: str, value: float) -> Path:
        line = {"measure": "pairs", "of": of, "value": value, "chance": 50.0}
        line["interval"] = {"low": value - 1, "high": value + 1}
        path = tmp_path / f"{name}-{of}.json"
        path.write_text(json.dumps({"set": name, "model": "m", "lines": [line]}))
        return path

    found = foil_accuracies([measured("vsr", "all", 71.26), measured("aro", "all", 60.0)])
    assert foil_table(found).rows == (
        ("aro", "all", "pairs", "m", "60.0", "59.0 to 61.0", "50.0"),
        ("vsr", "all", "pairs", "m", "71.3", "70.3 to 72.3", "50.0"),
    )


def test_tests_that_were_measured_alike_are_compared(ran):
    found = report([ran]).numbers["runs"]
    assert [run["name"] for run in found] == ["own-16", "own-8"], "by their folders"


def test_a_test_that_is_named_beside_its_run_counts_once(ran):
    found = report([ran / "test-own-8", ran]).numbers["runs"]
    assert [run["name"] for run in found] == ["own-8", "own-16"]


@pytest.mark.parametrize("name", ["", "test-own-8"])
def test_a_folder_that_is_given_twice_is_refused(name, ran):
    with pytest.raises(ValueError, match="is given twice; name each run once"):
        report([ran / name, ran / name])


# Difficulty of generated captions during training.


def log(steps: int = 20, *, loss: bool = True) -> list[dict[str, float]]:
    found: list[dict[str, float]] = [{"step": 1, "epoch": 1, "dev_rsum": 3.0}]
    for step in range(10, 10 * steps + 1, 10):
        line = {"step": step, "loss": 1.0, "written_above": 50 - step / 10, "written_gap": -step}
        line |= {f"written_gap_p{level}": level - step for level in PERCENTILES}
        found.append({**line, "loss_written": 1 / step} if loss else line)
    return found


@pytest.fixture
def read(tmp_path_factory):
    """The difficulty of captions by a log."""

    def read(lines: list[dict[str, float]], name: str = "one"):
        return caption_difficulty(name, logged(tmp_path_factory.mktemp("log") / "own", *lines))

    return read


def test_read(read):
    found = read(log())
    assert found["steps"] == list(range(10, 201, 10))
    assert found["percent_above"] == [50 - n for n in range(1, 21)]
    assert found["percentiles"][3] == [level - 40 for level in PERCENTILES]
    assert found["loss"][1] == 0.05
    assert read(log(loss=False))["loss"] == []


def test_logs_of_other_trainings(read):
    assert read([{"step": 10, "loss": 1.0}]) is None
    with pytest.raises(ValueError, match=r"metrics\.jsonl cannot be read as .* no 'written_gap'"):
        read([{"step": 10, "written_above": 1.0}])


def test_first_and_last(read):
    first, last = first_and_last(read(log()))
    assert (first["from"], first["to"], last["from"], last["to"]) == (10, 40, 170, 200)
    above = first["percent_above"]
    assert above.value == statistics.fmean([49, 48, 47, 46])
    assert last["gap"].value == statistics.fmean([-170, -180, -190, -200])
    assert 46 <= above.interval.low <= above.value <= above.interval.high <= 49
    first, last = first_and_last(read(log(1)))
    assert first["from"] == last["to"] == 10


def test_figures(read):
    courses = [read(log()), read(log(3), "two$")]
    drawn, shown, loss = difficulty_figures(courses, loss=True)
    assert drawn.svg.startswith("<svg")
    assert "one: median +40.000 at step 10, -150.000 at step 200" in drawn.alt
    assert "two$ from 49 to 47" in shown.caption[1]
    assert "one from 0.1 to 0.005" in loss.alt
    assert len(list(difficulty_figures(courses))) == 2
    assert list(difficulty_figures([])) == []
