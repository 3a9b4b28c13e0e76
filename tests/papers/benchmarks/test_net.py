"""The net tells equal results, results within a bound, and different ones apart."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from benchmarks.net import __main__ as net
from benchmarks.net import cases
from benchmarks.net.bounds import BOUNDS, VOLATILE, Bound
from benchmarks.net.compare import compare_folders

ROWS = np.array([[0.5, -2.0], [math.nan, math.inf]], np.float32)
PLAIN = {"name": "one", "rank": 3, "score": 0.5, "nested": [{"a": 1.0}, {"a": math.nan}]}


def write(folder, name, value):
    folder.mkdir(exist_ok=True)
    if name.endswith(".json"):
        (folder / name).write_text(json.dumps(value))
    elif name.endswith(".jsonl"):
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in value))
    elif name.endswith(".npz"):
        np.savez(folder / name, rows=value)
    elif name.endswith(".npy"):
        np.save(folder / name, value)
    elif name.endswith(".safetensors"):
        save_file({"w": value}, folder / name)
    else:
        (folder / name).write_text(value)


@pytest.fixture
def compared(tmp_path):
    """Compare a file with a value on each side; None writes none."""

    def compare(name, old, new, bound=0.0):
        for side, value in (("old", old), ("new", new)):
            write(tmp_path / side, "same.txt", "same")
            if value is not None:
                write(tmp_path / side, name, value)
        return compare_folders(tmp_path / "old", tmp_path / "new", bound)

    return compare


def moved(by, at=(0, 0)):
    rows = ROWS.copy()
    rows[at] += by
    return rows


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a.npz", ROWS),
        ("a.npy", ROWS.astype(np.float16)),
        ("a.safetensors", torch.tensor([0.5, math.nan], dtype=torch.bfloat16)),
        ("a.json", PLAIN),
        ("a.jsonl", [PLAIN, PLAIN]),
        ("a.txt", "text"),
    ],
)
def test_equal(compared, name, value):
    assert compared(name, value, value) == (0.0, ())


@pytest.mark.parametrize(
    ("name", "old", "new", "distance"),
    [
        ("a.npz", ROWS, moved(0.25), 0.25),
        ("a.npz", ROWS, moved(0.5, (0, 1)), 0.25),  # beyond 1 the share counts
        ("a.json", PLAIN, PLAIN | {"score": 0.75}, 0.25),
        ("a.safetensors", torch.tensor([0.5]), torch.tensor([0.75]), 0.25),
    ],
)
def test_numbers_within_a_bound(compared, name, old, new, distance):
    assert compared(name, old, new, bound=distance) == (distance, ())
    worst, different = compared(name, old, new, bound=distance * 0.99)
    assert worst == distance
    assert len(different) == 1
    assert different[0].startswith(name)
    assert different[0].endswith(f"{distance} apart")


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("a.npz", ROWS, None, "a.npz: missing on the new side"),
        ("a.npz", None, ROWS, "a.npz: missing on the old side"),
        ("a.npz", ROWS, ROWS[:1], "a.npz rows: float32[2, 2] became float32[1, 2]"),
        ("a.npy", ROWS, ROWS.astype(np.float64), "a.npy: float32[2, 2] became float64[2, 2]"),
        ("a.npz", ROWS, moved(math.nan), "a.npz rows: 1 of 4 became or were NaN or infinite"),
        ("a.npz", ROWS, moved(math.inf), "a.npz rows: 1 of 4 became or were NaN or infinite"),
        ("a.npy", np.arange(3), np.array([0, 2, 1]), "a.npy: 2 of 3 entries differ"),
        ("a.txt", "one", "other", "a.txt: other bytes"),
        ("a.json", PLAIN, PLAIN | {"rank": 4}, "a.json rank: 3 became 4"),
        ("a.json", PLAIN, PLAIN | {"rank": 3.0}, "a.json rank: 3 became 3.0"),
        ("a.json", PLAIN, PLAIN | {"rank": None}, "a.json rank: 3 became null"),
        ("a.json", PLAIN, PLAIN | {"score": math.nan}, "a.json score: 0.5 became nan"),
        ("a.json", PLAIN, PLAIN | {"more": 1}, "a.json more: missing on the old side"),
        ("a.json", {"a": [1, 2]}, {"a": [1]}, "a.json a 1: missing on the new side"),
        ("a.json", {"a": None}, {}, "a.json a: missing on the new side"),
        ("a.jsonl", [1, 2], [1, 3], "a.jsonl 1: 2 became 3"),
    ],
)
def test_different_whatever_the_bound(compared, name, old, new, said):
    assert compared(name, old, new, bound=1e9).different == (said,)


def test_a_case_without_results_or_with_an_error_is_different(tmp_path):
    assert compare_folders(tmp_path / "a", tmp_path / "b").different
    for side in ("old", "new"):
        write(tmp_path / side, "error.txt", "Traceback\nValueError: no such host\n")
    found = compare_folders(tmp_path / "old", tmp_path / "new", 1.0)
    assert found.different == ("old failed: ValueError: no such host",)


@pytest.mark.parametrize("key", VOLATILE)
def test_what_a_clock_says_is_left_out_but_not_what_a_stage_is_called(compared, key):
    assert not compared("a.json", {"a": [{key: 1}]}, {"a": [{key: 2}]}).different
    assert compared("a.json", {key: {"a": 1}}, {key: {"a": 2}}).different


def test_each_case_gets_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(net, "BOUNDS", {"near": Bound(0.5, "sums in another order")})
    old, new = tmp_path / "one", tmp_path / "two"
    for side, value in ((old, 1.0), (new, 1.25)):
        side.mkdir()
        for case in ("equal", "far", "near"):
            write(side / case, "a.json", 1.0 if case == "equal" else value)
    write(new / "only", "a.json", 1)
    assert not net._compare(old, new, [])
    assert capsys.readouterr().out.splitlines() == [
        "equal: equal",
        "far: different: a.json: 0.25 apart",
        "near: within 0.5, 0.25 apart at most: sums in another order",
        "only: different: a.json: missing on the old side",
    ]
    assert net._compare(old, new, ["equal", "near"])


def test_figures_of_speed_are_read_by_threads():
    table = (
        "### one thread\n\n| figure | x | \n|---|---|\n| a, 5 | 1.50 s |  |\n| b | 2.00 | met |\n"
    )
    assert dict(net.read_figures(table)) == {"one thread: a, 5": 1.5, "one thread: b": 2.0}


def test_bounds_are_of_cases_that_there_are():
    assert BOUNDS.keys() <= cases.CASES.keys()
    assert all(bound.reason and bound.most > 0 for bound in BOUNDS.values())


@pytest.mark.slow
@pytest.mark.skipif(not (net.ROOT / ".git").exists(), reason="the sources are not a git checkout")
def test_a_commit_equals_itself_and_a_changed_number_is_found(tmp_path, capfd):
    words = ["HEAD", "--cases", "evaluation", "--keep", str(tmp_path)]
    assert net.main(words) == 0, capfd.readouterr().out
    assert "evaluation: equal" in capfd.readouterr().out
    kept = next(path for path in tmp_path.iterdir() if path.name != "new")
    measured = kept / "evaluation" / "one.json"
    found = json.loads(measured.read_text())
    measured.write_text(json.dumps(found | {"more": 1}))
    assert net.main(words) == 1
    said = capfd.readouterr().out
    assert "evaluation: different: one.json more: missing on the new side" in said
