"""Several processes edit the same items, and give the losses and gradients of one."""

from __future__ import annotations

from typing import Any

import pytest

import processes
import train_cases as cases
from counterfoil.data.batching import shard_rows
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.papers.compared.counterfactual import CounterfactualSampler
from counterfoil.papers.compared.losses import SelfAdjustedCFMLoss, SelfExploredCFMLoss
from counterfoil.training.step import TrainingStep

ANCHORS = [0, 1, 5, 7, 9, 13, 30]  # captions 0 and 1 share an image
CASES = [
    ("scan", "occurrence", 0),
    ("scan", "token", 0),
    ("scan", "occurrence", 3),
    ("vsrn", "occurrence", 0),
    ("vsrn", "token", 2),
]


def worker(kind: str, gradients: Any, chunk: int) -> dict[str, Any]:
    processor = cases.processor()
    source = CounterfactualSampler(
        margin=-0.02, adjust=1.0, explore=1.0, mask=3, gradients=gradients
    )
    terms = {
        "triplet": (1.0, HardestTripletLoss(margin=0.4)),
        "adjusted": (1.0, SelfAdjustedCFMLoss(margin=0.3)),
        "explored": (0.5, SelfExploredCFMLoss(margin=0.3)),
    }
    step = TrainingStep(
        cases.host(kind, processor), WeightedSum(terms=terms), sources=[source]
    ).double()
    batch = cases.batch_of(processor, ANCHORS, offline=True, step=3)
    batch = cases.double(batch)
    edited = cases.proposals(source)
    told = cases.stepped(step, batch, chunk, unused=True)
    (found,) = edited
    return told | {
        "texts": found.texts.values.numpy(),
        "images": found.images.values.numpy(),
        "share": len(shard_rows(batch.image_rows)),
    }


def every(given: list[tuple[str, str, int]]) -> list[dict[str, Any]]:
    return [worker(*case) for case in given]


@pytest.fixture(scope="module")
def two() -> list[list[dict[str, Any]]]:
    return processes.run(every, 2, CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_processes_equal_one(case: tuple[str, str, int], two: Any) -> None:
    one = worker(case[0], case[1], 0)
    assert one["losses"]["adjusted"] > 0
    assert one["losses"]["explored"] > 0
    for results in two:
        several = results[CASES.index(case)]
        assert several["share"] < one["share"]
        assert (several["texts"] == one["texts"]).all()
        assert abs(several["images"] - one["images"]).max() < 1e-12
        cases.assert_same_step(several, one)


def test_three_processes_equal_one() -> None:
    one = worker("scan", "occurrence", 0)
    for result in processes.run(worker, 3, "scan", "occurrence", 0):
        assert (result["texts"] == one["texts"]).all()
        cases.assert_same_step(result, one)
