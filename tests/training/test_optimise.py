from __future__ import annotations

import pytest
import torch
from torch import nn

import train_cases as cases
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.training.config import (
    OptimizerConfig,
    ParameterGroup,
    TrainConfig,
    WeightAverage,
    clip_gradients,
)
from counterfoil.training.step import OptimizerStep, TrainingStep


def step() -> TrainingStep:
    processor = cases.processor()
    terms = {"nce": (1.0, InfoNCELoss(learnable=True))}
    return TrainingStep(cases.host("global", processor), WeightedSum(terms=terms))


def treatment(optimiser: OptimizerConfig, module: TrainingStep) -> dict[str, tuple[float, float]]:
    names = {id(p): name for name, p in module.named_parameters()}
    groups = optimiser.build(module).param_groups
    return {names[id(p)]: (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}


def test_vectors_and_scalars_do_not_decay() -> None:
    assert treatment(OptimizerConfig(rate=0.1, decay=0.2), step()) == {
        "model.image.weight": (0.1, 0.2),
        "model.image.bias": (0.1, 0.0),
        "model.word.weight": (0.1, 0.2),
        "objective.terms.nce.log_scale": (0.1, 0.0),
    }


def test_groups_by_name_the_first_counts() -> None:
    groups = (
        ParameterGroup(match="word.*", rate=0.5, decay=0.0),
        ParameterGroup(match="*.weight", rate=2.0),
    )
    found = treatment(OptimizerConfig(rate=0.1, decay=0.2, groups=groups), step())
    assert found["model.word.weight"] == (0.05, 0.0)
    assert found["model.image.weight"] == (0.2, 0.2)
    assert found["model.image.bias"] == (0.1, 0.0)


def test_rates_follow_the_factor() -> None:
    module = step()
    plan = OptimizerConfig(rate=0.1, groups=(ParameterGroup(match="word.*", rate=0.5),))
    made = plan.build(module)
    assert plan.set_rate(made, 0.1) == pytest.approx(0.01)
    assert sorted({round(g["lr"], 6) for g in made.param_groups}) == [0.005, 0.01]


def test_what_is_frozen_does_not_move() -> None:
    module, plan = step(), OptimizerConfig(freeze=("image.*",))
    plan.freeze_in(module)
    assert set(treatment(plan, module)) == {
        "model.word.weight",
        "objective.terms.nce.log_scale",
    }


def test_a_group_that_begins_later_stays_and_costs_no_gradient() -> None:
    module, processor = step(), cases.processor()
    groups = (
        ParameterGroup(match="image.*", rate=0.1, begins=2),
        ParameterGroup(match="word.*", begins=1),
    )
    update = OptimizerStep(
        TrainConfig(optimiser=OptimizerConfig(rate=0.1, decay=0.1, groups=groups)), module
    )
    batch, seen = cases.batch_of(processor, [0, 3, 6]), []
    for epoch in (0, 1, 2, 1):
        before = {name: p.detach().clone() for name, p in module.named_parameters()}
        update([batch], 1.0, epoch=epoch)
        moved = {n for n, p in module.named_parameters() if not torch.equal(p, before[n])}
        assert moved == {n for n, p in module.named_parameters() if p.grad is not None}
        seen.append({n.removeprefix("model.") for n in moved} - {"objective.terms.nce.log_scale"})
    images, words = {"image.weight", "image.bias"}, {"word.weight"}
    assert seen == [set(), words, images | words, words]


def test_patterns_that_fit_nothing_or_everything() -> None:
    with pytest.raises(ValueError, match=r"'imag\.\*' is not a pattern"):
        OptimizerConfig(freeze=("imag.*",)).freeze_in(step())
    with pytest.raises(ValueError, match="did you mean 'word"):
        OptimizerConfig(groups=(ParameterGroup(match="wrd.*"),)).build(step())
    with pytest.raises(ValueError, match="leaves no parameter to train"):
        OptimizerConfig(freeze=("*",)).freeze_in(step())


def test_clipping() -> None:
    parameter = nn.Parameter(torch.zeros(4))
    parameter.grad = torch.full((4,), 3.0)
    assert clip_gradients([parameter], 0.0).item() == 6.0
    assert parameter.grad.norm().item() == 6.0
    assert clip_gradients([parameter], 2.0).item() == 6.0
    assert parameter.grad.norm().item() == pytest.approx(2.0)


def test_moving_average() -> None:
    module = nn.BatchNorm1d(2)
    average = WeightAverage(module, 0.75)
    module.weight.data.fill_(5.0)
    module.num_batches_tracked.fill_(9)
    average.update(module)
    assert average.shadow["weight"].tolist() == [2.0, 2.0]  # 0.75 x 1 + 0.25 x 5
    assert average.shadow["num_batches_tracked"] == 9
    assert module.weight.tolist() == [5.0, 5.0]
