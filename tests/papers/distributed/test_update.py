"""What one optimiser step leaves behind on several processes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import processes
import train_cases as cases
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.schedules import StartAt
from counterfoil.losses.triplet import SumTripletLoss
from counterfoil.papers.compared.losses import DistanceWeightedTripletLoss
from counterfoil.papers.models.hrem import BOTH
from counterfoil.training.config import OptimizerConfig, ParameterGroup, TrainConfig
from counterfoil.training.step import OptimizerStep, TrainingStep


def updated(chunk: int) -> dict[str, np.ndarray]:
    """VSRN in training mode after two steps: each process saw images of its own."""
    processor = cases.processor()
    step = TrainingStep(
        cases.host("vsrn", processor).train(),
        WeightedSum(terms={"sum": (1.0, SumTripletLoss())}),
        chunk=chunk,
    )
    plan = TrainConfig(optimiser=OptimizerConfig(rate=0.01))
    torch.manual_seed(0)
    update = OptimizerStep(plan, step)
    for anchors in ([0, 3, 6, 9, 12, 15], [1, 4, 7, 10, 13, 17]):
        update([cases.batch_of(processor, anchors, offline=True)], 1.0)
    return {name: value.numpy().copy() for name, value in step.state_dict().items()}


@pytest.mark.parametrize("chunk", [0, 4])
def test_every_process_has_the_same_weights_and_statistics(chunk: int) -> None:
    first, second = processes.run(updated, 2, chunk)
    for name, value in first.items():
        assert np.array_equal(value, second[name]), name
    moved = [name for name in first if name.endswith("running_mean") and first[name].any()]
    assert len(moved) == 2


def woken(chunk: int) -> list[dict[str, np.ndarray]]:
    """The weights before training and after each epoch, the image side resting in the first."""
    processor = cases.processor()
    step = TrainingStep(
        cases.host("global", processor),
        WeightedSum(terms={"sum": (1.0, SumTripletLoss())}),
        chunk=chunk,
    )
    optimiser = OptimizerConfig(
        rate=0.01, groups=(ParameterGroup(match="image.*", rate=0.5, begins=1),)
    )
    update = OptimizerStep(TrainConfig(optimiser=optimiser), step)
    seen = [{name: p.detach().numpy().copy() for name, p in step.named_parameters()}]
    for epoch in range(3):
        update([cases.batch_of(processor, [0, 3, 6, 9, 12, 15])], 1.0, epoch=epoch)
        seen.append({name: p.detach().numpy().copy() for name, p in step.named_parameters()})
    return seen


@pytest.mark.parametrize("chunk", [0, 4])
def test_a_group_begins_later_on_every_process(chunk: int) -> None:
    alone = woken(chunk)
    for seen in processes.run(woken, 2, chunk):
        for epoch, (now, wanted) in enumerate(zip(seen, alone, strict=True)):
            for name, value in wanted.items():
                assert np.allclose(now[name], value, atol=1e-6), (epoch, name)
        same = [
            np.array_equal(a["model.image.weight"], b["model.image.weight"])
            for a, b in pairwise(seen)
        ]
        assert same == [True, False, False]


def related(chunk: int) -> dict[str, np.ndarray]:
    """HREM after three steps, in the last two of which its graph is judged."""
    processor = cases.processor()
    late = StartAt(term=DistanceWeightedTripletLoss(view=BOTH), steps=1)
    terms = {"plain": (1.0, SumTripletLoss()), "late": (1.0, late)}
    step = TrainingStep(
        cases.host("hrem", processor), WeightedSum(terms=terms), chunk=chunk
    ).double()
    for module in step.model.graph.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3  # drawn alike on every process
    update = OptimizerStep(TrainConfig(optimiser=OptimizerConfig(rate=0.01)), step)
    for number in range(3):
        batch = cases.batch_of(processor, [0, 3, 6, 9, 12, 15, 16], step=number)
        update([cases.double(batch)], 1.0)
    return {name: value.numpy().copy() for name, value in step.state_dict().items()}


@pytest.mark.parametrize("chunk", [0, 4])
def test_a_graph_that_is_judged_later_learns_alike_on_every_process(chunk: int) -> None:
    alone = related(0)
    for found in processes.run(related, 2, chunk):
        for name, value in alone.items():
            assert np.allclose(found[name], value, atol=1e-9), name
