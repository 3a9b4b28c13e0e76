from __future__ import annotations

import pytest

from counterfoil.training.callbacks import CollapseWarning
from counterfoil.training.checkpoint import TrainProgress


class Watch:
    """The warnings of one training."""

    def __init__(self, steps: int) -> None:
        self.monitor, self.progress = CollapseWarning(steps), TrainProgress()

    def warning(self, step: int, loss: float, level: float) -> str | None:
        self.progress.step = step
        return self.monitor.warning(self.progress, loss, level)


def test_it_must_stay() -> None:
    watch = Watch(steps=100)
    assert watch.warning(0, 51.2, 51.2) is None
    assert watch.warning(90, 51.21, 51.2) is None
    warning = watch.warning(100, 51.2, 51.2)
    assert warning is not None
    assert "stayed at 51.2 since step 0" in warning
    assert "lower learning rate" in warning
    assert watch.warning(200, 51.2, 51.2) is None, "said once"


def test_a_loss_that_moves_is_none() -> None:
    watch = Watch(steps=100)
    watch.warning(0, 51.2, 51.2)
    assert watch.warning(60, 48.0, 51.2) is None
    assert watch.warning(120, 51.2, 51.2) is None, "it has been there since 120 only"
    assert watch.warning(219, 51.2, 51.2) is None
    assert watch.warning(220, 51.2, 51.2)


@pytest.mark.parametrize("level", [0.0, float("nan")])
def test_a_level_that_says_nothing(level: float) -> None:
    watch = Watch(steps=1)
    assert watch.warning(0, 0.5, level) is None
    assert watch.warning(5, 0.5, level) is None


def test_a_loss_of_zero_is_no_collapse() -> None:
    watch = Watch(steps=1)
    assert watch.warning(0, 0.0, 0.0) is None
    assert watch.warning(5, 0.0, 0.0) is None
