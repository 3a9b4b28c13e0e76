"""Time limits, signals, the interval between checkpoints, and whether a training has converged."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, variance
from types import FrameType
from typing import Any, Literal, final

from counterfoil.core import distributed

StopReason = Literal["finished", "minutes", "signal"]
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@final
class StopMonitor:
    """Watches the time limit and termination signals.

    Args:
        minutes: time limit; 0 for none.
        save_minutes: minutes between two checkpoints.
    """

    def __init__(self, minutes: float, save_minutes: float) -> None:
        self.minutes, self.save_minutes = minutes, save_minutes
        self.began = self.last_save = time.monotonic()
        self.signal_number: int | None = None
        self.handled = False

    def saved(self) -> None:
        """A checkpoint has been written."""
        self.last_save = time.monotonic()

    @property
    def late(self) -> bool:
        """True if the minutes are over."""
        return self.minutes > 0 and time.monotonic() - self.began >= 60 * self.minutes

    def wanted(self) -> bool:
        """Return True if this process should stop, regardless of the other processes."""
        return self.signal_number is not None or self.late

    def decide(self) -> tuple[StopReason | None, bool]:
        """Return the reason to stop, if any, and whether to save; the same on every process."""
        due = time.monotonic() - self.last_save >= 60 * self.save_minutes
        signalled, late = self.signal_number is not None, self.late
        code = distributed.all_reduce_max(3 if signalled else 2 if late else 1 if due else 0)
        reason: StopReason | None = "signal" if code == 3 else "minutes" if code == 2 else None
        return reason, code > 0

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: the first one asks for a stop, an interrupt after it forces one."""
        if self.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = number

    def mark_handled(self) -> None:
        """Note that the training stops because of the signal or the limit."""
        self.handled = True


@contextmanager
def watch_for_stop(minutes: float, save_minutes: float) -> Iterator[StopMonitor]:
    """Handle SIGTERM and SIGINT while the block runs; Python allows that in the main thread only.

    A signal that came too late to stop the training is raised again for the former handlers, so
    that it is not lost to the code after the training.
    """
    watch = StopMonitor(minutes, save_minutes)
    if threading.current_thread() is not threading.main_thread():
        yield watch
        return
    before = {number: signal.signal(number, watch.handle) for number in _SIGNALS}
    try:
        yield watch
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if watch.signal_number is not None and not watch.handled:
            signal.raise_signal(watch.signal_number)


# Whether more steps would help


State = Literal["converged", "still improving", "cannot tell whether it converged"]
UNKNOWN: State = "cannot tell whether it converged"


@final
@dataclass(frozen=True, slots=True)
class Convergence:
    """Whether a training that ended would gain by more steps, and how that is known, in words."""

    state: State
    why: str


FEW_STEPS = 30  # of fewer a flat figure on dev says nothing
_SMALL = 0.02  # share of the loss: a smaller fall is none, and larger noise hides one


def loss_convergence(
    lines: Sequence[Mapping[str, Any]], *, steps: int, settled: int, why: str
) -> Convergence:
    """Tell from the training loss: the mean of the last fifth of the steps and of the one before.

    It still falls if these differ by more than twice the standard error of their difference, over
    lines of metrics, and by more than two percent. Where that error could hide such a fall, it is
    not known.

    Args:
        lines: of ``metrics.jsonl``.
        steps: optimiser steps made.
        settled: steps after which the loss was the same throughout.
        why: reason that dev does not tell, in words.
    """
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    earlier = [loss for step, loss in losses if 0.6 * steps < step <= 0.8 * steps]
    last = [loss for step, loss in losses if 0.8 * steps < step]
    if min(len(earlier), len(last)) < 2 or settled > 0.6 * steps:
        after = f" after the warm-up of the loss, step {settled:,}," if settled else ""
        return Convergence(
            UNKNOWN, f"{why}, and {steps:,} steps are too few{after} to tell by the loss"
        )
    before, now = fmean(earlier), fmean(last)
    fall = before - now
    noise = 2 * (variance(earlier) / len(earlier) + variance(last) / len(last)) ** 0.5
    least = _SMALL * abs(before)
    said = f"{why}; the training loss"
    if fall > max(noise, least):
        return Convergence(
            "still improving",
            f"{said} was still falling, from {before:.3g} to {now:.3g} between the last two fifths "
            "of the steps, so more steps may help, or overfit",
        )
    if noise > least and fall + noise > least:
        return Convergence(UNKNOWN, f"{said} varied too much to see whether it still falls")
    return Convergence("converged", f"{said} no longer falls ({now:.3g})")
