"""A training that is killed at random points ends with the numbers of one that is not."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import processes
import train_cases as cases
from counterfoil.losses.aoq import OfflineTriplet
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.negatives.mining import mine_lists
from counterfoil.training.config import OptimizerConfig, TrainConfig
from counterfoil.training.mined import Mined
from counterfoil.training.remine import RemineConfig
from counterfoil.training.trainer import train_network
from negatives_cases import random_lists

PLAN = TrainConfig(
    epochs=4,
    batch=6,
    optimiser=OptimizerConfig(rate=0.02),
    log_every=3,
    average=0.8,
    save_minutes=0,
)


NEVER = RemineConfig()


def small_is_good(model: nn.Module) -> dict[str, float]:
    """A dev figure that does not improve for long."""
    return {"rsum": -cases.size_of(model)["rsum"]}


def train(folder: Path, plan: TrainConfig, refresh: RemineConfig = NEVER) -> None:
    """The whole training; the final weights are written beside the metrics."""
    torch.set_num_threads(1)
    processor = cases.processor()
    matcher = cases.host("bag", processor, dropout=0.4)
    terms = {"offline": (1.0, OfflineTriplet()), "nce": (0.1, InfoNCELoss(learnable=True))}
    mined = Mined(random_lists(processor.dataset.relation, h=9, k=6), remine=refresh)
    mined.check(matcher, processor.dataset)

    fitted = train_network(
        plan,
        matcher,
        WeightedSum(terms=terms),
        processor,
        folder=folder,
        sources=[mined],
        evaluate=small_is_good if plan.patience else cases.size_of,
        resume=True,
    )
    assert fitted.finished
    save_file(matcher.state_dict(), folder / "final.part")
    (folder / "final.part").rename(folder / "final")


def killed(folder: Path, plan: TrainConfig, rng: random.Random, refresh: RemineConfig) -> int:
    """Train in a process that is killed every few checkpoints; how often it was."""
    context, kills, mark = multiprocessing.get_context("fork"), 0, folder / "checkpoints"
    while not (folder / "final").exists():
        job = context.Process(target=train, args=(folder, plan, refresh))
        job.start()
        for _ in range(rng.randint(1, 6)):
            processes.wait_for_another(mark / "last.safetensors", job)
        time.sleep(rng.uniform(0, 0.01))
        if job.is_alive():
            os.kill(job.pid, signal.SIGKILL)
            kills += 1
        job.join()
        assert job.exitcode in (0, -signal.SIGKILL)
    return kills


def compare(one: Path, other: Path) -> None:
    assert cases.metrics_of(one) == cases.metrics_of(other)
    first, second = (load_file(f / "final") for f in (one, other))
    assert all(torch.equal(first[name], second[name]) for name in first)
    files = [sorted(path.name for path in (f / "checkpoints").iterdir()) for f in (one, other)]
    assert files[0] == files[1]
    assert len(files[0]) == 2
    stores = [sorted((f / "lists").glob("**/*")) for f in (one, other)]
    assert [path.name for path in stores[0]] == [path.name for path in stores[1]]
    for first_path, second_path in zip(*stores):
        assert first_path.is_dir() or first_path.read_bytes() == second_path.read_bytes()


def cut_often(
    folder: Path, plan: TrainConfig, rng: random.Random, refresh: RemineConfig = NEVER
) -> None:
    """Kill and compare, until one training was killed twice: on a busy machine some get away."""
    for attempt in range(10):
        kills = killed(folder / f"cut-{attempt}", plan, rng, refresh)
        compare(folder / "whole", folder / f"cut-{attempt}")
        if kills > 1:
            return
    raise AssertionError("no training was killed twice in ten attempts")


def test_killed_at_random_points(tmp_path: Path) -> None:
    train(tmp_path / "whole", PLAN)
    cut_often(tmp_path, PLAN, random.Random(0))


def test_killed_at_random_points_it_stops_early_at_the_same_step(tmp_path: Path) -> None:
    plan = replace(PLAN, least_steps=200, evaluate_every=10, patience=3)
    train(tmp_path / "whole", plan)
    steps = [line["step"] for line in cases.metrics_of(tmp_path / "whole") if "dev_rsum" in line]
    assert len(steps) < 15
    cut_often(tmp_path, plan, random.Random(2))
    assert steps[-1] < 200


def test_killed_at_random_points_while_it_mines_anew(tmp_path: Path) -> None:
    often = RemineConfig(every=1, texts=8, images=4)
    train(tmp_path / "whole", PLAN, often)
    assert list((tmp_path / "whole" / "lists").iterdir())
    cut_often(tmp_path, PLAN, random.Random(1), often)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("change", [{}, {"average": 0.0}, {"accumulate": 3}])
def test_killed_at_many_random_points_while_it_mines_anew(
    tmp_path: Path, seed: int, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mining in small tiles, kept after each, so that many kills come in the middle of one."""
    small = partial(mine_lists, tile=(3, 4), every=0.0)
    monkeypatch.setattr("counterfoil.training.remine.mine_lists", small)
    plan = replace(PLAN, seed=seed, epochs=10, **change)
    often = RemineConfig(every=1 + seed % 3, texts=8, images=4)
    train(tmp_path / "whole", plan, often)
    cut_often(tmp_path, plan, random.Random(seed), often)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "change", [{}, {"grad_cache": 4}, {"accumulate": 3}, {"precision": "bf16"}]
)
def test_killed_at_many_random_points(tmp_path: Path, seed: int, change: Any) -> None:
    plan = replace(PLAN, seed=seed, epochs=10, **change)
    train(tmp_path / "whole", plan)
    cut_often(tmp_path, plan, random.Random(seed))
