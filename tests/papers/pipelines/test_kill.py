"""A run that is killed at any moment goes on to the numbers of one that was not."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import processes
import recipes_cases
from recipes_cases import aoq, results

DATA = "scenes:images=36"
DROPOUT = ("--set", "*.model.text.dropout=0.2", "--set", "*.save_minutes=0")


@pytest.fixture(autouse=True, scope="module")
def no_figures() -> None:
    """In place of that of the folder: a command in a process of its own runs as a user's does."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with dropout that was never interrupted, and how long it took."""
    folders = [tmp_path_factory.mktemp("whole") / "run" for _ in range(2)]
    assert aoq(folders[0], DATA, *DROPOUT) == 0
    began = time.monotonic()
    assert processes.ended(forked(folders[1])) == 0
    assert results(folders[0]) == results(folders[1])
    assert digests(folders[0]) == digests(folders[1])
    return results(folders[0]), time.monotonic() - began


def digests(folder: Path) -> list[str]:
    """Of the stages; the place of a run is no part of them."""
    notes = (json.loads((folder / f"{stage}.json").read_text()) for stage in recipes_cases.FILES)
    return [note["digest"] for note in notes]


def forked(folder: Path) -> int:
    """The run, begun or gone on with, in a process of its own; its number."""
    return processes.forked(lambda: aoq(folder, DATA, *DROPOUT, "--resume"))


def finish(folder: Path) -> None:
    assert aoq(folder, DATA, *DROPOUT, "--resume") == 0
    # what is killed behind its last stage leaves the file of its lock, which locks nothing
    left = [path for path in folder.rglob(".*") if path.name != ".lock"]
    assert not left, "something half-written was left"


MOMENTS = (
    "online.json",
    "online/checkpoints/last.safetensors",
    "online/model/model.json",
    "lists.json",
    "lists/manifest.json",
    "adaptive/checkpoints/last.safetensors",
    "test-adaptive.json",
    "report.json",
)


def test_killed_in_every_stage(whole, tmp_path):
    folder = tmp_path / "run"
    for moment in MOMENTS:
        child = forked(folder)
        processes.wait_for((folder / moment).exists, child)
        processes.killed(child)
    finish(folder)
    assert results(folder) == whole[0]


def command(folder: Path) -> subprocess.Popen:
    words = ("run", "aoq", "--data", DATA, "--output", folder, "--smoke", "--resume")
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "counterfoil.cli",
            *map(str, (*words, *recipes_cases.SMALL_AOQ, *DROPOUT)),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_killed_again_and_again(seed, whole, tmp_path):
    """At random moments of all stages, until it comes to its end."""
    expected, seconds = whole
    folder, chance = tmp_path / "run", random.Random(seed)
    kills = 0
    for patience in range(200):
        child = forked(folder)
        time.sleep(chance.uniform(0.02, seconds * (0.3 + patience / 20)))
        if not processes.killed(child):
            break
        kills += 1
    assert kills
    finish(folder)
    assert results(folder) == expected


@pytest.mark.slow
def test_commands_killed_at_random(whole, tmp_path):
    folder, chance = tmp_path / "run", random.Random(100)
    for _ in range(3):
        child = command(folder)
        time.sleep(chance.uniform(2.0, 9.0))
        child.kill()
        child.wait()
    assert command(folder).wait() == 0
    assert results(folder) == whole[0]
    finish(folder)
