"""What one optimiser step leaves behind on several processes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import processes
import train_cases as cases
from counterfoil.models.hrem import BOTH
from counterfoil.objectives.curriculum import After
from counterfoil.objectives.distance_weighted import DistanceWeighted
from counterfoil.objectives.term import Objective
from counterfoil.objectives.triplet import SumTriplet
from counterfoil.train.optimise import Group, Optimiser
from counterfoil.train.plan import TrainPlan
from counterfoil.train.step import Step
from counterfoil.train.update import Update


def updated(chunk: int) -> dict[str, np.ndarray]:
    """VSRN in training mode after two steps: each process saw images of its own."""
    lens = cases.lens()
    step = Step(cases.host("vsrn", lens).train(), Objective(terms={"sum": (1.0, SumTriplet())}))
    plan = TrainPlan(optimiser=Optimiser(rate=0.01), chunk=chunk)
    torch.manual_seed(0)
    update = Update(plan, step)
    for anchors in ([0, 3, 6, 9, 12, 15], [1, 4, 7, 10, 13, 17]):
        update([cases.batch_of(lens, anchors, offline=True)], 1.0)
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
    lens = cases.lens()
    step = Step(cases.host("global", lens), Objective(terms={"sum": (1.0, SumTriplet())}))
    optimiser = Optimiser(rate=0.01, groups=(Group(match="image.*", rate=0.5, begins=1),))
    update = Update(TrainPlan(optimiser=optimiser, chunk=chunk), step)
    seen = [{name: p.detach().numpy().copy() for name, p in step.named_parameters()}]
    for epoch in range(3):
        update([cases.batch_of(lens, [0, 3, 6, 9, 12, 15])], 1.0, epoch=epoch)
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
            np.array_equal(a["matcher.image.weight"], b["matcher.image.weight"])
            for a, b in pairwise(seen)
        ]
        assert same == [True, False, False]


def related(chunk: int) -> dict[str, np.ndarray]:
    """HREM after three steps, in the last two of which its graph is judged."""
    lens = cases.lens()
    late = After(term=DistanceWeighted(grid=BOTH), steps=1)
    terms = {"plain": (1.0, SumTriplet()), "late": (1.0, late)}
    step = Step(cases.host("hrem", lens), Objective(terms=terms)).double()
    for module in step.matcher.graph.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3  # drawn alike on every process
    update = Update(TrainPlan(optimiser=Optimiser(rate=0.01), chunk=chunk), step)
    for number in range(3):
        batch = cases.batch_of(lens, [0, 3, 6, 9, 12, 15, 16], step=number)
        values = batch.images.values.double()
        update([replace(batch, images=replace(batch.images, values=values))], 1.0)
    return {name: value.numpy().copy() for name, value in step.state_dict().items()}


@pytest.mark.parametrize("chunk", [0, 4])
def test_a_graph_that_is_judged_later_learns_alike_on_every_process(chunk: int) -> None:
    alone = related(0)
    for found in processes.run(related, 2, chunk):
        for name, value in alone.items():
            assert np.allclose(found[name], value, atol=1e-9), name
