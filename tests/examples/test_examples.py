"""Every example runs offline in seconds with `--smoke`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import recipes_cases
from corpus_cases import write_folder
from counterfoil.data.readers import load_dataset

EXAMPLES = Path(__file__).parents[2] / "examples"
# these start other libraries or train, which takes more than 5 s on a busy machine
SLOW = {
    "aoq",
    "audit",
    "coco_embeddings",
    "custom_model",
    "evaluate_clip",
    "explain",
    "mine_for_sentence_transformers",
    "ndgl",
    "search",
    "serve_and_call",
    "tags",
}
SCRIPTS = sorted(path for path in EXAMPLES.glob("*.py") if not path.name.startswith("_"))
READ = {
    "losses_plain_loop",
    "custom_loss",
    "loss_of_mined",
}  # test_examples_losses.py runs them and reads more


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in SLOW))
        for path in SCRIPTS
        if path.stem not in READ
    ],
)
def test_example(script, tmp_path):
    offline = {"HF_HUB_OFFLINE": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(script), "--smoke"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | offline,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_example_is_short(script):
    text = script.read_text("utf-8")
    assert text.startswith('"""')
    assert len(text.splitlines()) < 60


@pytest.mark.slow
def test_cells_of_the_notebook_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_folder(load_dataset("scenes:images=120"), tmp_path / "my-photos")
    (tmp_path / "openai").mkdir()
    recipes_cases.clip_like(tmp_path / "openai" / "clip-vit-base-patch32")
    cells = json.loads((EXAMPLES / "photos.ipynb").read_text("utf-8"))["cells"]
    names: dict[str, object] = {"__name__": "notebook"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    printed = capsys.readouterr().out
    for part in ("RSum", "wrong, yet near:", "before,", "snow  "):
        assert part in printed
    assert (tmp_path / "runs" / "notebook").is_dir()
