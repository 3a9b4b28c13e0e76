"""Settings of a training: what they refuse, schedules, and the optimiser with its groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import train_cases as cases
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.negatives.filters import FilterConfig
from counterfoil.papers.pretraining.pretrain import PretrainTasks
from counterfoil.training.config import (
    ConstantLR,
    CosineLR,
    LinearLR,
    LRSchedule,
    OptimizerConfig,
    ParameterGroup,
    StepDecayLR,
    TrainConfig,
    WeightAverage,
    clip_gradients,
)
from counterfoil.training.remine import RemineConfig
from counterfoil.training.step import OptimizerStep, TrainingStep


@pytest.mark.parametrize(
    ("make", "change", "words"),
    [
        (TrainConfig, {"epochs": 0}, "epochs=0: at least 1"),
        (TrainConfig, {"batch": -4}, "batch=-4: it may not be below 0"),
        (TrainConfig, {"batch": 0, "accumulate": 4}, "accumulate=4 and batch=0, the whole"),
        (TrainConfig, {"minutes": -1.0}, "minutes=-1.0: it may not be below 0"),
        (TrainConfig, {"dev_images": -1}, "dev_images=-1: it may not be below 0"),
        (TrainConfig, {"dev_first": True}, "dev_images is 0 for all of them; set dev_images=1000"),
        (TrainConfig, {"average": 1.0}, "average=1.0: a decay is at least 0 and below 1"),
        (TrainConfig, {"precision": "fp16"}, "'fp16' is not a precision; did you mean 'bf16'"),
        (TrainConfig, {"track": ("tensorbord",)}, "is not a tracker; did you mean 'tensorboard'"),
        (ConstantLR, {"warmup": -1}, "warmup=-1 is negative"),
        (LinearLR, {"ahead": -1}, "ahead=-1 is negative"),
        (StepDecayLR, {}, "name either the epochs between"),
        (StepDecayLR, {"every": 1, "at": (2,)}, "name either the epochs between"),
        (OptimizerConfig, {"rate": 0.0}, "rate=0.0: a learning rate is above 0"),
        (OptimizerConfig, {"clip": -1.0}, "clip=-1.0"),
        (OptimizerConfig, {"rule": "adamm"}, "'adamm' is not a rule.*did you mean 'adam"),
        (
            ParameterGroup,
            {"match": "word.*", "begins": -1},
            "begins=-1: give the number of first epochs",
        ),
        (RemineConfig, {"every": -1}, "every=-1"),
        (RemineConfig, {"texts": -2}, "texts=-2"),
        (RemineConfig, {"filters": FilterConfig(guided=0.0)}, "a guide cannot filter lists that"),
        (PretrainTasks, {"mlm": -1.0}, "mlm=-1.0: a number from 0 on"),
        (PretrainTasks, {"words": 1.5}, "words=1.5: a number from 0 to 1"),
        (PretrainTasks, {"mlm": 0.0, "mrfr": 0.0, "mrckl": 0.0, "itm": 0.0}, "no task is left"),
    ],
)
def test_bad_settings(make: Any, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(**change)


def test_steps() -> None:
    assert TrainConfig(epochs=3, accumulate=4).total(10) == 9
    assert TrainConfig(epochs=3, accumulate=4, steps=5).total(10) == 5
    assert TrainConfig(epochs=1, steps=500).total(10) == 10


def test_numbers_are_what_the_result_depends_on() -> None:
    plan = TrainConfig()
    assert replace(plan, minutes=5.0, ahead=9, save_minutes=1.0).numbers() == plan.numbers()
    assert replace(plan, seed=1).numbers() != plan.numbers()
    assert replace(plan, dev_images=9).numbers() == {**plan.numbers(), "dev_images": 9}
    one, other = replace(plan, schedule=CosineLR()), replace(plan, schedule=LinearLR())
    assert one.numbers() != other.numbers()


# Schedules.


def curve(schedule: LRSchedule, per_epoch: int = 4, total: int = 20) -> list[float]:
    return [schedule.factor(s, per_epoch=per_epoch, total=total) for s in range(total)]


@pytest.mark.parametrize(
    ("schedule", "at", "factors"),
    [
        (ConstantLR(), range(20), [1.0] * 20),
        (ConstantLR(warmup=4), range(6), [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),
        (StepDecayLR(every=2), range(0, 20, 4), [1, 1, 0.1, 0.1, 0.01]),
        (StepDecayLR(at=(1, 3), by=0.5), (0, 3, 4, 8, 12, 16), [1, 1, 0.5, 0.5, 0.25, 0.25]),
        (LinearLR(), (5, 10, 15), [0.75, 0.5, 0.25]),
        (CosineLR(), (5, 10), [(1 + 0.5**0.5) / 2, 0.5]),
        (CosineLR(end=0.1), (0, 10), [1, 0.55]),
    ],
)
def test_factors(schedule: LRSchedule, at: Iterable[int], factors: list[float]) -> None:
    found = curve(schedule)  # 4 steps in an epoch, 20 in all
    assert [found[step] for step in at] == pytest.approx(factors)


def test_the_line_of_uniters_code_is_one_step_ahead() -> None:
    """Theirs, counted from 1: s / W in the warm-up, then (S - s) / (S - W), so 0 in the end."""
    warmup, total = 4, 20
    theirs = [
        step / warmup if step < warmup else (total - step) / (total - warmup)
        for step in range(1, total + 1)
    ]
    assert curve(LinearLR(warmup=warmup, ahead=1)) == pytest.approx(theirs)
    assert curve(LinearLR(warmup=warmup / total, ahead=1)) == pytest.approx(theirs)
    assert curve(LinearLR(warmup=warmup))[-1] == pytest.approx(1 / 16)


def test_warmup_as_a_share_and_the_last_factor() -> None:
    assert curve(CosineLR(warmup=0.2)) == curve(CosineLR(warmup=4))
    for kind in (LinearLR, CosineLR):
        assert curve(kind(end=0.1), total=10_000)[-1] == pytest.approx(0.1, abs=1e-3)


schedules = st.sampled_from([ConstantLR, CosineLR, LinearLR]).flatmap(
    lambda make: st.builds(make, warmup=st.floats(0, 50))
)


@given(schedules, st.integers(1, 50), st.integers(1, 60))
def test_a_factor_is_a_share_and_falls_after_warmup(
    schedule: LRSchedule, per_epoch: int, total: int
) -> None:
    found = curve(schedule, per_epoch, total)
    assert all(0 <= factor <= 1 for factor in found)
    peak = found.index(max(found))
    assert found[:peak] == sorted(found[:peak])
    assert found[peak:] == sorted(found[peak:], reverse=True)


# The optimiser, its groups, and the average of the weights.


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


def test_every_parameter_decays_where_asked() -> None:
    """As where the authors of CHAN or GPO give PyTorch's AdamW all parameters in one list."""
    all_of_it = treatment(OptimizerConfig(rate=0.1, decay=0.2, decay_vectors=True), step())
    assert set(all_of_it.values()) == {(0.1, 0.2)}
    groups = (
        ParameterGroup(match="image.*", decay_vectors=True),
        ParameterGroup(match="objective.*", decay_vectors=False),
    )
    some = treatment(OptimizerConfig(rate=0.1, decay=0.2, groups=groups), step())
    assert some["model.image.bias"] == (0.1, 0.2)
    assert some["objective.terms.nce.log_scale"] == (0.1, 0.0)
    spared = OptimizerConfig(rate=0.1, decay=0.2, decay_vectors=True, groups=groups)
    assert treatment(spared, step())["objective.terms.nce.log_scale"] == (0.1, 0.0)


def follow(optimiser: OptimizerConfig, gradients: torch.Tensor) -> torch.Tensor:
    """A matrix of one row after steps with these gradients."""
    module = nn.Module()
    module.matrix = nn.Parameter(torch.ones(1, gradients.shape[1], dtype=torch.double))
    made = optimiser.build(module)
    for gradient in gradients:
        module.matrix.grad = gradient[None].clone()
        optimiser.set_rate(made, 1.0)
        made.step()
    return module.matrix.detach()[0]


def by_hand(optimiser: OptimizerConfig, gradients: torch.Tensor) -> torch.Tensor:
    """The same, number by number, by the rule of UNITER's code."""
    first, second = optimiser.betas
    found = []
    for row in gradients.T.tolist():
        weight, mean, square = 1.0, 0.0, 0.0
        for steps, gradient in enumerate(row, 1):
            mean = first * mean + (1 - first) * gradient
            square = second * square + (1 - second) * gradient**2
            size = optimiser.rate * (1 - second**steps) ** 0.5 / (1 - first**steps)
            weight -= size * mean / (square**0.5 + optimiser.epsilon)
            weight -= optimiser.rate * optimiser.decay * weight
        found.append(weight)
    return torch.tensor(found, dtype=torch.double)


def test_epsilon_before_the_bias_correction() -> None:
    rng = torch.Generator().manual_seed(0)
    gradients = 1e-5 * torch.randn(12, 5, generator=rng, dtype=torch.double)
    plan = OptimizerConfig(
        rule="transformers-adamw", rate=0.01, decay=0.1, betas=(0.9, 0.98), epsilon=1e-6
    )
    found = follow(plan, gradients)
    torch.testing.assert_close(found, by_hand(plan, gradients), rtol=0, atol=1e-14)
    other = follow(replace(plan, rule="adamw"), gradients)
    assert (found - other).abs().min() > 1e-4  # an epsilon this near to the gradients is seen


def test_that_adamw_is_resumed_and_leaves_what_has_no_gradient() -> None:
    plan = OptimizerConfig(rule="transformers-adamw", rate=0.1, decay=0.1)
    module = nn.Module()
    module.one, module.other = (nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    made = plan.build(module)
    module.one.grad = torch.full((2, 2), 0.5)
    made.step()
    assert torch.equal(module.other, torch.ones(2, 2))
    assert module.other not in made.state
    again = plan.build(module)
    again.load_state_dict(made.state_dict())
    before = module.one.detach().clone()
    made.step()
    once = module.one.detach().clone()
    with torch.no_grad():
        module.one.copy_(before)
    again.step()
    assert torch.equal(module.one, once)


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
