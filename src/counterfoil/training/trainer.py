"""Trains a model: epochs of steps, the best epoch on dev kept, resumable at any step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Generic, cast, final

import torch
from torch import nn

from counterfoil.core import distributed
from counterfoil.core.config import digest, parse_choice
from counterfoil.core.console import info, progress, warn
from counterfoil.core.resumable import WorkStopped
from counterfoil.core.types import Role
from counterfoil.data.batching import BatchSampler, Positives
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import ProcessedDataset
from counterfoil.losses.base import WeightedSum
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.online import OnlineMiner, screens_lists
from counterfoil.negatives.sampling import (
    NegativeSampler,
    NeighbourImages,
    OfflineNegativeSampler,
    RoleSubset,
    SamplingConfig,
)
from counterfoil.negatives.sampling import check as check_candidates
from counterfoil.negatives.teachers import TargetSource
from counterfoil.training.batches import BatchStream, prefetch
from counterfoil.training.checkpoint import (
    BestEpoch,
    CheckpointFolder,
    TrainProgress,
    TrainState,
    seed_everything,
)
from counterfoil.training.config import TrainConfig, WeightAverage
from counterfoil.training.logging import (
    MetricsLog,
    MetricWindow,
    check_trackers,
    describe_figures,
    memory_mb,
)
from counterfoil.training.remine import RemineConfig, Reminer, check_remine
from counterfoil.training.step import B, BatchSource, OptimizerStep, TrainableModule, TrainingStep
from counterfoil.training.stopping import StopMonitor, StopReason, watch_for_stop

# Figures that a training hangs on.


IMAGES = "images"  # how many were drawn of dev, where they are not all


def dev_sample_note(dev: Mapping[str, float]) -> str:
    """On how many images dev figures are measured, to stand behind them; empty for all of dev."""
    return f" on {dev[IMAGES]:,.0f} images" if IMAGES in dev else ""


def check_finite_losses(losses: Mapping[str, float], step: int) -> None:
    """Stop a training that broke down.

    Raises:
        ValueError: a loss is no number.
    """
    if bad := [f"{name} is {value}" for name, value in losses.items() if not math.isfinite(value)]:
        raise ValueError(
            f"training broke down by step {step}: {', '.join(bad)}; use a lower learning rate or "
            "a longer warm-up, and look for NaN features with `counterfoil data check`"
        )


def selection_value(dev: Mapping[str, float], select: str) -> float:
    """The dev figure that an epoch is chosen by.

    Raises:
        ValueError: there is none of this name, or it is no number.
    """
    parse_choice(dev, select, "a dev figure to select by")
    if math.isnan(dev[select]):
        raise ValueError(
            f"the dev figure {select!r} is not a number, so no epoch can be chosen by it"
        )
    return dev[select]


# Says in words when a training has collapsed: all scores are equal and the loss cannot fall.


@final
@dataclass(slots=True, kw_only=True)
class CollapseMonitor:
    """Watches for a loss that stays where it is when all scores are equal.

    A hinge on the hardest negative then stays at 2·B·margin, and its gradient keeps it there.

    Attributes:
        steps: for how many steps it must stay.
        tolerance: how near, as a share of that loss.
        since: the step it has stayed since, or -1.
        told: whether it has been said.
    """

    steps: int = 200
    tolerance: float = 0.005
    since: int = -1
    told: bool = False

    def warning(self, step: int, loss: float, level: float) -> str | None:
        """One warning in a training's life, or None.

        Args:
            step: optimiser steps made before.
            loss: what it is now.
            level: what it is when all scores are equal.
        """
        if not abs(loss - level) <= self.tolerance * abs(level):  # nor where either is NaN
            self.since = -1
            return None
        if self.since < 0:
            self.since = step
        if self.told or step - self.since < self.steps:
            return None
        self.told = True
        return (
            f"the loss has stayed at {loss:.4g} since step {self.since}, which is what it is when "
            f"all scores are equal ({level:.4g}; 2 x batch x margin for a hinge on the hardest "
            "negative): the model has stopped telling images and texts apart. Start again with a "
            "lower learning rate or a warm-up of it, or with all negatives before the hardest one "
            "(Then(first=SumTriplet(), second=HardestTriplet(), steps=...))"
        )


# The state of a training and the order of what happens in it.


Measure = Callable[[RetrievalModel], Mapping[str, float]]


@final
@dataclass(frozen=True, slots=True)
class TrainResult:
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
    best: BestEpoch | None
    stop_reason: StopReason
    seconds: float
    metrics: Path

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return self.stop_reason == "finished"


@final
class Trainer(Generic[B]):
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
        plan: TrainConfig,
        step: TrainableModule[B],
        stream: BatchSource[B],
        checkpoints: CheckpointFolder,
        evaluate: Measure | None,
        lists: Reminer | None = None,
    ) -> None:
        self.plan, self.step, self.stream = plan, step, stream
        self.checkpoints, self.evaluate, self.lists = checkpoints, evaluate, lists
        self.batches = len(stream.sampler)
        self.per_epoch, self.total = plan.steps_per_epoch(self.batches), plan.total(self.batches)
        seed_everything(plan.seed)
        plan.optimiser.freeze_in(step)
        self.update = OptimizerStep(plan, step)
        self.average = WeightAverage(step.model, plan.average) if plan.average else None
        shadow = self.average.shadow if self.average else {}
        self.moving = TrainState(step, self.update.optimiser, shadow)
        self.at, self.window, self.collapse = TrainProgress(), MetricWindow(), CollapseMonitor()
        self.began = self.logged = time.monotonic()
        self.guided = ""  # how the student stood to its guide in the last line of metrics

    def run(self, path: Path, *, resume: bool) -> TrainResult:
        """Train to the end, or until something says stop."""
        self._begin(resume=resume)
        plan, start = self.plan, self.at.step
        with (
            MetricsLog(path, keep=self.at.metrics, track=plan.track, step=start) as metrics,
            watch_for_stop(plan.minutes, plan.save_minutes) as watch,
            progress("training steps", self.total, start) as advance,
        ):
            why: StopReason = "finished"
            while self.at.step < self.total and why == "finished":
                why = self._stretch(metrics, watch, advance)
        self._hand_over(why)
        epochs = self.at.step // self.per_epoch
        return TrainResult(self.at.step, epochs, self.at.best, why, self.at.seconds, path)

    def _begin(self, *, resume: bool) -> None:
        restored = self.checkpoints.restore(self.moving) if resume else None
        if self.lists:
            self.lists.sweep_up(everything=restored is None)
        if restored is None:
            self.checkpoints.clear()
        else:
            self.at = restored
            self.window.restore(restored.window, restored.windowed, restored.counted)
            self.collapse = CollapseMonitor(since=restored.since, told=restored.told)
        self.began = time.monotonic() - self.at.seconds
        self.step.train()

    def _stretch(
        self, metrics: MetricsLog, watch: StopMonitor, advance: Callable[[int], None]
    ) -> StopReason:
        """All epochs, or those that draw from the same lists."""
        until = self.total
        if self.lists:
            if why := self._listed(self.lists, metrics, watch):
                return why
            epoch = self.lists.since(self.at.step // self.per_epoch) + self.lists.plan.every
            until = min(until, epoch * self.per_epoch)
        with prefetch(self._batches(until, distributed.device()), self.plan.ahead) as batches:
            return self._go(until, batches, metrics, watch, advance)

    def _listed(self, lists: Reminer, metrics: MetricsLog, watch: StopMonitor) -> StopReason | None:
        """Draw from the lists of this epoch, mined now if it begins with that; why to stop."""
        epoch, place = divmod(self.at.step, self.per_epoch)
        name, due = lists.name(lists.since(epoch)), epoch == lists.since(epoch) and not place
        if not (due and name):
            self._draw_from(lists, lists.open(name))
            return None
        began = time.monotonic()
        try:
            with self._kept() as model:
                draws = lists.mine(name, model, watch.wanted)
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

    def _draw_from(self, lists: Reminer, draws: NegativeSampler | None) -> None:
        self.stream = cast("BatchSource[B]", replace(lists.stream, draws=draws))

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
        metrics: MetricsLog,
        watch: StopMonitor,
        advance: Callable[[int], None],
    ) -> StopReason:
        while self.at.step < until:
            batch = self._one(batches)
            advance(1)
            ended, whole = self._ends(self.at.step), self._logged(self.at.step)
            if whole:
                self._log(batch, metrics)
            if ended:
                self._end_epoch(metrics)
            if whole or distributed.size() == 1:
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
            self.average.update(self.step.model)
        self.at.step += 1
        return group[-1]

    def _log(self, batch: B, metrics: MetricsLog) -> None:
        means, pairs = self.window.take()
        check_finite_losses(means, self.at.step)
        now = time.monotonic()
        means["lr"] = self.update.rate
        means["pairs_per_second"] = round(pairs / max(now - self.logged, 1e-9), 1)
        means["memory_mb"] = round(memory_mb(distributed.device()), 1)
        means["seconds"] = round(now - self.began, 3)
        self.logged = now
        guided = self.step.watch.take()
        epoch = round(self.at.step / self.per_epoch, 4)
        metrics.write(self.at.step, {"epoch": epoch, **means, **guided})
        self.guided = describe_figures(guided)
        level = self.step.level(batch)
        if level is None:
            return
        warning = self.collapse.warning(self.at.step, self.update.judged(), float(level))
        if warning:
            metrics.write(self.at.step, {"warning": warning})
            warn(warning)

    def _end_epoch(self, metrics: MetricsLog) -> None:
        epoch = -(-self.at.step // self.per_epoch)
        said = f"epoch {epoch} of {self.plan.epochs}"
        if self.evaluate:
            began = time.monotonic()
            dev = self._measured(self.evaluate)
            value = selection_value(dev, self.plan.select)
            better = self.at.best is None or value > self.at.best.value
            if better:
                self.at.best = BestEpoch(self.at.step, epoch, value, dev)
                weights = self.average.shadow if self.average else self.step.model.state_dict()
                self.checkpoints.save_best(self.at.best, weights)
            line = {f"dev_{name}": figure for name, figure in dev.items()}
            took = {"dev_seconds": round(time.monotonic() - began, 3)}
            metrics.write(self.at.step, {"epoch": epoch, **line, **took})
            best = " (best)" if better else ""
            said += f": dev {self.plan.select} {value:.2f}{dev_sample_note(dev)}{best}"
            self.logged = time.monotonic()
        info(f"{said}; {self.guided}" if self.guided else said)

    def _measured(self, evaluate: Measure) -> dict[str, float]:
        """Dev figures of the weights that would be kept."""
        with self._kept() as model:
            return {name: float(value) for name, value in evaluate(model).items()}

    @contextmanager
    def _kept(self) -> Iterator[RetrievalModel]:
        """The model in evaluation mode, with the weights that would be kept."""
        self.step.eval()
        lent = self.average.in_place_of(self.step.model) if self.average else nullcontext()
        with torch.no_grad(), lent:
            yield self.step.model
        self.step.train()

    def _save(self, metrics: MetricsLog) -> None:
        at = self.at
        at.window, at.windowed = self.window.sums(), self.window.steps
        at.counted = self.window.counts()
        check_finite_losses(at.window, at.step)
        at.since, at.told = self.collapse.since, self.collapse.told
        at.metrics, at.seconds = metrics.bytes, time.monotonic() - self.began
        self.checkpoints.save(self.moving, at)
        if self.lists:
            self.lists.tidy(at.lists)

    def _hand_over(self, why: StopReason) -> None:
        """Leave the model with the weights of the best epoch, or the latest where it stopped."""
        if why == "finished" and self.at.best:
            self.step.model.load_state_dict(self.checkpoints.load_best(self.at.best))
        elif self.average:
            self.step.model.load_state_dict(self.average.shadow)
        self.step.eval()


_NEVER, _FROM_ALL = RemineConfig(), SamplingConfig()


def fit(
    plan: TrainConfig,
    model: RetrievalModel,
    objective: WeightedSum,
    train: ProcessedDataset,
    *,
    folder: Path,
    draws: NegativeSampler | None = None,
    candidates: NegativeSampler | None = None,
    proposer: OnlineMiner | None = None,
    guide: TargetSource | None = None,
    positives: Positives = "id",
    refresh: RemineConfig = _NEVER,
    draw: SamplingConfig = _FROM_ALL,
    neighbours: NeighbourImages | None = None,
    evaluate: Measure | None = None,
    run: str = "",
    resume: bool = False,
) -> TrainResult:
    """Train a model in place; with `resume`, from the last checkpoint in the folder on.

    Every process of a group calls this with the same arguments.

    Args:
        plan: how to train.
        model: the model, with the weights to begin from.
        objective: the loss.
        train: the training split as the model sees it.
        folder: where ``metrics.jsonl`` and ``checkpoints/`` are written.
        draws: negatives drawn before a batch is encoded.
        candidates: what the proposer screens.
        proposer: candidates that depend on the model as it is now.
        guide: soft targets.
        positives: which pairs are true.
        refresh: when the model mines `train` anew; from then on its own lists are drawn from, kept
            in ``lists/``.
        draw: how to draw from them.
        neighbours: who else joins the captions of a batch as an anchor.
        evaluate: dev figures of the model in evaluation mode, after each epoch; every process
            calls it. `plan.select` is one of them.
        run: digest of what else the numbers depend on: the recipe, the weights to begin from.
        resume: go on from the last checkpoint, if there is one; else earlier ones are removed.

    Raises:
        ValueError: what the objective needs is not provided, or not early enough, a tracker is not
            installed, the loss is not finite, or the checkpoint is damaged or belongs to another
            training.
    """
    check_trackers(plan.track)
    needed = RoleSubset(draws, objective.needs) if draws else None
    offered = _offered(candidates, proposer, objective)
    stream = replace(_stream(plan, train, needed, offered, positives), neighbours=neighbours)
    later = _later(refresh, objective, draw, stream)
    step = TrainingStep(
        model,
        objective,
        proposer=proposer,
        guide=guide,
        seed=plan.seed,
        provides=needed.provides if needed else later,
        precision=plan.precision,
    ).to(distributed.device())
    if isinstance(guide, nn.Module):
        guide.to(distributed.device())
    numbers = [run, plan.numbers(), train.dataset.fingerprint, positives, _shapes(step)]
    key = digest([*numbers, asdict(refresh), asdict(draw)] if later else numbers)
    lists = Reminer(refresh, stream, draw, later, folder / "lists", key) if later else None
    saved = CheckpointFolder(folder / "checkpoints", key)
    training = Trainer(plan, step, stream, saved, evaluate, lists)
    return training.run(folder / "metrics.jsonl", resume=resume)


def sampler_of(plan: TrainConfig, dataset: ImageTextDataset) -> BatchSampler:
    """Which captions of a data set meet."""
    return BatchSampler(
        dataset.relation,
        batch=plan.batch,
        seed=plan.seed,
        one_caption=plan.one_caption,
        drop_last=plan.drop_last,
        all_captions=plan.all_captions,
    )


def _offered(
    candidates: NegativeSampler | None, proposer: OnlineMiner | None, objective: WeightedSum
) -> RoleSubset | None:
    """Candidates in the roles that are screened and judged."""
    provided = candidates.provides if candidates else frozenset[Role]()
    check_candidates(provided, screens_lists(proposer), objective.needs)
    return RoleSubset(candidates, objective.needs) if candidates else None


def _stream(
    plan: TrainConfig,
    train: ProcessedDataset,
    draws: RoleSubset | None,
    candidates: RoleSubset | None,
    positives: Positives,
) -> BatchStream:
    return BatchStream(
        processor=train,
        sampler=sampler_of(plan, train.dataset),
        epochs=plan.epochs,
        seed=plan.seed,
        draws=draws,
        candidates=candidates,
        positives=positives,
    )


def _later(
    refresh: RemineConfig, objective: WeightedSum, draw: SamplingConfig, stream: BatchStream
) -> frozenset[Role]:
    """Roles that will be drawn from lists which the model mines while it is trained."""
    if not refresh.every:
        return frozenset()
    batches, listed = len(stream.sampler), stream.draws is not None
    check_remine(refresh, objective, draw, batches=batches, listed=listed)
    return OfflineNegativeSampler.provides & objective.needs


def _shapes(step: TrainingStep) -> list[tuple[str, list[int]]]:
    return [(name, list(value.shape)) for name, value in step.state_dict().items()]
