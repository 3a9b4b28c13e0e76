"""A training on several processes is the training of one."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import processes
import train_cases as cases
from counterfoil.core import distributed
from counterfoil.losses.aoq import OfflineTriplet
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.training.config import OptimizerConfig, TrainConfig
from counterfoil.training.logging import read_metrics
from counterfoil.training.mined import Mined
from counterfoil.training.remine import RemineConfig
from counterfoil.training.trainer import train_network
from negatives_cases import random_lists

PLAN = TrainConfig(epochs=2, batch=7, optimiser=OptimizerConfig(rate=0.01), log_every=2)


NEVER, EVERY_EPOCH = RemineConfig(), RemineConfig(every=1, texts=8, images=4)


def mined(matcher: Any, processor: Any, remine: RemineConfig) -> Mined:
    source = Mined(random_lists(processor.dataset.relation, h=9, k=6), remine=remine)
    source.check(matcher, processor.dataset)
    return source


def train(
    folder: Path,
    plan: TrainConfig,
    dropout: float,
    signalled: bool = False,
    refresh: RemineConfig = NEVER,
) -> dict[str, Any]:
    processor = cases.processor()
    matcher = cases.host("bag", processor, dropout=dropout)
    if distributed.rank():  # everybody takes over what the first process has
        matcher.image.weight.data.zero_()
    terms = {"offline": (1.0, OfflineTriplet()), "nce": (0.1, InfoNCELoss(learnable=True))}

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        if signalled and distributed.rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"rsum": sum(p.abs().sum().item() for p in model.parameters())}

    fitted = train_network(
        plan,
        matcher,
        WeightedSum(terms=terms),
        processor,
        folder=folder,
        sources=[mined(matcher, processor, refresh)],
        evaluate=evaluate,
        resume=True,
    )
    loss = [line["loss"] for line in read_metrics(fitted.metrics) if "loss" in line]
    weights = {name: value.numpy() for name, value in matcher.state_dict().items()}
    return {"why": fitted.stop_reason, "steps": fitted.steps, "loss": loss, "weights": weights}


def same(one: dict[str, Any], other: dict[str, Any], atol: float) -> None:
    assert one["steps"] == other["steps"]
    np.testing.assert_allclose(one["loss"], other["loss"], rtol=1e-4)
    for name, value in one["weights"].items():
        np.testing.assert_allclose(other["weights"][name], value, atol=atol, err_msg=name)


@pytest.mark.parametrize("change", [{"accumulate": 2}, {"grad_cache": 3}], ids=str)
def test_two_processes_train_as_one(tmp_path: Path, change: dict[str, Any]) -> None:
    plan = replace(PLAN, **change)
    one = train(tmp_path / "one", plan, 0.0)
    first, second = processes.run(train, 2, tmp_path / "two", plan, 0.0)
    same(one, first, 1e-3)
    same(first, second, 0.0)


def test_two_processes_mine_anew_as_one(tmp_path: Path) -> None:
    one = train(tmp_path / "one", PLAN, 0.0, refresh=EVERY_EPOCH)
    first, second = processes.run(train, 2, tmp_path / "two", PLAN, 0.0, False, EVERY_EPOCH)
    same(one, first, 1e-3)
    same(first, second, 0.0)
    lists = [sorted((tmp_path / f / "lists").iterdir()) for f in ("one", "two")]
    assert [len(found) for found in lists] == [1, 1]
    assert lists[0][0].name == lists[1][0].name
    for name in ("texts.npy", "images.npy"):
        rows = [np.load(found / name) for (found,) in lists]
        assert (rows[0] == rows[1]).mean() > 0.9  # the weights differ in the last digits


def sessions(folder: Path, refresh: RemineConfig) -> dict[str, Any]:
    """One step a session, till the end, with dropout."""
    result = {"why": "minutes"}
    while result["why"] == "minutes":
        result = train(folder, replace(PLAN, minutes=1e-9), 0.3, refresh=refresh)
    return result


@pytest.mark.parametrize("refresh", [NEVER, EVERY_EPOCH], ids=["first lists", "mined anew"])
def test_two_processes_resume(tmp_path: Path, refresh: RemineConfig) -> None:
    whole = processes.run(train, 2, tmp_path / "whole", PLAN, 0.3, False, refresh)
    cut = processes.run(sessions, 2, tmp_path / "cut", refresh)
    same(whole[0], cut[0], 0.0)
    same(whole[1], cut[1], 0.0)
    with pytest.raises(ValueError, match="written by 2 processes and there are 1 now"):
        train(tmp_path / "cut", PLAN, 0.3, refresh=refresh)


def measured(folder: Path) -> list[float]:
    """Sums of all that a model with running statistics has learnt, as each evaluation sees it."""
    processor, seen = cases.processor(), []

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        seen.append(sum(v.double().sum().item() for v in model.state_dict().values()))
        return {"rsum": seen[-1]}

    matcher = cases.host("vsrn", processor)
    train_network(
        PLAN,
        matcher,
        WeightedSum(terms={"offline": (1.0, OfflineTriplet())}),
        processor,
        folder=folder,
        sources=[mined(matcher, processor, EVERY_EPOCH)],
        evaluate=evaluate,
    )
    return seen


@pytest.mark.papers
def test_running_statistics_are_one_model_s_when_it_is_measured_and_mines(tmp_path: Path) -> None:
    first, second = processes.run(measured, 2, tmp_path)
    assert len(first) == 2
    assert first == second
    assert len(list((tmp_path / "lists").iterdir())) == 1


def test_a_signal_to_one_stops_all(tmp_path: Path) -> None:
    results = processes.run(train, 2, tmp_path, PLAN, 0.3, True)
    assert [result["why"] for result in results] == ["signal", "signal"]
    assert results[0]["steps"] == results[1]["steps"] == 6
