"""Full disks: one sentence with what is needed and what is free; with room everything goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import recipes_cases
from counterfoil.cli import main

pytestmark = pytest.mark.skipif(os.name == "nt", reason="limits of files are those of Unix")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "online", "--smoke", "--data", "scenes:images=60"),
        (
            "mine",
            "MODEL",
            "--data",
            "scenes:images=200",
            "--split",
            "all",
            "--texts-per-image",
            "500",
        ),
    ],
    ids=["run", "mine"],
)
def test_long_work_is_refused_before_it_begins(words, tmp_path, monkeypatch, capsys):
    model = tmp_path / "model"
    recipes_cases.pixel_model(model)
    monkeypatch.setattr("counterfoil.core.io._largest_file", lambda: 100_000)
    words = [str(model) if word == "MODEL" else word for word in words]
    assert main([*words, "--output", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr().err
    assert "cannot be written: it takes" in shown.splitlines()[-1]
    assert "epoch 1" not in shown
    assert not list((tmp_path / "out").rglob("*.safetensors"))


# The limit is set inside the new process: `preexec_fn` would run the fork handlers of libraries
# that other tests have loaded here (gRPC's end in an abort).
LIMITED = """
import resource, runpy, sys
limit = int(sys.argv.pop(1))
if limit >= 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
runpy.run_module("counterfoil.cli", run_name="__main__", alter_sys=True)
"""


def command(*words: object, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(-1 if limit is None else limit), *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "features", "mine", "index"])
def test_a_command_on_a_full_disk_says_so_and_goes_on_with_room(name, tmp_path):
    model, data = recipes_cases.pixel_model(tmp_path / "model"), "scenes:images=200"
    out: Path = tmp_path / "out"
    words = {
        "run": ("run", "online", "--smoke", "--data", data, "--output", out),
        "features": (
            *("features", data, out, "--model", recipes_cases.clip_like(tmp_path / "clip")),
        ),
        "mine": ("mine", model, "--data", data, "--split", "all", "--output", out),
        "index": ("index", model, data, "--output", out),
    }[name]
    full = command(*words, limit=8_000)
    assert full.returncode == 2, full.stderr
    last = full.stderr.strip().splitlines()[-1]
    assert "cannot be written" in last, full.stderr
    assert "Traceback" not in full.stderr
    resume = ["--resume"] if name == "run" and out.exists() else []
    again = command(*words, *resume)
    assert again.returncode == 0, again.stderr
    assert out.is_dir()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".out")]
