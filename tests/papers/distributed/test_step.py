"""Several processes give the losses and gradients of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import processes
import train_cases as cases
from counterfoil.core.types import ModalityBatch, Needs, Pairs, Role, Scores
from counterfoil.losses.aoq import OfflineQuintuplet
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.losses.schedules import StartAt
from counterfoil.losses.triplet import SumTripletLoss
from counterfoil.negatives.sources import MinedExtras, NegativeSource
from counterfoil.papers.compared.losses import DistanceWeightedTripletLoss
from counterfoil.papers.models.hrem import BOTH, IMAGES, TEXTS
from counterfoil.training.step import TrainingStep
from sources_cases import Drawn

ANCHORS = {
    "odd": [0, 1, 5, 7, 9, 12, 30],  # captions 0 and 1 share an image
    "even": [0, 3, 6, 9],
    "lonely": [4],
    "twice": [2, 2, 10, 11, 20],
    "all": list(range(0, 36, 3)),
}


class OnPlain(Loss):
    """Judges another view than the one for inference."""

    view = "plain"

    def forward(self, scores: Scores) -> torch.Tensor:
        return self.matrix(scores).scores.square().mean()


class OnWritten(Loss):
    needs = Needs(roles=frozenset({Role.WRITTEN}))

    def forward(self, scores: Scores) -> torch.Tensor:
        return scores.pairs[Role.WRITTEN].exp().sum()


class Written(NegativeSource):
    """Two texts for each anchor, of unequal lengths, that are in no corpus."""

    gives = Needs(roles=frozenset({Role.WRITTEN}))

    def propose(self, model: Any, batch: Any, views: Any, grid: Any, rng: Any) -> MinedExtras:
        assert len(views.inference.texts) == len(batch.text_rows)
        assert grid.shape == batch.block
        count = 2 * len(batch.anchors.text)
        values = torch.randint(4, 9, (count, 9), generator=rng)
        mask = torch.arange(9) < torch.randint(1, 10, (count, 1), generator=rng)
        place = (len(batch.text_rows) + torch.arange(count)).view(-1, 2)
        pairs = Pairs(batch.anchors.image.unsqueeze(1).expand_as(place), place)
        return MinedExtras(
            ModalityBatch(torch.full((count,), -1), values, mask), {Role.WRITTEN: pairs}
        )


def step_of(kind: str, processor: Any) -> TrainingStep:
    terms: dict[str, tuple[float, Loss]] = {
        "quintuplet": (1.0, OfflineQuintuplet(reduction="mean")),
        "infonce": (0.5, InfoNCELoss(temperature=0.1, learnable=True)),
        "sum": (0.1, SumTripletLoss(margin=0.3)),
        "written": (0.2, OnWritten()),
    }
    if kind in ("bag", "own"):
        terms["plain"] = (0.3, OnPlain())
    if kind == "hrem":
        terms["drawn"] = (0.3, DistanceWeightedTripletLoss(view=BOTH))
        terms["images"], terms["texts"] = (
            (0.3, StartAt(term=SumTripletLoss(view=grid), steps=3)) for grid in (IMAGES, TEXTS)
        )
    step = TrainingStep(
        cases.host(kind, processor),
        WeightedSum(terms=terms),
        sources=[Drawn(cases.Offline.provides), Written()],
    )
    return step.double()


def worker(kind: str, anchors: list[int], chunk: int = 0) -> dict[str, Any]:
    processor = cases.processor()
    step = step_of(kind, processor)
    batch = cases.batch_of(processor, anchors, offline=True, step=3)
    return cases.stepped(step, cases.double(batch), chunk)


def every(cases: list[tuple[str, str, int]]) -> list[dict[str, Any]]:
    return [worker(kind, ANCHORS[anchors], chunk) for kind, anchors, chunk in cases]


CASES = [
    *((kind, anchors, 0) for kind in ("global", "bag") for anchors in ANCHORS),
    ("own", "all", 0),
    ("scan", "odd", 0),
    ("scan", "odd", 3),
    *(("vsrn", anchors, 0) for anchors in ANCHORS),  # the last share has few anchors, or none
    ("vsrn", "odd", 2),
    *(("hrem", anchors, 0) for anchors in ANCHORS),
    ("hrem", "odd", 2),
    ("global", "odd", 2),
    ("bag", "odd", 2),
]


@pytest.fixture(scope="module")
def two() -> list[list[dict[str, Any]]]:
    return processes.run(every, 2, CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_processes_equal_one(case: tuple[str, str, int], two: Any) -> None:
    one = worker(case[0], ANCHORS[case[1]])
    for results in two:
        cases.assert_same_step(results[CASES.index(case)], one)


def test_three_processes_equal_one() -> None:
    one = worker("bag", ANCHORS["odd"])
    for result in processes.run(worker, 3, "bag", ANCHORS["odd"]):
        cases.assert_same_step(result, one)


def test_every_parameter_moves() -> None:
    for name, gradient in worker("bag", ANCHORS["odd"])["gradients"].items():
        assert abs(gradient).max() > 1e-3, f"{name} would not be tested"


def test_pools_are_odd_where_that_is_hard() -> None:
    processor = cases.processor()
    made = {n: cases.batch_of(processor, a, offline=True, step=3) for n, a in ANCHORS.items()}
    assert any(len(batch.text_rows) % 2 for batch in made.values())
    assert any(len(batch.image_rows) % 2 for batch in made.values())
    assert made["odd"].block[0] < made["odd"].block[1]
    assert len(made["all"].image_rows) % 2 == 0, "the own loss counts what stands in"
