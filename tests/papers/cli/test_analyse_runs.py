from __future__ import annotations

import pytest

from analysis_cases import batches, taught, write_run
from counterfoil.analysis.runs import finished_evaluations


def test_student(analysed, tmp_path):
    wanted = {name: write_run(tmp_path / name, taught()) for name in ("gpo", "chan")}
    where = (tmp_path / "gpo", tmp_path / "chan")
    shown, page, numbers = analysed("student", *where, data=None, figures=1)
    assert [one["name"] for one in numbers["students"]] == ["gpo", "chan"]
    for one in numbers["students"]:
        rsums = wanted[one["name"]]
        teachers = [teacher["result"]["rsum"] for teacher in one["teachers"]]
        assert teachers == pytest.approx([rsums["test-teacher-1"], rsums["test-teacher-2"]])
        together = one["ensemble"]["result"]["rsum"]
        assert together == pytest.approx(rsums["test-teacher-1-teacher-2"])
        change = one["student"]["result"]["rsum"] - together
        found = one["differences"]["teacher-1 + teacher-2"]
        assert found["difference"] == pytest.approx(change)
        assert found["interval"]["low"] <= change <= found["interval"]["high"]
        span = one["student"]["intervals"]["rsum"]
        assert span["low"] <= rsums["test-student"] <= span["high"]
        assert one["student"]["seeds"] == [0]
        assert one["ensemble"]["seeds"] == [1, 2]
    assert "ensemble of 2, seed 1 and 2" in page
    assert "scenes test, whole split: 6 images, 30 texts; any hit" in shown


def test_students_of_one_run_are_told_apart(analysed, tmp_path):
    write_run(tmp_path / "k", taught(3, students=(1, 3)))
    numbers = analysed("student", tmp_path / "k", data=None)[2]
    found = {one["name"]: one for one in numbers["students"]}
    assert set(found) == {"k student-of-1", "k student-of-3"}
    assert found["k student-of-1"]["ensemble"] is None
    assert len(found["k student-of-1"]["teachers"]) == 1
    assert len(found["k student-of-3"]["teachers"]) == 3


def test_against_teachers(analysed, tmp_path):
    wanted = write_run(tmp_path / "k", taught(3, students=(1, 2, 3)))
    shown, _, numbers = analysed("against", "teachers", tmp_path / "k", data=None, figures=3)
    found = {(one["series"], one["at"]): one["result"]["rsum"] for one in numbers["lines"]}
    for k in (1, 2, 3):
        assert found[("student", k)] == pytest.approx(wanted[f"test-student-of-{k}"])
    assert found[("ensemble", 3)] == pytest.approx(wanted["test-teacher-1-teacher-2-teacher-3"])
    alone = [one["models"] for one in numbers["lines"] if one["at"] == 1]
    assert alone == [["teacher-1"], ["teacher-2"], ["teacher-3"], ["student-of-1"]]
    assert "RSum by models: ensemble" in shown


def test_against_batch(analysed, tmp_path):
    wanted = {name: write_run(tmp_path / name, batches((8, 32, 64))) for name in ("a", "b")}
    where = (tmp_path / "a", tmp_path / "b")
    numbers = analysed("against", "batch", *where, data=None)[2]
    found = [(one["series"], one["at"], one["result"]["rsum"]) for one in numbers["lines"]]
    assert found == [
        (f"{run} own", size, pytest.approx(wanted[run][f"test-own-{size}"]))
        for run in ("a", "b")
        for size in (8, 32, 64)
    ]


def test_a_real_run(models):
    found = finished_evaluations([models / "run"])
    assert {(one.models, one.seeds, one.batch) for one in found} == {
        (("online",), (0,), 16),
        (("adaptive",), (0,), 16),
    }
    assert all(one.run == "run" and one.teachers == () for one in found)
