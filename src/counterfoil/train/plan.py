"""How long to train, on what batches, by which rule: everything about training that is a number."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, final

from counterfoil.spec import unknown
from counterfoil.train.optimise import Optimiser
from counterfoil.train.schedule import Constant, Schedule

Precision = Literal["fp32", "bf16"]
Tracker = Literal["tensorboard", "wandb"]
_FREE = ("minutes", "save_minutes", "ahead", "track")  # no number depends on these
_LATER = ("all_captions", "dev_images")  # say nothing at their defaults


@final
@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """How to train.

    Attributes:
        epochs: passes over the training captions.
        batch: anchor captions in a batch, over all processes.
        seed: of the order, the draws and the dropout.
        optimiser: rule, rates, clipping.
        schedule: of the learning rate.
        accumulate: batches whose gradients are averaged before one optimiser step.
        chunk: items encoded at a time with gradient caching, for large batches; 0 encodes whole
            batches.
        precision: "bf16" computes under autocast.
        average: decay of the moving average of the weights that is evaluated and kept; 0 for none.
        one_caption: draw each image once an epoch with one of its captions.
        drop_last: leave out a short last batch of an epoch.
        all_captions: draw each image once an epoch with all of its captions; `batch` counts images.
        steps: stop after so many optimiser steps; 0 for no limit.
        minutes: stop after so many minutes with a checkpoint to resume from; 0 for no limit.
        save_minutes: between two checkpoints; one is written after each epoch in any case.
        dev_images: measure on so many images of dev, drawn once for all trainings; 0 for all.
        select: the dev figure, higher is better, by which the best epoch is kept.
        log_every: optimiser steps between two lines of metrics.
        ahead: batches that are read ahead.
        track: where metrics go beside `metrics.jsonl`.

    Raises:
        ValueError: a number out of range.
    """

    epochs: int = 30
    batch: int = 128
    seed: int = 0
    optimiser: Optimiser = Optimiser()
    schedule: Schedule = Constant()
    accumulate: int = 1
    chunk: int = 0
    precision: Precision = "fp32"
    average: float = 0.0
    one_caption: bool = False
    drop_last: bool = False
    steps: int = 0
    minutes: float = 0.0
    save_minutes: float = 10.0
    select: str = "rsum"
    log_every: int = 10
    ahead: int = 2
    track: tuple[Tracker, ...] = ()
    all_captions: bool = False
    dev_images: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "accumulate", "log_every", "ahead"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: at least 1 is needed")
        for name in ("chunk", "steps", "minutes", "save_minutes", "dev_images"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: it may not be below 0")
        if not 0 <= self.average < 1:
            raise ValueError(f"average={self.average}: a decay is at least 0 and below 1")
        if self.precision not in ("fp32", "bf16"):
            raise ValueError(unknown(self.precision, ["fp32", "bf16"], "a precision"))
        for tracker in self.track:
            if tracker not in ("tensorboard", "wandb"):
                raise ValueError(unknown(tracker, ["tensorboard", "wandb"], "a tracker"))

    def steps_per_epoch(self, batches: int) -> int:
        """Optimiser steps in an epoch of so many batches; a last group may be smaller."""
        return -(-batches // self.accumulate)

    def total(self, batches: int) -> int:
        """Optimiser steps in the whole training."""
        whole = self.epochs * self.steps_per_epoch(batches)
        return min(whole, self.steps) if self.steps else whole

    def numbers(self) -> dict[str, Any]:
        """What the result depends on, JSON-ready: all but how a run is cut up and watched."""
        silent = [name for name in _LATER if not getattr(self, name)]  # older runs keep digests
        return {n: value for n, value in asdict(self).items() if n not in (*_FREE, *silent)}
