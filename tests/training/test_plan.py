"""Settings of a training: what they count, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from counterfoil.negatives.filters import FilterConfig
from counterfoil.training.config import (
    ConstantLR,
    CosineLR,
    LinearLR,
    OptimizerConfig,
    ParameterGroup,
    StepDecayLR,
    TrainConfig,
)
from counterfoil.training.pretrain import PretrainTasks
from counterfoil.training.remine import RemineConfig


@pytest.mark.parametrize(
    ("make", "change", "words"),
    [
        (TrainConfig, {"epochs": 0}, "epochs=0: at least 1"),
        (TrainConfig, {"batch": -4}, "batch=-4: it may not be below 0"),
        (TrainConfig, {"batch": 0, "accumulate": 4}, "accumulate=4 and batch=0, the whole"),
        (TrainConfig, {"minutes": -1.0}, "minutes=-1.0: it may not be below 0"),
        (TrainConfig, {"dev_images": -1}, "dev_images=-1: it may not be below 0"),
        (TrainConfig, {"average": 1.0}, "average=1.0: a decay is at least 0 and below 1"),
        (TrainConfig, {"precision": "fp16"}, "'fp16' is not a precision; did you mean 'bf16'"),
        (TrainConfig, {"track": ("tensorbord",)}, "is not a tracker; did you mean 'tensorboard'"),
        (ConstantLR, {"warmup": -1}, "warmup=-1 is negative"),
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
