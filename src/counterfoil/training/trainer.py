"""Train a model: epochs of steps, the best epoch on dev kept, resumable at any step.

`Trainer` is the public class; `train_network` trains a bare network, as stages of recipes do too;
`TrainingLoop` is the loop that all share with pre-training.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, cast, final

import torch
from torch import Tensor, nn

from counterfoil import __version__
from counterfoil.core import distributed
from counterfoil.core.config import Config, digest, parse_choice
from counterfoil.core.console import detail, info, progress, warn
from counterfoil.core.io import check_room
from counterfoil.core.registry import added
from counterfoil.core.resumable import WorkStopped, difference
from counterfoil.data.batching import BatchSampler, ImagePartition
from counterfoil.data.dataset import ImageTextDataset, check_dataset
from counterfoil.data.processor import ProcessedDataset
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.losses.base import Loss, LossFunction, WeightedSum, as_loss
from counterfoil.model import MODEL, Model, as_model, load_model
from counterfoil.models.base import PretrainedPart, RetrievalModel, SupportsLoRA
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.negatives.sources import NegativeSource, having, with_asked
from counterfoil.saved import CARD, SavedModelCard, reopening_call
from counterfoil.training.batches import BatchStream, prefetch
from counterfoil.training.callbacks import (
    Callback,
    CollapseWarning,
    DevEvaluation,
    DevMetrics,
    MetricsLogger,
    dev_sample_note,
    warm_up_batches,
    warm_up_steps,
)
from counterfoil.training.checkpoint import (
    BestEpoch,
    CheckpointFolder,
    TrainProgress,
    TrainState,
    seed_everything,
    state_shapes,
)
from counterfoil.training.config import (
    FRESH_STEPS,
    TUNED_STEPS,
    CosineLR,
    OptimizerConfig,
    TrainConfig,
    WeightAverage,
    adapter_config,
)
from counterfoil.training.logging import MetricsLog, check_trackers, read_metrics
from counterfoil.training.mined import Mined
from counterfoil.training.record import training_record
from counterfoil.training.step import (
    B,
    BatchSource,
    OptimizerStep,
    TrainableModule,
    TrainingStep,
    check_sources,
    check_tiled,
    checkpointed,
    source_names,
)
from counterfoil.training.stopping import (
    FEW_STEPS,
    UNKNOWN,
    Convergence,
    StopMonitor,
    StopReason,
    loss_convergence,
    watch_for_stop,
)

# share of the batches to which a warm-up of the loss is cut: a fifth is too few from a cold start
_WARM_UP = 0.6
_LONGEST = 0.9  # share of the batches beyond which it is
_LINES = 3  # of a training, where its epochs are short
_QUIET = 600  # seconds after which an epoch has its line anyway


@final
@dataclass(frozen=True, slots=True)
class TrainResult:
    """The outcome of a training."""

    steps: int  # optimiser steps made
    epochs: int  # whole epochs made
    best: BestEpoch | None  # on dev; None without dev evaluation
    stop_reason: StopReason  # "finished", or why it stopped early; it can then be resumed
    seconds: float  # training time over all sessions
    metrics: Path  # of ``metrics.jsonl``
    planned: int  # optimiser steps, if dev goes on improving
    convergence: Convergence | None  # whether more steps may help; None if it was stopped
    keep_last: bool  # `best` is the last epoch, whatever dev says
    warm_up: int = 0  # first steps with another loss, whose epochs were not kept
    first: int = 0  # epoch that competed on dev

    @property
    def finished(self) -> bool:
        """True if all steps were made, or dev did not improve any more."""
        return self.stop_reason == "finished"

    @property
    def kept(self) -> str:
        """The epoch whose weights were kept, and why, in words."""
        if self.best and self.chosen:
            return f"epoch {self.best.epoch}, the best on dev"
        return f"epoch {self.best.epoch if self.best else self.epochs}, the last"

    @property
    def chosen(self) -> bool:
        """True if dev chose among several epochs."""
        if self.best is None or self.keep_last:
            return False
        return self.first < self.best.epoch or self.best.step < self.steps

    @property
    def improving(self) -> bool:
        """True if more steps may help."""
        return self.convergence is not None and self.convergence.state == "still improving"

    def provenance(
        self,
        plan: TrainConfig,
        data: ImageTextDataset,
        *,
        train: ImageTextDataset,
        dev: ImageTextDataset | None,
        **details: Any,
    ) -> dict[str, Any]:
        """Origin of the trained weights, JSON-ready; `details` are those of `training_record`."""
        record = training_record(plan, train=train, dev=dev, steps=self.steps, **details)
        return {
            "data": data.name,
            "data_fingerprint": data.fingerprint,
            "seed": plan.seed,
            "epochs": self.epochs,
            "kept": self.kept,
            "convergence": self.convergence and asdict(self.convergence),
            "warm_up": self.warm_up,
            "training": record,
        }


@final
class TrainingLoop(Generic[B]):
    """Epochs of optimiser steps, with callbacks and checkpoints.

    Callbacks run in the given order, before the loop's own logging and collapse warning. They may
    set `stop_reason` in `Callback.on_epoch_begin`, and add to `summary`, the line printed at the
    end of the epoch.
    """

    metrics: MetricsLog  # the open ``metrics.jsonl``, while training
    stop: StopMonitor  # time limit and signals, while training

    def __init__(
        self,
        config: TrainConfig,
        module: TrainableModule[B],
        stream: BatchSource[B],
        checkpoints: CheckpointFolder,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.config, self.module, self.stream = config, module, stream
        self.checkpoints = checkpoints
        # the logger runs after mining and dev evaluation, so that their time is not that of steps
        self.callbacks = [*callbacks, MetricsLogger(), CollapseWarning()]
        self.batches_per_epoch = len(stream.sampler)
        self.per_epoch = config.steps_per_epoch(self.batches_per_epoch)
        self.total = config.total(self.batches_per_epoch)
        self.epochs = config.all_epochs(self.batches_per_epoch)
        self.apart = config.epochs_per_evaluation(self.batches_per_epoch)  # evaluations, in epochs
        warm_up = warm_up_steps(module, config.accumulate)
        self.warm_up = warm_up if warm_up < self.total else 0  # steps whose epochs do not compete
        # before the optimiser and the average are built: both read which parameters are trained
        seed_everything(config.seed)
        config.optimiser.freeze_in(module)
        self.update = OptimizerStep(config, module)
        self.average = WeightAverage(module.model, config.average) if config.average else None
        shadow = self.average.shadow if self.average else {}
        self.state = TrainState(module, self.update.optimiser, shadow)
        self.progress, self.resumed, self.summary = TrainProgress(), False, ""
        self._told = time.monotonic()  # when the last line was printed
        self.stop_reason: StopReason = "finished"
        self.began = time.monotonic()

    @property
    def epoch(self) -> int:
        """Epochs begun, the present one included."""
        return -(-self.progress.step // self.per_epoch)

    @property
    def ends_epoch(self) -> bool:
        """True if the last step begun ends an epoch, or the training."""
        return self.progress.step % self.per_epoch == 0 or self.progress.step == self.total

    @property
    def evaluates(self) -> bool:
        """True if dev is measured, and a checkpoint written, after the last step begun."""
        return self.ends_epoch and (
            self.epoch % self.apart == 0 or self.progress.step == self.total
        )

    @property
    def plateaued(self) -> bool:
        """True if the last evaluations on dev, as many as the patience, were not better.

        Told from the steps made and the best one alone, so that a resumed training stops where one
        in a single go does.
        """
        best, patience = self.progress.best, self.config.patience
        if not patience or best is None:
            return False
        rounds = self.per_epoch * self.apart  # steps
        return self.progress.step // rounds - best.step // rounds >= patience

    @property
    def logs(self) -> bool:
        """True if the last step begun gets a line of metrics."""
        return self.ends_epoch or self.progress.step % self.config.log_every == 0

    def run(self, path: Path, *, resume: bool) -> TrainResult:
        """Train to the end, or until a time limit or a signal; write ``metrics.jsonl`` to `path`.

        With `resume` it continues from the last checkpoint, if there is one.
        """
        self._restore(resume=resume)
        config, start = self.config, self.progress.step
        with (
            MetricsLog(
                path, keep=self.progress.metrics, track=config.track, step=start
            ) as self.metrics,
            watch_for_stop(config.minutes, config.save_minutes) as self.stop,
            progress("training steps", self.total, start) as advance,
        ):
            while self.progress.step < self.total and self.stop_reason == "finished":
                if self.plateaued:
                    break
                self._run_epoch(advance)
        self._load_result()
        for callback in self.callbacks:
            callback.on_train_end(self)
        at, epochs = self.progress, self.progress.step // self.per_epoch
        return TrainResult(
            steps=at.step,
            epochs=epochs,
            best=at.best,
            stop_reason=self.stop_reason,
            seconds=at.seconds,
            metrics=path,
            planned=self.total,
            convergence=self._convergence(path) if self.stop_reason == "finished" else None,
            keep_last=self.config.keep_last,
            warm_up=self.warm_up,
            first=at.first,
        )

    def _convergence(self, metrics: Path) -> Convergence:
        """Tell by dev where it chooses the epoch, else by the training loss."""
        at, config = self.progress, self.config
        if at.best is None:
            why = "there is no dev split to tell by"
        elif config.keep_last and config.least_dev:
            why = f"dev has fewer than {config.least_dev} images, too few to tell by"
        elif at.first == self.epoch:
            after = " behind the warm-up of the loss" if self.warm_up else ""
            why = f"a single evaluation on dev{after} tells nothing"
        elif at.rising:
            return Convergence(
                "still improving", "the last evaluation on dev was the best, so more steps may help"
            )
        elif at.step < FEW_STEPS:
            why = f"dev was no better after epoch {at.best.epoch}, of so few steps"
            return Convergence(UNKNOWN, f"{why} ({at.step:,} in all)")
        elif config.keep_last:
            return Convergence("converged", "an evaluation on dev before the last was as good")
        elif at.best.step == at.step:
            return Convergence(
                UNKNOWN,
                "the last evaluation on dev was the best behind the warm-up of the loss, but one "
                "inside it was as good",
            )
        else:
            return Convergence("converged", f"dev was no better after epoch {at.best.epoch}")
        lines = read_metrics(metrics) if metrics.exists() else []
        settled = warm_up_steps(self.module, config.accumulate)
        return loss_convergence(lines, steps=at.step, settled=settled, why=why)

    def save(self) -> None:
        """Write a checkpoint; every process calls this."""
        for callback in self.callbacks:
            callback.on_checkpoint(self)
        # bytes of the metrics file that belong to these steps: resuming cuts off the rest
        self.progress.metrics = self.metrics.bytes
        self.progress.seconds = time.monotonic() - self.began
        self.checkpoints.save(self.state, self.progress)
        for callback in self.callbacks:
            callback.on_checkpoint_saved(self)

    @contextmanager
    def evaluation_model(self) -> Iterator[RetrievalModel]:
        """Yield the model in evaluation mode, with averaged weights if there are any."""
        self.module.eval()
        averaged = self.average.in_place_of(self.module.model) if self.average else nullcontext()
        with torch.no_grad(), averaged:
            yield self.module.model
        self.module.train()

    def evaluation_weights(self) -> Mapping[str, Tensor]:
        """The weights of `evaluation_model`."""
        return self.average.shadow if self.average else self.module.model.state_dict()

    def _restore(self, *, resume: bool) -> None:
        restored = self.checkpoints.restore(self.state) if resume else None
        if restored is None:
            self.checkpoints.clear()
        else:
            self.progress, self.resumed = restored, True
        self.began = time.monotonic() - self.progress.seconds
        for callback in self.callbacks:
            callback.on_train_begin(self)
        self.module.train()

    def _run_epoch(self, advance: Callable[[int], None]) -> None:
        """Make the steps of the present epoch that are left, or those before a stop."""
        for callback in self.callbacks:
            callback.on_epoch_begin(self)
        if self.stop_reason != "finished":
            return
        with prefetch(self._epoch_batches(), self.config.ahead) as batches:
            # a group may be short at the end of an epoch only: groups do not span epochs
            while group := list(islice(batches, self.config.accumulate)):
                self._train_step(group, advance)
                if self._save_or_stop():
                    return

    def _epoch_batches(self) -> Callable[[], Iterator[B]]:
        """Return a function that yields the batches left in this epoch, on the device.

        The device is read here because the thread that reads ahead has a current device of its own.
        """
        start = self.progress.step
        end = min((start // self.per_epoch + 1) * self.per_epoch, self.total)
        first, device, stream = self._first_batch(start), distributed.device(), self.stream
        count = self._first_batch(end) - first
        return lambda: (batch.to(device) for batch in islice(stream.batches(first), count))

    def _first_batch(self, step: int) -> int:
        """Number of the first batch of a step; the last step of an epoch may have fewer."""
        epoch, place = divmod(step, self.per_epoch)
        return epoch * self.batches_per_epoch + place * self.config.accumulate

    def _train_step(self, group: Sequence[B], advance: Callable[[int], None]) -> None:
        step, epoch = self.progress.step, self.progress.step // self.per_epoch
        factor = self.config.schedule.factor(step, per_epoch=self.per_epoch, total=self.total)
        self.progress.step += 1
        self.module.watch.wanted = self.logs
        losses = self.update(group, factor, epoch=epoch)
        if self.average:
            self.average.update(self.module.model)
        advance(1)
        for callback in self.callbacks:
            callback.on_step_end(self, group, losses)
        if self.ends_epoch:
            self.summary = f"epoch {self.epoch} of {self.epochs}"
            for callback in self.callbacks:
                callback.on_epoch_end(self)
            self._tell()

    def _tell(self) -> None:
        """Print the epoch's line: of many short epochs, some and the last."""
        if not self.evaluates:
            return
        number, rounds = (-(-epochs // self.apart) for epochs in (self.epoch, self.epochs))
        last = self.epoch == self.epochs or self.plateaued
        waited = time.monotonic() - self._told > _QUIET
        if last or waited or number == 1 or number % -(-rounds // _LINES) == 0:
            detail(self.summary)
            self._told = time.monotonic()

    def _save_or_stop(self) -> bool:
        """Write a checkpoint when one is due; return whether training stops here."""
        # a stop is agreed on by a collective call, so several processes check at logged steps only
        if not self.logs and distributed.size() > 1:
            return False
        reason, due = self.stop.decide()
        if self.evaluates or due:
            self.save()
            self.stop.saved()
        if reason and self.progress.step < self.total:
            self.stop.mark_handled()
            self.stop_reason = reason
        return self.stop_reason != "finished"

    def _load_result(self) -> None:
        """Load the weights of the best epoch, or the latest ones of a training that stopped."""
        best = self.progress.best
        if self.stop_reason == "finished" and best:
            if best.step < self.progress.step:  # its own line may be one of those left out
                figure = f"dev {self.config.select} {best.value:.2f}{dev_sample_note(best.dev)}"
                info(f"epoch {best.epoch} of {self.epochs} is kept: {figure}")
            self.module.model.load_state_dict(self.checkpoints.load_best(best))
        elif self.average:
            self.module.model.load_state_dict(self.average.shadow)
        self.module.eval()


def train_network(
    config: TrainConfig,
    network: RetrievalModel,
    loss: WeightedSum,
    train: ProcessedDataset,
    *,
    folder: Path,
    sources: Sequence[NegativeSource] = (),
    evaluate: DevMetrics | None = None,
    callbacks: Sequence[Callback] = (),
    run: str = "",
    asked: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> TrainResult:
    """Train a network in place; `Trainer` does this with a model, and saves it.

    Every process of a group calls this with the same arguments. ``metrics.jsonl``, ``checkpoints/``
    and re-mined ``lists/`` are written to the folder. The `sources` have been checked with the
    model and the data, see `NegativeSource.check`. `evaluate` measures the network after each
    epoch, on every process, and `config.select` is one of its figures. `run` is a digest of
    everything else that the weights depend on, such as the recipe and the initial weights; `asked`
    are such things by name, to say which of them differs where a checkpoint is not resumed. With
    `resume` it continues from the last checkpoint, if there is one; else earlier ones are removed.

    Raises:
        ValueError: what the loss needs is not given, or not early enough, a batch of the whole
            split meets something that needs its score matrix, a tracker is not installed, the
            loss is not finite, or the checkpoint is damaged or belongs to another training.
    """
    check_trackers(config.track)
    train.dataset.check_wrong_pairs()
    if not config.batch:
        check_tiled(loss, network, source_names(sources))
    check_sources(loss, network, sources)
    composing = having(sources, "partition")
    if len(composing) > 1:
        names = " and ".join(type(source).__name__ for source in composing)
        raise ValueError(f"{names} both choose who shares a batch; leave one of the two out")
    sampler = sampler_of(
        config, train.dataset, composing[0] if composing else None, together=loss.uses_extra
    )
    for source in with_asked(sources):
        source.begin(network, train, loss, batches=len(sampler))
    stream = BatchStream(
        processor=train,
        sampler=sampler,
        epochs=config.all_epochs(len(sampler)),
        seed=config.seed,
        sources=tuple(sources),
    )
    step = TrainingStep(
        network,
        loss,
        sources=sources,
        seed=config.seed,
        precision=config.precision,
        chunk=config.grad_cache,
        tiled=not config.batch,
        pace=_warm_up_pace(config, loss, sources, len(sampler)),
    ).to(distributed.device())
    facts: dict[str, Any] = {
        **(asked or {}),
        "plan": config.numbers(),
        "data": train.dataset.fingerprint,
        "positives": train.dataset.positives,
        "weights": dict(train.dataset.datasets),
        "run": run,
    }
    if "sources" not in facts:  # a `Trainer` has described them: digests of lists and teachers
        facts["sources"] = [source.describe() for source in sources]
    key = digest([facts, state_shapes(step)])
    hooks: list[Callback] = [DevEvaluation(evaluate)] if evaluate else []
    for source in sources:
        hooks += source.callbacks(folder, key)
    checkpoints = CheckpointFolder(folder / "checkpoints", key, facts)
    loop = TrainingLoop(config, step, stream, checkpoints, [*hooks, *callbacks])
    _warn_long_warmup(config, loop.total)
    _check_room(checkpoints.folder, config, step)
    with checkpointed(network) if config.gradient_checkpointing else nullcontext():
        return loop.run(folder / "metrics.jsonl", resume=resume)


def _warm_up_pace(
    config: TrainConfig, loss: WeightedSum, sources: Sequence[NegativeSource], batches: int
) -> Fraction:
    """The pace of the schedules of a loss, above 1 where they would leave it hardly a step.

    A warm-up in numbers of a large data set would be all that a small one is trained with, so it is
    cut to `_WARM_UP` of the batches. `batches` make an epoch.
    """
    settled, per_epoch = warm_up_batches(loss), config.steps_per_epoch(batches)
    planned = config.total(batches) * batches // per_epoch
    if settled <= _LONGEST * planned:
        return Fraction(1)
    waits = any(isinstance(source, Mined) and source.negatives is None for source in sources)
    cut = int(_WARM_UP * planned)
    if waits or not cut:
        warn(
            f"the loss warms up for {settled:,} batches and {planned:,} are planned, so it is "
            "hardly reached; set more epochs"
        )
        return Fraction(1)
    info(
        f"the loss would warm up for {settled:,} of {planned:,} batches, so its warm-up is cut to "
        f"{cut:,}"
    )
    return Fraction(settled, cut)


def _check_room(folder: Path, plan: TrainConfig, step: nn.Module) -> None:
    """Refuse to train where the disk has no room for a checkpoint."""
    trained = sum(value.nbytes for value in step.parameters() if value.requires_grad)
    moments = 2 if plan.optimiser.rule.startswith("adam") else 0
    check_room(folder, (1 + moments) * trained)  # at least


def _warn_long_warmup(plan: TrainConfig, steps: int) -> None:
    """Warn of a warm-up over all steps, which full batches make likely: an epoch is one step."""
    if not plan.batch and plan.schedule.warmup >= steps:
        warn(
            f"with batch=0 an epoch is one step, and the learning rate rises for "
            f"{plan.schedule.warmup:g} of {steps} steps; set more epochs, or a shorter warmup"
        )


def sampler_of(
    plan: TrainConfig,
    dataset: ImageTextDataset,
    partition: ImagePartition | None = None,
    *,
    together: bool = False,
) -> BatchSampler:
    """Return the sampler of the captions that make a batch; for `together` see `BatchSampler`.

    Raises:
        ValueError: batches of one data set each or weights are set where they have no effect.
    """
    homogeneous, parts = plan.homogeneous_batches, dataset.parts
    weights = [dataset.datasets[name] for name in parts]
    weighted = any(weight != 1 for weight in weights)
    if homogeneous and not parts:
        raise ValueError(
            f"homogeneous_batches fills each batch from one of several data sets, and "
            f"{dataset.name} is one; leave it out, or give it what `concatenate_datasets` makes"
        )
    if weighted and (not plan.batch or (partition and not homogeneous)):
        other = "MinedBatches" if plan.batch else "batch=0, all captions once"
        raise ValueError(
            f"weights of data sets do not go with {other}; leave one of the two out, or set "
            "homogeneous_batches and a batch"
        )
    several = len(parts) > 1 and (homogeneous or weighted)
    for name, images in parts.items() if several else ():
        if not dataset.relation.counts[images].any():
            raise ValueError(
                f"{name} has no captions in {dataset.split_name}, and weights and "
                "homogeneous_batches draw captions of each data set; leave it out"
            )
    return BatchSampler(
        dataset.relation,
        batch=plan.batch or max(len(dataset.texts), 1),
        seed=plan.seed,
        one_caption=plan.one_caption,
        drop_last=plan.drop_last and plan.batch > 0,
        all_captions=plan.all_captions,
        partition=partition,
        together=together,
        parts=list(parts.values()) if several else (),
        weights=weights if several else (),
        homogeneous=several and homogeneous,
    )


# The public class: takes a Model and returns a Model.


@final
class Trainer:
    """Trains a model on a data set and saves the result in a folder.

    The folder holds ``model/``, which `load_model` opens, ``metrics.jsonl``, and, until training
    is finished, ``checkpoints/``. With a dev split the weights of the best epoch are returned,
    else those of the last.

    Args:
        model: the model to train, in place.
        loss: one of `counterfoil.losses`, any function or module ``(scores, positives[, mask])``
            that returns a scalar, see `counterfoil.losses.own.OwnLoss`, or a weighted sum.
        train: the data set to train on.
        dev: the split that selects the best epoch.
        sources: of negatives, for losses that need more than the batch, of batches that are hard,
            and of targets, such as ``[Mined(negatives), Teachers(large)]``; see
            `counterfoil.negatives.sources`. Random numbers depend on the seed, the source and the
            step alone.
        output: the folder to write.
        epochs: passes over the training captions.
        batch_size: captions in a batch, over all processes; 0 for all, see `TrainConfig`.
        lr: learning rate.
        seed: of the order, the draws and the dropout.
        resume: continue from the last checkpoint in `output`, if there is one.
        config: all further settings; what is None above comes from here. None for settings that
            fit the model and the data: AdamW with 1e-5 for pretrained towers, 2e-4 for LoRA, for
            adapters behind frozen towers 4e-4 in batches of 512 (2e-4 and 128 of fewer than 512
            captions), and Adam with 2e-4 for other models; on few captions all but adapters make
            more epochs, for a least number of steps, and stop early, see
            `TrainConfig.least_steps`. Neither is done where `epochs` is given.
        callbacks: hooks of the training loop.

    Raises:
        ValueError: the loss needs what no source gives, a source gives what the loss does not need
            or does not fit the model or the data, the model could not be opened again, or `output`
            holds another training.

    >>> trainer = Trainer(model, loss=AdaptiveQuintuplet(), train=data["train"], dev=data["dev"],
    ...                   sources=[Mined(negatives)], output="runs/a", epochs=5)  # doctest: +SKIP
    >>> tuned = trainer.train()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Model,
        *,
        loss: Loss | LossFunction | WeightedSum,
        train: ImageTextDataset,
        dev: ImageTextDataset | None = None,
        sources: NegativeSource | Sequence[NegativeSource] = (),
        output: str | Path,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        seed: int | None = None,
        resume: bool = False,
        config: TrainConfig | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        model = as_model(model)
        for data, like in ((train, 'data["train"]'), (dev, 'data["dev"]')):
            if data is not None:
                check_dataset(data, like)
        objective = _as_objective(loss)
        _check_resumable(objective, resume=resume)
        if isinstance(sources, NegativeSource):
            sources = (sources,)
        train.check_captions("to train on")
        _warn_of_splits(train, dev)
        if dev is not None:
            dev.check_captions("to choose the best epoch by")
        spec, why = reopening_call(model)
        if spec is None:
            known = [repr(name) for name in added("model")]
            factory = (
                f"a model that a registered factory made, cf.load_model({' or '.join(known)}),"
                if known
                else "a model of a registered factory, @register.model('name'),"
            )
            info(
                f"{why}; so the result opens as cf.load_model({str(output)!r}, into=MODEL), with a "
                f"model built as this one, while {factory} opens by itself"
            )
        model = replace(model, spec=spec)  # with all that the result needs to open
        self.model, self.train_set, self.dev = model, train, dev
        self.objective = objective
        self.sources = tuple(sources)
        check_sources(self.objective, model.model, self.sources)
        for source in with_asked(self.sources):
            source.check(model.model, train)
        config = config or _default_config(model.model, len(train.texts))
        config = config if epochs is None else config.of_epochs(epochs)
        rate = config.optimiser.rate if lr is None else lr
        self.config = replace(
            config,
            batch=config.batch if batch_size is None else batch_size,
            seed=config.seed if seed is None else seed,
            optimiser=replace(config.optimiser, rate=rate),
        )
        if dev is not None:
            self.config = small_dev(self.config, dev)
        if not self.config.batch:
            check_tiled(self.objective, model.model, source_names(self.sources))
        self.output, self.resume = Path(output), resume
        self.callbacks = tuple(callbacks)
        if not resume and any((self.output / name).exists() for name in (MODEL, "metrics.jsonl")):
            raise ValueError(
                f"{self.output} holds a training already; continue it with resume=True, or choose "
                "another folder"
            )

    def __repr__(self) -> str:
        sources = ", ".join(source_names(self.sources)) or "none but the batch"
        terms = [
            f"{weight:g} {cast('Loss', self.objective.terms[name]).title}"
            for name, weight in self.objective.weights.items()
        ]
        config, dev = self.config, "none" if self.dev is None else repr(self.dev)
        return "\n  ".join(
            [
                f"Trainer({self.model.name!r}, output {str(self.output)!r})",
                f"loss: {' + '.join(terms)}; negatives: {sources}",
                f"train: {self.train_set!r}; dev: {dev}",
                f"{config.epochs} epochs in batches of {config.batch or 'all'}, learning rate "
                f"{config.optimiser.rate:g} ({config.optimiser.rule}), seed {config.seed}",
            ]
        )

    def train(self) -> Model:
        """Train, save and return the model; every process of a group calls this.

        Raises:
            ValueError: see `train_network`.
            WorkStopped: a time limit or a signal stopped it; train again with ``resume=True``.
        """
        facts, folder = self._facts(), self.output / MODEL
        if self.resume and (folder / CARD).is_file():
            return self._open_finished(facts)
        if self.dev is None:
            warn(f"{self.output}: no dev split is given, so the last epoch is kept")
        # only the adapters of a frozen model are trained, on vectors encoded once
        body = self.model.model
        trained = body.head if isinstance(body, FrozenWithAdapters) else body
        result = train_network(
            self.config,
            trained,
            self.objective,
            self.model.process(self.train_set),
            folder=self.output,
            sources=self.sources,
            evaluate=dev_figures(self.model, self.dev, self.config.select) if self.dev else None,
            callbacks=self.callbacks,
            run=digest(facts),
            asked=facts,
            resume=self.resume,
        )
        if not result.finished:
            raise WorkStopped(
                f"{self.output}: training stopped after {result.steps} steps "
                f"({result.stop_reason}); train again with resume=True to continue"
            )
        tuned = self._save(result, facts)
        if result.convergence:
            again = (
                f"; cf.Trainer({_again(self.model, self.output)}, …) with another output goes on "
                "from there"
            )
            info(
                f"{self.output}: {result.convergence.state}: {result.convergence.why}"
                f"{again if result.improving else ''}"
            )
        return tuned

    def _facts(self) -> dict[str, Any]:
        """All that the trained weights depend on, by name."""
        return {
            "model": self.model.digest(),
            "loss": _describe_loss(self.objective),
            "train": self.train_set.fingerprint,
            "dev": self.dev and self.dev.fingerprint,
            "positives": self.train_set.positives,
            "weights": dict(self.train_set.datasets),
            "config": self.config.numbers(),
            "sources": [source.describe() for source in self.sources],
        }

    def _open_finished(self, facts: Mapping[str, Any]) -> Model:
        into = None if self.model.spec else self.model
        tuned, plain = load_model(self.output, into=into), json.loads(json.dumps(facts))
        asked = tuned.card.provenance.get("asked", {}) if tuned.card else {}
        if found := difference(asked, plain):
            raise ValueError(
                f"{self.output} holds the result of another training: {found}; choose another "
                "folder"
            )
        return tuned

    def _save(self, result: TrainResult, facts: Mapping[str, Any]) -> Model:
        spec = merge_lora(self.model)
        mined = next((source for source in self.sources if isinstance(source, Mined)), None)
        made = result.provenance(
            self.config,
            self.train_set,
            train=self.train_set,
            dev=self.dev,
            objective=self.objective,
            negatives=mined and mined.negatives,
            sampling=mined and mined.sampling,
        )
        provenance = {"start": self.model.name, "asked": facts, **made}
        metrics = result.best.dev if result.best else {}
        card = SavedModelCard(
            model=spec, provenance=provenance, metrics=metrics, version=__version__
        )
        tuned = replace(self.model, name=str(self.output), spec=spec, card=card)
        if distributed.rank() == 0:
            tuned.save_pretrained(self.output / MODEL)
            shutil.rmtree(self.output / "checkpoints", ignore_errors=True)
        distributed.barrier()
        return tuned


def small_dev(config: TrainConfig, dev: ImageTextDataset) -> TrainConfig:
    """The settings for a dev split, and a word where it is too small to choose an epoch by."""
    fitting = config.on_dev(len(dev))
    if fitting != config:
        info(
            f"{dev.name} has {len(dev)} images of dev, fewer than {config.least_dev}: too few to "
            "choose an epoch by, so the last one is kept"
        )
    return fitting


def _again(start: Model, output: Path) -> str:
    """The argument of a training that goes on from this one's result, as Python."""
    into = "" if start.spec else ", into=MODEL"
    return f"cf.load_model({str(output)!r}{into})"


def dev_figures(model: Model, dataset: ImageTextDataset, select: str = "rsum") -> DevMetrics:
    """Return a function that evaluates weights in training on a data set.

    Of several data sets that were made one, each is ranked by itself, and figures are their means;
    "rsum_coco" is that of the set "coco". The model gives the processor; where the weights in
    training are a part of it, it is evaluated as a whole.

    Raises:
        ValueError: `select` is the figure of a set that has no captions here.
    """
    sets = {name: each for name, each in dataset.separate().items() if each.texts}
    if sets and select.startswith("rsum_"):
        known = ["rsum", *(f"rsum_{name}" for name in sets)]
        parse_choice(known, select, "a dev figure to select by")

    def figures(full_model: Model, dataset: ImageTextDataset) -> dict[str, float]:
        report = evaluate_protocol([full_model.embed(dataset)], dataset)
        return {
            "rsum": report.rsum,
            **{f"i2t_{key}": recall for key, recall in report.i2t.recalls.items()},
            **{f"t2i_{key}": recall for key, recall in report.t2i.recalls.items()},
        }

    def evaluate(trained: RetrievalModel) -> Mapping[str, float]:
        inside = any(part is trained for part in model.model.modules())
        full_model = model if inside else replace(model, model=trained)
        if not sets:
            return figures(full_model, dataset)
        each = {name: figures(full_model, one) for name, one in sets.items()}
        keys = next(iter(each.values()))
        means = {key: fmean(one[key] for one in each.values()) for key in keys}
        return means | {f"rsum_{name}": one["rsum"] for name, one in each.items()}

    return evaluate


def merge_lora(model: Model) -> Config[Any] | None:
    """Merge low-rank adapters into the weights, unless they stay apart; return the config, if any.

    Adapters of a model without one stay: it is opened into a model that has them.
    """
    network = model.model
    if model.spec is None or not isinstance(network, SupportsLoRA):
        return model.spec
    if not network.lora or network.apart:
        return model.spec
    network.merge()
    return model.spec.replace(lora=0)


def _describe_loss(objective: WeightedSum) -> list[object]:
    """Classes, weights and settings of a loss, JSON-ready, for a digest."""
    losses = [(n, part) for n, part in objective.named_modules() if isinstance(part, Loss)]
    return [
        objective.weights,
        [[name, type(loss).__name__, loss.describe()] for name, loss in losses],
    ]


def _as_objective(loss: object) -> WeightedSum:
    return (
        loss if isinstance(loss, WeightedSum) else WeightedSum(terms={"loss": (1.0, as_loss(loss))})
    )


def _check_resumable(objective: WeightedSum, *, resume: bool) -> None:
    """Refuse to resume with a loss that nothing knows again; say so before the first training."""
    for part in objective.modules():
        if isinstance(part, Loss) and part.unresumable:
            said = (
                f"a training with the loss {part.title} cannot be resumed with the same numbers: "
                f"{part.unresumable}; write it as a function of its own, def my_loss(scores, "
                "positives): …, or as a module whose state are parameters and buffers"
            )
            if resume:
                raise ValueError(said)
            info(said)


def _warn_of_splits(train: ImageTextDataset, dev: ImageTextDataset | None) -> None:
    """Say where a model is trained on more than a split of training, or chosen on what it saw."""
    if len(train.split_names) > 1:
        warn(
            f"train holds the splits {', '.join(train.split_names)} of {train.name}, and all of "
            'them are trained on; write data["train"] for that split'
        )
    shared = set(train.image_ids) & set(dev.image_ids) if dev is not None else set[str]()
    if shared and dev is not train:
        warn(
            f"train and dev share {len(shared):,} images, such as {min(shared)!r}; the best epoch "
            "is chosen on pictures that were trained on"
        )


def _default_config(model: RetrievalModel, captions: int) -> TrainConfig:
    """Settings for fine-tuning pretrained towers, as in the CLIP recipes, or for other models."""
    rate = 1e-5
    if isinstance(model, FrozenWithAdapters):
        return adapter_config(captions)
    if isinstance(model, SupportsLoRA) and model.lora:
        rate = 2e-4
    elif not any(isinstance(part, PretrainedPart) for part in model.modules()):
        return TrainConfig().everyday(FRESH_STEPS)
    optimiser = OptimizerConfig(rule="adamw", rate=rate, decay=0.01)
    schedule = CosineLR(warmup=0.1)
    plan = TrainConfig(epochs=5, batch=64, optimiser=optimiser, schedule=schedule)
    return plan.everyday(TUNED_STEPS)
