"""A whole run by two processes."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import torch

import processes
from counterfoil.negatives.store import NegativeStore
from counterfoil.pipelines.run import DataSource
from recipes_cases import aoq, run, snapshot

DATA = "scenes:images=36"
DRAW = ("--set", "adaptive.mined.sampling.texts=20", "--set", "adaptive.mined.sampling.images=5")


def quiet(folder: str, *more: str) -> int:
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return aoq(Path(folder), DATA, *more)


def test_two_processes_finish_what_one_would(tmp_path):
    folder = tmp_path / "run"
    assert processes.run(quiet, 2, str(folder)) == [0, 0]
    before = snapshot(folder)
    for name in ("online", "adaptive"):
        assert (folder / name / "model" / "model.safetensors").is_file()
    assert processes.run(quiet, 2, str(folder)) == [0, 0]  # all is kept
    assert snapshot(folder) == before
    assert quiet(str(folder)) == 0  # by one process, too
    assert snapshot(folder) == before
    again(folder, tmp_path / "again")


def again(folder: Path, other: Path) -> None:
    """Mining and evaluating the same models in one process gives the same lists and ranks."""
    with contextlib.redirect_stdout(io.StringIO()):
        lists = ("--texts-per-image", "20", "--images-per-text", "5")
        assert run("mine", folder / "online", "--data", DATA, "--output", other, *lists) == 0
    for name in ("texts.npy", "images.npy", "text_scores.npy", "image_scores.npy"):
        assert (other / name).read_bytes() == (folder / "lists" / name).read_bytes()
    fingerprint = DataSource(DATA).split("train").fingerprint
    assert NegativeStore.open(other, fingerprint=fingerprint).lists.texts.shape == (24, 20)


def test_two_processes_refuse_together(tmp_path):
    folder = tmp_path / "run"
    (folder / "online").mkdir(parents=True)
    (folder / "online" / "thesis.tex").write_text("x")
    before = snapshot(tmp_path)
    assert processes.run(quiet, 2, str(folder)) == [2, 2]
    assert snapshot(tmp_path) == before
