"""The examples about losses run in seconds."""

from __future__ import annotations

import importlib.util
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def output(name: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--smoke"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_plain_loop_learns():
    recalls = [float(text) for text in re.findall(r"R@1 ([\d.]+)", output("losses_plain_loop.py"))]
    assert recalls[-1] > 5 * recalls[0]


@pytest.mark.slow  # starts other libraries and trains five times
def test_losses_of_ones_own_train():
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("pytorch_metric_learning")
    found = re.findall(r"(.*): RSum (\d+) before, (\d+) after", output("custom_loss.py"))
    assert [name for name, *_ in found] == [
        "function",
        "module",
        "sum",
        "pytorch-metric-learning",
        "sentence-transformers",
    ]
    assert all(int(after) > 2 * int(before) for _, before, after in found)


def test_a_loss_of_mined_negatives():
    lines = output("loss_of_mined.py")
    assert "alone: " in lines
    assert "in a sum: {'triplet': " in lines
    assert "SoftMarginLoss needs hard_text=" in lines


def test_a_loss_of_mined_negatives_equals_a_slow_loop() -> None:
    spec = importlib.util.spec_from_file_location("mined_loss", EXAMPLES / "loss_of_mined.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    rng = torch.Generator().manual_seed(0)
    scores = torch.rand(4, 4, generator=rng, dtype=torch.double)
    mined = torch.rand(4, 5, generator=rng, dtype=torch.double)
    costs = [
        math.log1p(math.exp((float(score) - float(scores[anchor, anchor])) / 0.1))
        for anchor, row in enumerate(mined)
        for score in row
    ]
    loss = example.SoftMarginLoss()
    assert loss(scores, hard_text=mined).item() == pytest.approx(sum(costs) / len(costs))
    inputs = scores.requires_grad_(), mined.requires_grad_()
    assert torch.autograd.gradcheck(lambda s, m: loss(s, hard_text=m), inputs)
