from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from counterfoil.training.config import CosineLR, LinearLR, TrainConfig


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epochs": 0}, "epochs=0: at least 1"),
        ({"batch": -4}, "batch=-4: it may not be below 0"),
        ({"batch": 0, "accumulate": 4}, "accumulate=4 and batch=0, the whole training split"),
        ({"minutes": -1.0}, "minutes=-1.0: it may not be below 0"),
        ({"dev_images": -1}, "dev_images=-1: it may not be below 0"),
        ({"average": 1.0}, "average=1.0: a decay is at least 0 and below 1"),
        ({"precision": "fp16"}, "'fp16' is not a precision; did you mean 'bf16'"),
        ({"track": ("tensorbord",)}, "'tensorbord' is not a tracker; did you mean 'tensorboard'"),
    ],
)
def test_bad_numbers(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainConfig(**change)


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
