"""What two everyday commands load, run to their end: few modules, and none of the papers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import recipes_cases

SCENES = "scenes:images=24"
RUN = """import sys
from counterfoil.cli import main
code = main(sys.argv[1:])
own = sorted(name for name in sys.modules if name.split(".")[0] == "counterfoil")
print(code, *own, file=sys.stderr)
"""


def loaded(folder: Path, *words: object) -> list[str]:
    """The modules of this package that a command has loaded at its end."""
    settings = {**os.environ, "COUNTERFOIL_CACHE": str(folder / "cache")}
    command = [sys.executable, "-c", RUN, *map(str, words)]
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True)
    code, *modules = done.stderr.splitlines()[-1].split()
    assert code == "0", done.stderr
    assert "counterfoil.cli" in modules
    return modules


@pytest.mark.slow
def test_fine_tuning_a_clip_loads_no_module_of_the_papers(tmp_path):
    clip = recipes_cases.clip_like(tmp_path / "clip")
    options = ("--epochs", 1, "--output", tmp_path / "run")
    modules = loaded(tmp_path, "train", "contrastive", "--model", clip, "--data", SCENES, *options)
    assert (tmp_path / "run" / "tuned" / "model").is_dir()
    assert [name for name in modules if name.startswith("counterfoil.papers")] == []
    assert len(modules) < 130


def test_a_search_loads_what_it_needs(tmp_path):
    model = recipes_cases.pixel_model(tmp_path / "model")
    assert recipes_cases.run("index", model, SCENES, "--output", tmp_path / "index") == 0
    modules = loaded(tmp_path, "search", tmp_path / "index", "a red circle")
    assert [name for name in modules if name.startswith("counterfoil.papers")] == []
    assert len(modules) < 90
