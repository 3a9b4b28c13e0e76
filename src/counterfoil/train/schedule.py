"""What the learning rate is multiplied with; pure functions of the step.

>>> [round(Cosine(warmup=2).factor(step, per_epoch=5, total=10), 2) for step in (0, 1, 2, 6)]
[0.5, 1.0, 1.0, 0.5]
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import final


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """A factor of the learning rate that depends on nothing but the step.

    Attributes:
        warmup: over how many steps the rate rises evenly to its full value; below 1 it is a share
            of all steps.
        kind: which schedule it is, where it is written down as data.

    Raises:
        ValueError: a negative warm-up.
    """

    warmup: float = 0
    kind: str = field(default="", init=False)

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise ValueError(
                f"warmup={self.warmup} is negative; give a number of steps, or a share of all "
                "steps below 1"
            )

    def factor(self, step: int, *, per_epoch: int, total: int) -> float:
        """The factor at a step.

        Args:
            step: optimiser steps made before.
            per_epoch: optimiser steps in an epoch.
            total: optimiser steps in the whole training.
        """
        rise = self.warmup * total if self.warmup < 1 else self.warmup
        if step < rise:
            return min(1.0, (step + 1) / rise)
        done = (step - rise) / max(1.0, total - rise)
        return self.after_warmup(min(done, 1.0), epoch=step // max(per_epoch, 1))

    @abstractmethod
    def after_warmup(self, done: float, *, epoch: int) -> float:
        """The factor once the rate has risen.

        Args:
            done: share of the steps after warm-up that have been made, from 0 to 1.
            epoch: whole epochs made before, warm-up included.
        """


@final
@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The full rate throughout."""

    kind: str = field(default="constant", init=False)

    def after_warmup(self, done: float, *, epoch: int) -> float:
        return 1.0


@final
@dataclass(frozen=True, kw_only=True)
class StepDecay(Schedule):
    """The rate is multiplied after every so many epochs, or at given epochs.

    Attributes:
        every: epochs between two drops; 0 for none.
        at: epochs, counted from 0, that begin with a drop.
        by: the multiplier of a drop.

    Raises:
        ValueError: neither or both of `every` and `at` are given.
    """

    kind: str = field(default="steps", init=False)
    every: int = 0
    at: tuple[int, ...] = ()
    by: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.every > 0) == bool(self.at):
            raise ValueError(
                f"every={self.every}, at={self.at}: name either the epochs between two drops of "
                "the learning rate or the epochs at which it drops"
            )

    def after_warmup(self, done: float, *, epoch: int) -> float:
        drops = epoch // self.every if self.every > 0 else sum(epoch >= mark for mark in self.at)
        return float(self.by**drops)


@final
@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Half a cosine from the full rate down to a share of it.

    Attributes:
        end: the last share.
    """

    kind: str = field(default="cosine", init=False)
    end: float = 0.0

    def after_warmup(self, done: float, *, epoch: int) -> float:
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * done)) / 2


@final
@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """A straight line from the full rate down to a share of it.

    Attributes:
        end: the last share.
    """

    kind: str = field(default="linear", init=False)
    end: float = 0.0

    def after_warmup(self, done: float, *, epoch: int) -> float:
        return 1 - (1 - self.end) * done
