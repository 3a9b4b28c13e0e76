"""Four processes of `torchrun` on the loopback train, mine and evaluate what one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import recipes_cases
from counterfoil.core.tensors import read_tensors

PROCESSES = 4
DATA = "scenes:images=36"
LISTS = ("--texts-per-image", "20", "--images-per-text", "5")
FILES = ("texts.npy", "images.npy", "text_scores.npy", "image_scores.npy")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="of groups without GPUs"),
]


def together(*words: object) -> None:
    """A command of counterfoil by four processes."""
    torchrun = ("--nproc-per-node", PROCESSES, "--rdzv-backend", "c10d")
    where = ("--rdzv-endpoint", "127.0.0.1:0", "-m", "counterfoil.cli")
    command = [sys.executable, "-m", "torch.distributed.run", *torchrun, *where, *words]
    made = subprocess.run(
        list(map(str, command)),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=600,
    )
    assert made.returncode == 0, made.stdout


def test_four_processes_run_both_rounds(tmp_path: Path) -> None:
    """Training, mining, training on the lists, evaluation: as one process, but for rounding."""
    words = ("run", "aoq", "--model", "vsepp", "--data", DATA, *recipes_cases.SMALL_AOQ)
    together(*words, "--smoke", "--output", tmp_path / "four")
    assert recipes_cases.aoq(tmp_path / "one", DATA) == 0
    for name in ("online", "adaptive"):
        four, one = (
            read_tensors(tmp_path / run / name / "model" / "model.safetensors", "a model")[0]
            for run in ("four", "one")
        )
        assert four.keys() == one.keys()
        for key, value in one.items():
            torch.testing.assert_close(four[key], value, rtol=1e-3, atol=1e-4)


def test_four_processes_mine_and_evaluate_to_the_byte(tmp_path: Path) -> None:
    model = recipes_cases.pixel_model(tmp_path / "model")
    mine = ("mine", model, "--data", DATA, *LISTS, "--output")
    evaluate = ("evaluate", model, "--data", DATA, "--split", "test", "--json")
    together(*mine, tmp_path / "four")
    assert recipes_cases.run(*mine, tmp_path / "one") == 0
    for name in FILES:
        assert (tmp_path / "four" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    together(*evaluate, tmp_path / "four.json")
    assert recipes_cases.run(*evaluate, tmp_path / "one.json") == 0
    four, one = (json.loads((tmp_path / f"{run}.json").read_text()) for run in ("four", "one"))
    assert four == one
