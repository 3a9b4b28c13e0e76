"""Pre-training on several processes is that of one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pretrain_cases as cases
import processes
from counterfoil.papers.pretraining.pretrain import PretrainTasks, pretrain
from counterfoil.training.config import OptimizerConfig, TrainConfig
from counterfoil.training.logging import read_metrics

PLAN = TrainConfig(
    epochs=3,
    batch=7,
    optimiser=OptimizerConfig(rate=0.01, epsilon=1e-3),
    log_every=1,
    select="accuracy",
)


def train(folder: Path, plan: TrainConfig, dropout: float) -> dict[str, Any]:
    processor = cases.processor()
    model = cases.model(processor, dropout=dropout)
    result = None
    while result is None or result.stop_reason == "minutes":
        result = pretrain(
            plan,
            model,
            PretrainTasks(mrc=1),
            processor,
            folder=folder,
            classes=cases.Detector().likely,
            dev=processor,
            resume=True,
        )
    found = read_metrics(result.metrics)
    loss = [line[key] for line in found for key in sorted(line) if key.startswith("loss")]
    dev = [line["dev_accuracy"] for line in found if "dev_accuracy" in line]
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    return {"loss": loss, "dev": dev, "weights": weights}


def same(one: dict[str, Any], other: dict[str, Any], atol: float) -> None:
    np.testing.assert_allclose(other["loss"], one["loss"], rtol=1e-3, atol=atol)
    np.testing.assert_allclose(other["dev"], one["dev"], atol=100 * atol)
    for name, value in one["weights"].items():
        np.testing.assert_allclose(other["weights"][name], value, atol=atol, err_msg=name)


@pytest.mark.parametrize("batch", [7, 5])
def test_two_processes_pretrain_as_one(tmp_path: Path, batch: int) -> None:
    """24 captions: the last batch has an odd number of pairs, or one process has less than one."""
    plan = replace(PLAN, batch=batch)
    one = train(tmp_path / "one", plan, 0.0)
    first, second = processes.run(train, 2, tmp_path / "two", plan, 0.0)
    same(one, first, 1e-3)
    same(first, second, 0.0)


def test_two_processes_resume(tmp_path: Path) -> None:
    plan = replace(PLAN, epochs=2)
    whole = processes.run(train, 2, tmp_path / "whole", plan, 0.3)
    cut = processes.run(train, 2, tmp_path / "cut", replace(plan, minutes=1e-9), 0.3)
    same(whole[0], cut[0], 0.0)
    same(whole[1], cut[1], 0.0)
