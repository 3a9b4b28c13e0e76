"""The state of a training and the order of what happens in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Generic, cast, final

import torch

from counterfoil import world
from counterfoil.core.console import info, progress, warn
from counterfoil.core.resumable import WorkStopped
from counterfoil.matcher import Matcher
from counterfoil.negatives.draws import Draws
from counterfoil.train.checkpoint import Best, Checkpoints, Moving, Progress
from counterfoil.train.collapse import Collapse
from counterfoil.train.figures import chosen, finite, sampled
from counterfoil.train.guidance import in_words
from counterfoil.train.learner import B, Feed, Learner
from counterfoil.train.log import Metrics, Window, memory_mb
from counterfoil.train.optimise import Average
from counterfoil.train.plan import TrainPlan
from counterfoil.train.prefetch import ahead
from counterfoil.train.refresh import Relisting
from counterfoil.train.seeds import seed_everything
from counterfoil.train.stopping import Stopping, Why, stopping
from counterfoil.train.update import Update

Measure = Callable[[Matcher], Mapping[str, float]]


@final
@dataclass(frozen=True, slots=True)
class Fitted:
    """What became of a training; the model holds the weights of the best epoch.

    Attributes:
        steps: optimiser steps made.
        epochs: whole epochs made.
        best: the best epoch on dev; None where there was no dev evaluation.
        why: "finished", or what stopped it before its end: it can be resumed.
        seconds: spent on it, over all sessions.
        metrics: its ``metrics.jsonl``.
    """

    steps: int
    epochs: int
    best: Best | None
    why: Why
    seconds: float
    metrics: Path

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return self.why == "finished"


@final
class Training(Generic[B]):
    """A training that can be run.

    Args:
        plan: how to train.
        step: the step, on the device it computes on.
        stream: its batches.
        checkpoints: where it is saved.
        evaluate: dev figures of the model after each epoch.
        lists: what mines anew every so many epochs, if anything does.
    """

    def __init__(
        self,
        plan: TrainPlan,
        step: Learner[B],
        stream: Feed[B],
        checkpoints: Checkpoints,
        evaluate: Measure | None,
        lists: Relisting | None = None,
    ) -> None:
        self.plan, self.step, self.stream = plan, step, stream
        self.checkpoints, self.evaluate, self.lists = checkpoints, evaluate, lists
        self.batches = len(stream.sampler)
        self.per_epoch, self.total = plan.steps_per_epoch(self.batches), plan.total(self.batches)
        seed_everything(plan.seed)
        plan.optimiser.freeze_in(step)
        self.update = Update(plan, step)
        self.average = Average(step.matcher, plan.average) if plan.average else None
        shadow = self.average.shadow if self.average else {}
        self.moving = Moving(step, self.update.optimiser, shadow)
        self.at, self.window, self.collapse = Progress(), Window(), Collapse()
        self.began = self.logged = time.monotonic()
        self.guided = ""  # how the student stood to its guide in the last line of metrics

    def run(self, path: Path, *, resume: bool) -> Fitted:
        """Train to the end, or until something says stop."""
        self._begin(resume=resume)
        plan, start = self.plan, self.at.step
        with (
            Metrics(path, keep=self.at.metrics, track=plan.track, step=start) as metrics,
            stopping(plan.minutes, plan.save_minutes) as watch,
            progress("training steps", self.total, start) as advance,
        ):
            why: Why = "finished"
            while self.at.step < self.total and why == "finished":
                why = self._stretch(metrics, watch, advance)
        self._hand_over(why)
        epochs = self.at.step // self.per_epoch
        return Fitted(self.at.step, epochs, self.at.best, why, self.at.seconds, path)

    def _begin(self, *, resume: bool) -> None:
        restored = self.checkpoints.restore(self.moving) if resume else None
        if self.lists:
            self.lists.sweep_up(everything=restored is None)
        if restored is None:
            self.checkpoints.clear()
        else:
            self.at = restored
            self.window.restore(restored.window, restored.windowed, restored.counted)
            self.collapse = Collapse(since=restored.since, told=restored.told)
        self.began = time.monotonic() - self.at.seconds
        self.step.train()

    def _stretch(self, metrics: Metrics, watch: Stopping, advance: Callable[[int], None]) -> Why:
        """All epochs, or those that draw from the same lists."""
        until = self.total
        if self.lists:
            if why := self._listed(self.lists, metrics, watch):
                return why
            epoch = self.lists.since(self.at.step // self.per_epoch) + self.lists.plan.every
            until = min(until, epoch * self.per_epoch)
        with ahead(self._batches(until, world.device()), self.plan.ahead) as batches:
            return self._go(until, batches, metrics, watch, advance)

    def _listed(self, lists: Relisting, metrics: Metrics, watch: Stopping) -> Why | None:
        """Draw from the lists of this epoch, mined now if it begins with that; why to stop."""
        epoch, place = divmod(self.at.step, self.per_epoch)
        name, due = lists.name(lists.since(epoch)), epoch == lists.since(epoch) and not place
        if not (due and name):
            self._draw_from(lists, lists.open(name))
            return None
        began = time.monotonic()
        try:
            with self._kept() as matcher:
                draws = lists.mine(name, matcher, watch.wanted)
        except WorkStopped:
            why, _ = watch.decide()
            watch.heed()
            return why or "signal"
        self._draw_from(lists, draws)
        self.at.lists = name
        took = round(time.monotonic() - began, 3)
        metrics.write(self.at.step, {"epoch": epoch, "lists": name, "mined_seconds": took})
        self.logged = time.monotonic()
        return None

    def _draw_from(self, lists: Relisting, draws: Draws | None) -> None:
        self.stream = cast("Feed[B]", replace(lists.stream, draws=draws))

    def _batches(self, until: int, device: torch.device) -> Callable[[], Iterator[B]]:
        """Batches on the device; a thread has a current device of its own, so it is named here."""
        first, stream = self._batch_at(self.at.step), self.stream
        count = self._batch_at(until) - first
        return lambda: (batch.to(device) for batch in islice(stream.batches(first), count))

    def _batch_at(self, step: int) -> int:
        epoch, place = divmod(step, self.per_epoch)
        return epoch * self.batches + place * self.plan.accumulate

    def _go(
        self,
        until: int,
        batches: Iterator[B],
        metrics: Metrics,
        watch: Stopping,
        advance: Callable[[int], None],
    ) -> Why:
        while self.at.step < until:
            batch = self._one(batches)
            advance(1)
            ended, whole = self._ends(self.at.step), self._logged(self.at.step)
            if whole:
                self._log(batch, metrics)
            if ended:
                self._end_epoch(metrics)
            if whole or world.size() == 1:
                why, due = watch.decide()
                if ended or due:
                    self._save(metrics)
                    watch.saved()
                if why and self.at.step < self.total:
                    watch.heed()
                    return why
        return "finished"

    def _ends(self, step: int) -> bool:
        """Whether an epoch has come to its end."""
        return step % self.per_epoch == 0 or step == self.total

    def _logged(self, step: int) -> bool:
        return self._ends(step) or step % self.plan.log_every == 0

    def _one(self, batches: Iterator[B]) -> B:
        """One optimiser step; the last batch of its group."""
        left = self.batches - self.at.step % self.per_epoch * self.plan.accumulate
        group = list(islice(batches, min(left, self.plan.accumulate)))
        factor = self.plan.schedule.factor(self.at.step, per_epoch=self.per_epoch, total=self.total)
        self.step.watch.wanted = self._logged(self.at.step + 1)
        found = self.update(group, factor, epoch=self.at.step // self.per_epoch)
        self.window.add(found, sum(len(b.anchors.image) for b in group))
        if self.average:
            self.average.update(self.step.matcher)
        self.at.step += 1
        return group[-1]

    def _log(self, batch: B, metrics: Metrics) -> None:
        means, pairs = self.window.take()
        finite(means, self.at.step)
        now = time.monotonic()
        means["lr"] = self.update.rate
        means["pairs_per_second"] = round(pairs / max(now - self.logged, 1e-9), 1)
        means["memory_mb"] = round(memory_mb(world.device()), 1)
        means["seconds"] = round(now - self.began, 3)
        self.logged = now
        guided = self.step.watch.take()
        epoch = round(self.at.step / self.per_epoch, 4)
        metrics.write(self.at.step, {"epoch": epoch, **means, **guided})
        self.guided = in_words(guided)
        level = self.step.level(batch)
        if level is None:
            return
        warning = self.collapse.warning(self.at.step, self.update.judged(), float(level))
        if warning:
            metrics.write(self.at.step, {"warning": warning})
            warn(warning)

    def _end_epoch(self, metrics: Metrics) -> None:
        epoch = -(-self.at.step // self.per_epoch)
        said = f"epoch {epoch} of {self.plan.epochs}"
        if self.evaluate:
            began = time.monotonic()
            dev = self._measured(self.evaluate)
            value = chosen(dev, self.plan.select)
            better = self.at.best is None or value > self.at.best.value
            if better:
                self.at.best = Best(self.at.step, epoch, value, dev)
                weights = self.average.shadow if self.average else self.step.matcher.state_dict()
                self.checkpoints.save_best(self.at.best, weights)
            line = {f"dev_{name}": figure for name, figure in dev.items()}
            took = {"dev_seconds": round(time.monotonic() - began, 3)}
            metrics.write(self.at.step, {"epoch": epoch, **line, **took})
            said += (
                f": dev {self.plan.select} {value:.2f}{sampled(dev)}{' (best)' if better else ''}"
            )
            self.logged = time.monotonic()
        info(f"{said}; {self.guided}" if self.guided else said)

    def _measured(self, evaluate: Measure) -> dict[str, float]:
        """Dev figures of the weights that would be kept."""
        with self._kept() as matcher:
            return {name: float(value) for name, value in evaluate(matcher).items()}

    @contextmanager
    def _kept(self) -> Iterator[Matcher]:
        """The model in evaluation mode, with the weights that would be kept."""
        self.step.eval()
        lent = self.average.in_place_of(self.step.matcher) if self.average else nullcontext()
        with torch.no_grad(), lent:
            yield self.step.matcher
        self.step.train()

    def _save(self, metrics: Metrics) -> None:
        at = self.at
        at.window, at.windowed = self.window.sums(), self.window.steps
        at.counted = self.window.counts()
        finite(at.window, at.step)
        at.since, at.told = self.collapse.since, self.collapse.told
        at.metrics, at.seconds = metrics.bytes, time.monotonic() - self.began
        self.checkpoints.save(self.moving, at)
        if self.lists:
            self.lists.tidy(at.lists)

    def _hand_over(self, why: Why) -> None:
        """Leave the model with the weights of the best epoch, or the latest where it stopped."""
        if why == "finished" and self.at.best:
            self.step.matcher.load_state_dict(self.checkpoints.load_best(self.at.best))
        elif self.average:
            self.step.matcher.load_state_dict(self.average.shadow)
        self.step.eval()
