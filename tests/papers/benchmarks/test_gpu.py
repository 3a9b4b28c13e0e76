"""The script for a GPU runs to its end without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu as script
from counterfoil import kernels

TINY = ["--device", "cpu", "--tiny"]
QUICK = [name for name in script.SECTIONS if name not in ("kernel speed", "verbs")]


def rows_of(path: Path) -> list[dict]:
    return json.loads(path.read_text())


@pytest.mark.parametrize("section", QUICK)
def test_a_section_has_rows_and_no_errors(tmp_path, section):
    assert script.main([*TINY, "--section", section, "--output", str(tmp_path / "gpu.json")]) == 0
    rows = rows_of(tmp_path / "gpu.json")
    assert rows
    assert not [row for row in rows if "error" in row]
    assert all(row["met"] for row in rows if row.get("unit") == "difference")


def test_every_kernel_has_a_case():
    assert {*kernels.__all__} - {"use"} <= {*script.SCORES} | script.OTHERS


@pytest.mark.parametrize("wrong", [1.001, float("nan")])
def test_a_kernel_that_differs_is_found(monkeypatch, tmp_path, wrong):
    real = kernels.max_sim

    def max_sim(images, texts, *masks, **settings):
        scores = real(images, texts, *masks, **settings)
        return scores * wrong if images.dtype != script.torch.float64 else scores

    monkeypatch.setattr(kernels, "max_sim", max_sim)
    script.run_section(
        "kernel checks", script.Sizes(script.torch.device("cpu")).small(), tmp_path / "a"
    )
    missed = {row["name"].split(",")[0] for row in rows_of(tmp_path / "a") if row["met"] is False}
    assert missed == {"MaxSim t2i", "MaxSim i2t", "CHAN VHA"}


def test_a_gpu_without_kernels_is_an_error(monkeypatch):
    sizes = script.Sizes(script.torch.device("cuda"))
    for runs, errors in ((False, 1), (True, 0)):
        monkeypatch.setattr(script.gpu, "launches", lambda device, runs=runs: runs)
        monkeypatch.setattr(script.gpu, "installed", lambda: True)
        assert len([row for row in script.missing_kernels(sizes) if "error" in row]) == errors


def test_rows_stay_when_a_section_fails_dies_or_has_no_time_left(tmp_path, monkeypatch, capsys):
    def failing(sizes):
        yield script.figure("first", 1.0, "s")
        raise RuntimeError("CUDA error:\nno kernel image")

    monkeypatch.setattr(script, "SECTIONS", {"bad": failing})
    sizes = script.Sizes(script.torch.device("cpu"))
    script.run_section("bad", sizes, tmp_path / "rows.json")
    first, failed = rows_of(tmp_path / "rows.json")
    assert (first["name"], first["section"]) == ("first", "bad")
    assert failed["error"] == "RuntimeError: CUDA error: no kernel image"

    code = "import os, sys, time; time.sleep(9) if sys.argv[2] == 'slow' else os.abort()"
    monkeypatch.setattr(script, "SECTIONS", dict.fromkeys(("dead", "slow", "late")))
    script.run_all(0.02, tmp_path / "all.json", [sys.executable, "-c", code])
    errors = {row["section"]: row["error"] for row in rows_of(tmp_path / "all.json")}
    assert errors["dead"] == "its process ended with -6"
    assert errors["slow"].startswith("stopped after")
    assert errors["late"] == "no time was left"


@pytest.mark.slow
def test_the_whole_script_with_kernels_in_the_interpreter(tmp_path):
    output = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks.gpu", *TINY, "--output", str(output)]
    subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, check=False)
    rows = rows_of(output)
    assert [row for row in rows if "error" in row] == []
    assert {row["section"] for row in rows} == {*script.SECTIONS}
    assert all(row["met"] for row in rows if row.get("unit") == "difference")
