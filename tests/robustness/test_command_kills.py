"""Commands that are killed at any moment and run again leave what they leave undisturbed."""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from pathlib import Path

import pytest

import processes
import recipes_cases
from counterfoil.cli import main
from counterfoil.search.index import open_index

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="a killed process is a forked one"),
]
KILLS = 5  # of each command
DATA = "scenes:images=120"
COMMANDS = {
    "mine": f"mine MODEL --data {DATA} --texts-per-image 20 --images-per-text 5 --resume "
    "--output out",
    "foils": f"papers write rules {DATA} --output out",
    "index": f"index MODEL {DATA} --output out",
    "evaluate": f"evaluate MODEL --data {DATA} --json out.json",
    "audit": f"audit {DATA} --model MODEL --output out",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return recipes_cases.pixel_model(tmp_path_factory.mktemp("models") / "pixels")


def run(name: str, model: Path, folder: Path) -> int:
    """The command in a folder; nothing where it has been done."""
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    done = {"index": "out/manifest.json", "evaluate": "out.json"}.get(name, "out")
    return 0 if Path(done).exists() else main(COMMANDS[name].replace("MODEL", str(model)).split())


def content(name: str, folder: Path) -> object:
    """Everything in a folder; of an index, whose files have random names, its answers."""
    if name != "index":
        for left in folder.glob(".out.json.*.part"):  # of a single file, by a killed writer
            left.unlink()
        return recipes_cases.snapshot(folder)
    with open_index(folder / "out") as index:
        index.vectors.verify()
        files = sorted(re.sub("-[0-9a-f]{8}[.]", ".", str(path)) for path in folder.rglob("*"))
        hits = [(hit.id, hit.score) for hit in index.search("a red circle", 20)]
        return files, hits, list(index.vectors.images.rows)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_that_is_run_again_ends_as_alone(name, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, chance = tmp_path / "x", random.Random(name)
    assert run(name, model, folder) == 0
    expected = content(name, folder)
    shutil.rmtree(folder)
    start = time.perf_counter()
    assert processes.ended(processes.forked(lambda: run(name, model, folder))) == 0
    seconds, kills = time.perf_counter() - start, 0
    for _ in range(10 * KILLS):
        shutil.rmtree(folder)
        child = processes.forked(lambda: run(name, model, folder))
        time.sleep(chance.uniform(0, seconds))
        kills += processes.killed(child)
        assert run(name, model, folder) == 0
        assert content(name, folder) == expected
        if kills == KILLS:
            break
    assert kills == KILLS
