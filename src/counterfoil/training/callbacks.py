"""Callbacks of the training loop: metrics, collapse warnings, evaluation on dev."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from torch import Tensor, nn

from counterfoil.core import distributed
from counterfoil.core.config import parse_choice
from counterfoil.core.console import warn
from counterfoil.losses.schedules import LossSchedule
from counterfoil.models.base import RetrievalModel
from counterfoil.training.checkpoint import BestEpoch, TrainProgress
from counterfoil.training.logging import MetricWindow, describe_figures, memory_mb

if TYPE_CHECKING:
    from counterfoil.training.step import TrainableModule
    from counterfoil.training.trainer import TrainingLoop

DevMetrics = Callable[[RetrievalModel], Mapping[str, float]]  # a model in evaluation mode
IMAGES = "images"  # the dev figure that counts the sampled images, where dev is sampled


class Callback:
    """Hooks of a training loop; override the ones you need.

    Every process runs every hook, in the order of the callbacks, so hooks may use collectives.
    State that a resumed training needs is written to ``loop.progress`` in `on_checkpoint` and read
    from it in `on_train_begin`.
    """

    def on_train_begin(self, loop: TrainingLoop[Any]) -> None:
        """Weights, optimiser and ``loop.progress`` are restored; no step has been made."""

    def on_epoch_begin(self, loop: TrainingLoop[Any]) -> None:
        """An epoch begins, or a resumed training continues inside one."""

    def on_step_end(
        self, loop: TrainingLoop[Any], group: Sequence[Any], losses: Mapping[str, Tensor]
    ) -> None:
        """An optimiser step was made from a group of batches.

        `losses` holds "loss", each weighted loss and "grad_norm", still on the device.
        """

    def on_epoch_end(self, loop: TrainingLoop[Any]) -> None:
        """The last step of an epoch, or of the training, was made; comes after `on_step_end`."""

    def on_checkpoint(self, loop: TrainingLoop[Any]) -> None:
        """A checkpoint is about to be written."""

    def on_checkpoint_saved(self, loop: TrainingLoop[Any]) -> None:
        """A checkpoint was written; files that only older checkpoints need can go."""

    def on_train_end(self, loop: TrainingLoop[Any]) -> None:
        """The training finished or stopped; the model holds the weights that are returned."""


@final
class MetricsLogger(Callback):
    """Writes mean losses, learning rate, speed and memory every ``log_every`` steps.

    Losses are summed on the device and read once a line: reading each step would make the device
    wait for the host.
    """

    def __init__(self) -> None:
        self.window = MetricWindow()
        self.last_line = time.monotonic()
        self.guide_note = ""

    def on_train_begin(self, loop: TrainingLoop[Any]) -> None:
        progress = loop.progress
        self.window.restore(progress.window, progress.windowed, progress.counted)
        self.last_line = time.monotonic()

    def on_epoch_begin(self, loop: TrainingLoop[Any]) -> None:
        self.last_line = time.monotonic()  # mining and dev evaluation do not count as steps

    def on_step_end(
        self, loop: TrainingLoop[Any], group: Sequence[Any], losses: Mapping[str, Tensor]
    ) -> None:
        self.window.add(losses, sum(len(batch.anchors.image) for batch in group))
        if not loop.logs:
            return
        step = loop.progress.step
        line, pairs = self.window.take()
        check_finite_losses(line, step)
        now = time.monotonic()
        line["lr"] = loop.update.rate
        line["pairs_per_second"] = round(pairs / max(now - self.last_line, 1e-9), 1)
        line["memory_mb"] = round(memory_mb(distributed.device()), 1)
        line["seconds"] = round(now - loop.began, 3)
        self.last_line = now
        guide_figures = loop.module.watch.take()
        epoch = round(step / loop.per_epoch, 4)
        loop.metrics.write(step, {"epoch": epoch, **line, **guide_figures})
        self.guide_note = describe_figures(guide_figures)

    def on_epoch_end(self, loop: TrainingLoop[Any]) -> None:
        if self.guide_note:
            loop.summary += f"; {self.guide_note}"

    def on_checkpoint(self, loop: TrainingLoop[Any]) -> None:
        progress = loop.progress
        progress.window, progress.windowed = self.window.sums(), self.window.steps
        progress.counted = self.window.counts()
        check_finite_losses(progress.window, progress.step)


def check_finite_losses(losses: Mapping[str, float], step: int) -> None:
    """Raise a `ValueError` if a loss is not finite."""
    if bad := [f"{name} is {value}" for name, value in losses.items() if not math.isfinite(value)]:
        raise ValueError(
            f"training broke down by step {step}: {', '.join(bad)}; use a lower learning rate or "
            "a longer warm-up, and look for NaN features with `counterfoil data check`"
        )


@final
class CollapseWarning(Callback):
    """Warns once when the loss stays at its value for equal scores for so many steps.

    A hinge on the hardest negative collapses to 2·B·margin: with all scores equal, the gradients
    of anchor and hardest negative cancel, and training cannot leave that point.
    """

    TOLERANCE = 0.005  # largest distance from that value, as a share of it

    def __init__(self, steps: int = 200) -> None:
        self.steps = steps

    def on_step_end(
        self, loop: TrainingLoop[Any], group: Sequence[Any], losses: Mapping[str, Tensor]
    ) -> None:
        if not loop.logs:
            return
        level = loop.module.level(group[-1])
        if level is None:
            return
        warning = self.warning(loop.progress, loop.update.last_objective(), float(level))
        if warning:
            loop.metrics.write(loop.progress.step, {"warning": warning})
            warn(warning)

    def warning(self, progress: TrainProgress, loss: float, level: float) -> str | None:
        """Return the warning when it is due; updates `since` and `warned` of the progress.

        `level` is the loss of the last batch if all scores were equal.
        """
        # written as "not <=" so that NaN counts as "not collapsed"; and 0, which is that of equal
        # scores with an adaptive margin, is also that of well-separated ones
        if not abs(loss - level) <= self.TOLERANCE * abs(level) or level == 0:
            progress.since = -1
            return None
        if progress.since < 0:
            progress.since = progress.step
        if progress.warned or progress.step - progress.since < self.steps:
            return None
        progress.warned = True
        return (
            f"the loss has stayed at {loss:.4g} since step {progress.since}, which is what it is "
            f"when all scores are equal ({level:.4g}; 2 x batch x margin for a hinge on the "
            "hardest negative): the model no longer distinguishes images and texts. Start again "
            "with a lower learning rate or a warm-up of it, or with all negatives before the "
            "hardest one (SwitchAfter(first=SumTripletLoss(), second=HardestTripletLoss(), "
            "steps=...))"
        )


@final
class DevEvaluation(Callback):
    """Evaluates the model after each epoch, or every few, and saves the weights of the best one.

    An epoch inside a warm-up of the loss does not compete, since its model was trained by another
    loss; if no step is behind the warm-up, all compete.
    """

    def __init__(self, evaluate: DevMetrics) -> None:
        self.evaluate = evaluate

    def on_epoch_end(self, loop: TrainingLoop[Any]) -> None:
        if not loop.evaluates:
            return
        began, progress, select = time.monotonic(), loop.progress, loop.config.select
        with loop.evaluation_model() as model:
            dev = {name: float(figure) for name, figure in self.evaluate(model).items()}
        value, best, highest = selection_value(dev, select), progress.best, progress.highest
        competes = progress.step > loop.warm_up
        better = competes and (loop.config.keep_last or best is None or value > best.value)
        if competes:
            progress.first = progress.first or loop.epoch
        progress.rising = highest is None or value > highest
        progress.highest = value if highest is None else max(value, highest)
        if better:
            progress.best = BestEpoch(progress.step, loop.epoch, value, dev)
            loop.checkpoints.save_best(progress.best, loop.evaluation_weights())
        figures = {f"dev_{name}": figure for name, figure in dev.items()}
        seconds = round(time.monotonic() - began, 3)
        loop.metrics.write(progress.step, {"epoch": loop.epoch, **figures, "dev_seconds": seconds})
        alone = progress.first == loop.epoch and progress.step == loop.total
        mark = " (best)" if better and not loop.config.keep_last and not alone else ""
        if not competes:
            mark = f", not kept: the loss still warms up, until step {loop.warm_up:,}"
        loop.summary += f": dev {select} {value:.2f}{dev_sample_note(dev)}{mark}"


def warm_up_batches(module: nn.Module) -> int:
    """Return the batches after which no schedule of the loss changes any more, at its own pace."""
    settled = (part.settled for part in module.modules() if isinstance(part, LossSchedule))
    return max(settled, default=0)


def warm_up_steps(module: TrainableModule[Any], accumulate: int) -> int:
    """Return the optimiser steps after which no schedule of the loss changes any more."""
    return math.ceil(warm_up_batches(module) / module.pace) // accumulate


def selection_value(dev: Mapping[str, float], select: str) -> float:
    """Return the dev figure that the best epoch is selected by; an error if there is none."""
    parse_choice(dev, select, "a dev figure to select by")
    if math.isnan(dev[select]):
        raise ValueError(
            f"the dev figure {select!r} is not a number, so no epoch can be chosen by it"
        )
    return dev[select]


def dev_sample_note(dev: Mapping[str, float]) -> str:
    """Return " on N images" for figures of a sample of dev, "" for figures of all of it."""
    return f" on {dev[IMAGES]:,.0f} images" if IMAGES in dev else ""
