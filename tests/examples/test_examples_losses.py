"""The examples about losses run in seconds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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


def test_a_plain_loop_learns():
    recalls = [float(text) for text in re.findall(r"R@1 ([\d.]+)", output("losses_plain_loop.py"))]
    assert recalls[-1] > 5 * recalls[0]


def test_a_loss_of_ones_own():
    lines = output("custom_loss.py")
    assert "alone: " in lines
    assert "in a sum: {'triplet': " in lines
    assert "SoftMarginLoss needs hard_text=" in lines
