"""DivE's losses of whole sets are the same with any number of processes or pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import processes
import train_cases as cases
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.models.layers.towers import GRU, MLPRegions
from counterfoil.papers.models.dive import DivE, PooledParts, WordsAndStates
from counterfoil.training.step import TrainingStep

ANCHORS = {
    "odd": [0, 1, 2, 3, 4, 5, 9, 10, 11],  # three images with all of their captions
    "even": [0, 1, 2, 3, 4, 5],
    "uneven": [0, 1, 3, 9, 10, 11, 30],
    "lonely": [4],
}


def host(words: int, dropout: float = 0.0) -> DivE:
    """In evaluation but for its dropout: several processes have batch statistics of their own."""
    torch.manual_seed(0)
    gru = GRU(words=words, word_width=6, width=8, dropout=dropout)
    made = DivE(
        image=PooledParts(tower=MLPRegions(features=cases.WIDTH, width=8, stacked=True)),
        text=WordsAndStates(gru=gru, dropout=dropout),
        slots=3,
        heads=2,
        head_width=4,
        rounds=2,
        dropout=dropout,
        alpha=4.0,
        mmd_weight=0.3,
        diversity_weight=0.2,
    )
    made.image.tower.norm.eval()
    return made


def step_of(processor: Any, dropout: float = 0.0) -> TrainingStep:
    assert processor.processor.tokenizer is not None
    terms = {"triplet": (1.0, HardestTripletLoss(reduction="mean"))}
    return TrainingStep(
        host(processor.processor.tokenizer.size, dropout),
        WeightedSum(terms=terms),
    ).double()


def worker(anchors: str, chunk: int, offline: bool) -> dict[str, Any]:
    processor = cases.processor()
    step = step_of(processor)
    batch = cases.batch_of(processor, ANCHORS[anchors], offline=offline, step=3)
    return cases.stepped(step, cases.double(batch), chunk)


CASES = [("odd", 0, False), ("odd", 2, True), ("even", 0, True), ("uneven", 0, True)]
CASES.append(("lonely", 0, True))


def every() -> list[dict[str, Any]]:
    return [worker(*case) for case in CASES]


@pytest.fixture(scope="module")
def two() -> list[list[dict[str, Any]]]:
    return processes.run(every, 2)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_processes_equal_one(case: tuple[str, int, bool], two: Any) -> None:
    one = worker(case[0], 0, case[2])
    for results in two:
        cases.assert_same_step(results[CASES.index(case)], one)


@pytest.mark.parametrize("anchors", ANCHORS)
def test_pieces_equal_the_whole(anchors: str) -> None:
    cases.assert_same_step(worker(anchors, 2, True), worker(anchors, 0, True))


def test_every_loss_and_parameter_is_tested() -> None:
    one = worker("odd", 0, False)
    names = {"triplet", "model_mmd", "model_diversity"}
    assert one["losses"].keys() == names
    assert min(one["losses"].values()) > 1e-4
    for name, gradient in one["gradients"].items():
        if name.endswith("slot_norm.bias"):
            continue  # shifts all slots alike, which their softmax does not see
        assert abs(gradient).max() > 1e-6, f"{name} would not be tested"


def test_offline_negatives_behind_the_anchors_cost_nothing() -> None:
    alone, behind = (worker("odd", 0, offline)["losses"] for offline in (False, True))
    assert behind == pytest.approx(alone, rel=1e-9)


def test_dropout_is_the_same_both_times() -> None:
    processor = cases.processor()
    batch = cases.double(cases.batch_of(processor, ANCHORS["odd"]))
    found = []
    for _ in range(2):
        step = step_of(processor, dropout=0.5)
        torch.manual_seed(1)
        cases.cached_backward(step, batch, 2)
        found.append(cases.gradients(step))
    for name, value in found[0].items():
        assert torch.equal(found[1][name], value), name
