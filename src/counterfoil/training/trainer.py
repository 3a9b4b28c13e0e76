"""Train a model: epochs of steps, the best epoch on dev kept, resumable at any step.

`Trainer` is the public class, `fit` the function with all settings, which pipeline stages call, and
`TrainingLoop` the loop that both share with pre-training.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Protocol, cast, final

import torch
from torch import Tensor, nn

from counterfoil.core import distributed
from counterfoil.core.config import Config, digest
from counterfoil.core.console import info, progress, warn
from counterfoil.core.io import check_room
from counterfoil.core.resumable import WorkStopped, difference
from counterfoil.core.types import Role
from counterfoil.data.batching import BatchSampler, ImagePartition
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import ProcessedDataset
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.losses.ndgl import MarginDistillationLoss, distillation_settings
from counterfoil.model import MODEL, Model, load_model
from counterfoil.models.base import PretrainedPart, RetrievalModel, SupportsLoRA
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.negatives.batch_mining import BatchMiningConfig, NeighbourBatches
from counterfoil.negatives.online import OnlineMiner
from counterfoil.negatives.sampling import (
    NegativeSampler,
    NeighbourImages,
    OfflineNegativeSampler,
    RoleSubset,
    SamplingConfig,
    check_candidates,
)
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.negatives.teachers import (
    FrozenTeacher,
    GuideMask,
    TargetSource,
    TeacherEnsemble,
)
from counterfoil.saved import CARD, SavedModelCard, check_model_reopens
from counterfoil.training.batches import BatchStream, prefetch
from counterfoil.training.callbacks import (
    Callback,
    CollapseWarning,
    DevEvaluation,
    DevMetrics,
    MetricsLogger,
)
from counterfoil.training.checkpoint import (
    BestEpoch,
    CheckpointFolder,
    TrainProgress,
    TrainState,
    seed_everything,
    state_shapes,
)
from counterfoil.training.config import CosineLR, OptimizerConfig, TrainConfig, WeightAverage
from counterfoil.training.logging import MetricsLog, check_trackers
from counterfoil.training.record import training_record
from counterfoil.training.remine import RemineConfig, Reminer, check_remine
from counterfoil.training.step import (
    B,
    BatchSource,
    OptimizerStep,
    TrainableModule,
    TrainingStep,
    check_tiled,
)
from counterfoil.training.stopping import StopMonitor, StopReason, watch_for_stop


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

    @property
    def finished(self) -> bool:
        """True if all steps were made."""
        return self.stop_reason == "finished"

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
            "best_epoch": self.best.epoch if self.best else self.epochs,
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
        # before the optimiser and the average are built: both read which parameters are trained
        seed_everything(config.seed)
        config.optimiser.freeze_in(module)
        self.update = OptimizerStep(config, module)
        self.average = WeightAverage(module.model, config.average) if config.average else None
        shadow = self.average.shadow if self.average else {}
        self.state = TrainState(module, self.update.optimiser, shadow)
        self.progress, self.resumed, self.summary = TrainProgress(), False, ""
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
                self._run_epoch(advance)
        self._load_result()
        for callback in self.callbacks:
            callback.on_train_end(self)
        at, epochs = self.progress, self.progress.step // self.per_epoch
        return TrainResult(at.step, epochs, at.best, self.stop_reason, at.seconds, path)

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
            self.summary = f"epoch {self.epoch} of {self.config.epochs}"
            for callback in self.callbacks:
                callback.on_epoch_end(self)
            info(self.summary)

    def _save_or_stop(self) -> bool:
        """Write a checkpoint when one is due; return whether training stops here."""
        # a stop is agreed on by a collective call, so several processes check at logged steps only
        if not self.logs and distributed.size() > 1:
            return False
        reason, due = self.stop.decide()
        if self.ends_epoch or due:
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
            self.module.model.load_state_dict(self.checkpoints.load_best(best))
        elif self.average:
            self.module.model.load_state_dict(self.average.shadow)
        self.module.eval()


_NO_REMINING, _WHOLE_LISTS, _NO_MASK = RemineConfig(), SamplingConfig(), GuideMask()
_BATCH_MINING = BatchMiningConfig()


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
    mask: GuideMask = _NO_MASK,
    refresh: RemineConfig = _NO_REMINING,
    draw: SamplingConfig = _WHOLE_LISTS,
    neighbours: NeighbourImages | None = None,
    partition: ImagePartition | None = None,
    evaluate: DevMetrics | None = None,
    callbacks: Sequence[Callback] = (),
    run: str = "",
    asked: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> TrainResult:
    """Train a model in place, with all settings; `Trainer` has a shorter interface.

    Every process of a group calls this with the same arguments. ``metrics.jsonl``, ``checkpoints/``
    and re-mined ``lists/`` are written to the folder. Negatives come from three places: `draws` are
    drawn before a batch is encoded; `candidates` are pairs that the online miner, `proposer`,
    screens with the present model; `refresh` lets the model mine `train` anew, after which `draw`
    says how its own lists are drawn from. `mask` leaves out negatives that the `guide` takes for
    true pairs; `neighbours` join the captions of a batch as anchors; `partition` chooses the images
    of each batch, where None shuffles. `evaluate` measures the model after each epoch, on every
    process, and `plan.select` is one of its figures. `run` is a digest of everything else that the
    weights depend on, such as the recipe and the initial weights; `asked` are such things by name,
    to say which of them differs where a checkpoint is not resumed. With `resume` it continues from
    the last checkpoint, if there is one; else earlier ones are removed.

    Raises:
        ValueError: what the objective needs is not provided, or not early enough, a batch of the
            whole split meets something that needs its score matrix, a tracker is not installed, the
            loss is not finite, or the checkpoint is damaged or belongs to another training.
    """
    check_trackers(plan.track)
    train.dataset.check_wrong_pairs()
    if not plan.batch:
        data = {"negatives": draws, "neighbours": neighbours, "mined_batches": partition}
        check_tiled(objective, model, **data)
    needed = RoleSubset(draws, objective.needs) if draws else None
    stream = BatchStream(
        processor=train,
        sampler=sampler_of(plan, train.dataset, partition, together=objective.uses_extra),
        epochs=plan.epochs,
        seed=plan.seed,
        draws=needed,
        candidates=_needed_candidates(candidates, proposer, objective),
        neighbours=neighbours,
    )
    remined = _remined_roles(refresh, objective, draw, stream)
    step = TrainingStep(
        model,
        objective,
        proposer=proposer,
        guide=guide,
        mask=mask,
        seed=plan.seed,
        provides=needed.provides if needed else remined,
        precision=plan.precision,
        chunk=plan.chunk,
        tiled=not plan.batch,
    ).to(distributed.device())
    if isinstance(guide, nn.Module):  # the step does not register it, so `to` has not moved it
        guide.to(distributed.device())
    positives = train.dataset.positives
    settings = [run, plan.numbers(), train.dataset.fingerprint, positives, state_shapes(step)]
    settings += [] if mask == _NO_MASK else [asdict(mask)]
    key = digest([*settings, asdict(refresh), asdict(draw)] if remined else settings)
    facts: dict[str, Any] = {
        **(asked or {}),
        "plan": plan.numbers(),
        "data": train.dataset.fingerprint,
        "positives": positives,
        "mask": asdict(mask),
        "refresh": asdict(refresh),
        "draw": asdict(draw),
        "run": run,
    }
    hooks: list[Callback] = [DevEvaluation(evaluate)] if evaluate else []
    if remined:
        hooks.append(Reminer(refresh, stream, draw, remined, folder / "lists", key))
    checkpoints = CheckpointFolder(folder / "checkpoints", key, facts)
    loop = TrainingLoop(plan, step, stream, checkpoints, [*hooks, *callbacks])
    _warn_long_warmup(plan, loop.total)
    _check_room(checkpoints.folder, plan, step)
    return loop.run(folder / "metrics.jsonl", resume=resume)


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
    """Return the sampler of the captions that make a batch; for `together` see `BatchSampler`."""
    return BatchSampler(
        dataset.relation,
        batch=plan.batch or max(len(dataset.texts), 1),
        seed=plan.seed,
        one_caption=plan.one_caption,
        drop_last=plan.drop_last and plan.batch > 0,
        all_captions=plan.all_captions,
        partition=partition,
        together=together,
    )


def _needed_candidates(
    candidates: NegativeSampler | None, proposer: OnlineMiner | None, objective: WeightedSum
) -> RoleSubset | None:
    """Candidates in the roles that the miner screens and the objective needs."""
    provided = candidates.provides if candidates else frozenset[Role]()
    screened = proposer.screens if proposer else frozenset[Role]()
    check_candidates(provided, screened, objective.needs)
    return RoleSubset(candidates, objective.needs) if candidates else None


def _remined_roles(
    refresh: RemineConfig, objective: WeightedSum, draw: SamplingConfig, stream: BatchStream
) -> frozenset[Role]:
    """Roles drawn from the lists that the model mines while it is trained."""
    if not refresh.every:
        return frozenset()
    batches, listed = len(stream.sampler), stream.draws is not None
    check_remine(refresh, objective, draw, batches=batches, listed=listed)
    return OfflineNegativeSampler.provides & objective.needs


# The public class: takes a Model and returns a Model.


class StoredNegatives(Protocol):
    """Mined negatives that carry their store, as `mine_hard_negatives` returns them."""

    @property
    def store(self) -> NegativeStore:
        """Ranked lists and their provenance."""
        ...


Negatives = NegativeStore | StoredNegatives | HardNegativeLists | str | Path


@final
class Trainer:
    """Trains a model on a data set and saves the result in a folder.

    The folder holds ``model/``, which `load_model` opens, ``metrics.jsonl``, and, until training
    is finished, ``checkpoints/``. With a dev split the weights of the best epoch are returned,
    else those of the last.

    Args:
        model: the model to train, in place.
        loss: a loss, or a weighted sum of several.
        train: the data set to train on.
        dev: the split that selects the best epoch.
        negatives: mined from `train`, for losses such as `AdaptiveQuintuplet`: the result of
            `mine_hard_negatives`, a store, its lists, or its folder.
        output: the folder to write.
        epochs: passes over the training captions.
        batch_size: captions in a batch, over all processes; 0 for all, see `TrainConfig`.
        lr: learning rate.
        seed: of the order, the draws and the dropout.
        resume: continue from the last checkpoint in `output`, if there is one.
        config: all further settings; what is None above comes from here. None for settings that
            fit the model: AdamW with 1e-5 for pretrained towers, 2e-4 for LoRA, 1e-3 for adapters
            behind frozen towers, and Adam with 2e-4 for other models.
        sampling: how to draw from `negatives`.
        mined_batches: mined from `train`, as `negatives` may be given; batches are composed of
            mutual negatives of these lists, for any loss. None shuffles.
        batch_mining: which neighbours of the lists share a batch.
        callbacks: hooks of the training loop.
        distill: weight of a further loss that keeps the scores of a batch near those of the model
            as it is given, see `counterfoil.losses.ndgl.distillation_settings`; 0 for none.

    Raises:
        ValueError: `distill` is below 0, the loss needs what is not given, the negatives belong to
            another data set, the model could not be opened again, or `output` holds another
            training.

    >>> trainer = Trainer(model, loss=AdaptiveQuintuplet(), train=data["train"], dev=data["dev"],
    ...                   negatives=negatives, output="runs/a", epochs=5)  # doctest: +SKIP
    >>> tuned = trainer.train()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Model,
        *,
        loss: Loss | WeightedSum,
        train: ImageTextDataset,
        dev: ImageTextDataset | None = None,
        negatives: Negatives | None = None,
        output: str | Path,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        seed: int | None = None,
        resume: bool = False,
        config: TrainConfig | None = None,
        sampling: SamplingConfig = _WHOLE_LISTS,
        mined_batches: Negatives | None = None,
        batch_mining: BatchMiningConfig = _BATCH_MINING,
        callbacks: Sequence[Callback] = (),
        distill: float = 0.0,
    ) -> None:
        train.check_captions("to train on")
        if dev is not None:
            dev.check_captions("to choose the best epoch by")
        check_model_reopens(model)
        self.model, self.train_set, self.dev = model, train, dev
        self.objective = (
            loss if isinstance(loss, WeightedSum) else WeightedSum(terms={"loss": (1.0, loss)})
        )
        self.lists, self._negatives = _open_lists(negatives, train), negatives
        self.batch_lists, self.batch_mining = _open_lists(mined_batches, train), batch_mining
        _check_needs(self.objective, self.lists)
        if distill < 0:
            raise ValueError(f"distill={distill}: give a weight from 0, which leaves it out")
        self.distilled = distill > 0
        if self.distilled:
            self.objective = _distilled(self.objective, distill)
        config = config or _default_config(model.model)
        rate = config.optimiser.rate if lr is None else lr
        self.config = replace(
            config,
            epochs=config.epochs if epochs is None else epochs,
            batch=config.batch if batch_size is None else batch_size,
            seed=config.seed if seed is None else seed,
            optimiser=replace(config.optimiser, rate=rate),
        )
        if not self.config.batch:
            data = {
                "negatives": self.lists,
                "mined_batches": self.batch_lists,
                "distill": distill or None,
            }
            check_tiled(self.objective, model.model, **data)
        self.output, self.resume = Path(output), resume
        self.sampling, self.callbacks = sampling, tuple(callbacks)
        if not resume and any((self.output / name).exists() for name in (MODEL, "metrics.jsonl")):
            raise ValueError(
                f"{self.output} holds a training already; continue it with resume=True, or choose "
                "another folder"
            )

    def train(self) -> Model:
        """Train, save and return the model; every process of a group calls this.

        Raises:
            ValueError: see `fit`.
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
        relation, sampler = self.train_set.relation, None
        if self.lists:
            sampler = OfflineNegativeSampler(
                lists=self.lists, relation=relation, plan=self.sampling
            )
        partition = None
        if self.batch_lists:
            partition = NeighbourBatches(self.batch_lists, relation, self.batch_mining)
        inputs, guide = self.model.process(self.train_set), None
        if self.distilled:
            original = deepcopy(trained)
            teacher = FrozenTeacher(
                model=original, processor=inputs, inputs="clean", weight=(1.0, 0.0)
            )
            guide = TeacherEnsemble(teachers=(teacher,))
        result = fit(
            self.config,
            trained,
            self.objective,
            inputs,
            folder=self.output,
            draws=sampler,
            partition=partition,
            guide=guide,
            evaluate=dev_figures(self.model, self.dev) if self.dev else None,
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
        return self._save(result, facts)

    def _facts(self) -> dict[str, Any]:
        """All that the trained weights depend on, by name."""
        lists, batches = (
            mined and _tensors_digest(mined.texts, mined.images)
            for mined in (self.lists, self.batch_lists)
        )
        return {
            "model": self.model.digest(),
            "loss": _describe_loss(self.objective),
            "train": self.train_set.fingerprint,
            "dev": self.dev and self.dev.fingerprint,
            "positives": self.train_set.positives,
            "config": self.config.numbers(),
            "negatives": lists,
            "sampling": asdict(self.sampling),
            "mined_batches": batches,
            "batch_mining": asdict(self.batch_mining),
        }

    def _open_finished(self, facts: Mapping[str, Any]) -> Model:
        tuned, plain = load_model(self.output), json.loads(json.dumps(facts))
        asked = tuned.card.provenance.get("asked", {}) if tuned.card else {}
        if found := difference(asked, plain):
            raise ValueError(
                f"{self.output} holds the result of another training: {found}; choose another "
                "folder"
            )
        return tuned

    def _save(self, result: TrainResult, facts: Mapping[str, Any]) -> Model:
        spec = merge_lora(self.model)
        made = result.provenance(
            self.config,
            self.train_set,
            train=self.train_set,
            dev=self.dev,
            objective=self.objective,
            negatives=self._negatives,
            sampling=self.sampling if self.lists else None,
        )
        provenance = {"start": self.model.name, "asked": facts, **made}
        metrics = result.best.dev if result.best else {}
        card = SavedModelCard(model=spec, provenance=provenance, metrics=metrics)
        tuned = replace(self.model, name=str(self.output), spec=spec, card=card)
        if distributed.rank() == 0:
            tuned.save_pretrained(self.output / MODEL)
            shutil.rmtree(self.output / "checkpoints", ignore_errors=True)
        distributed.barrier()
        return tuned


def dev_figures(model: Model, dataset: ImageTextDataset) -> DevMetrics:
    """Return a function that evaluates weights in training on a data set.

    The model gives the processor; where the weights in training are a part of it, it is evaluated
    as a whole.
    """

    def evaluate(trained: RetrievalModel) -> Mapping[str, float]:
        inside = any(part is trained for part in model.model.modules())
        full_model = model if inside else replace(model, model=trained)
        report = evaluate_protocol([full_model.embed(dataset)], dataset)
        return {
            "rsum": report.rsum,
            **{f"i2t_{key}": recall for key, recall in report.i2t.recalls.items()},
            **{f"t2i_{key}": recall for key, recall in report.t2i.recalls.items()},
        }

    return evaluate


def merge_lora(model: Model) -> Config[RetrievalModel]:
    """Merge low-rank adapters into the weights, unless they stay apart; return the config."""
    assert model.spec is not None
    network = model.model
    if not isinstance(network, SupportsLoRA) or not network.lora or network.apart:
        return model.spec
    network.merge()
    return model.spec.replace(lora=0)


def _describe_loss(objective: WeightedSum) -> list[object]:
    """Return the classes, weights and plain settings of a loss, JSON-ready, for a digest."""

    def settings(loss: Loss) -> dict[str, int | float | str]:
        return {
            key: value
            for key, value in sorted(vars(loss).items())
            if not key.startswith("_") and isinstance(value, int | float | str)
        }

    losses = [(n, part) for n, part in objective.named_modules() if isinstance(part, Loss)]
    return [
        objective.weights,
        [[name, type(loss).__name__, settings(loss)] for name, loss in losses],
    ]


def _tensors_digest(*tensors: Tensor) -> str:
    """Return sixteen hex digits of the values of tensors on the CPU."""
    content = sha256()
    for tensor in tensors:
        content.update(tensor.contiguous().numpy().tobytes())
    return content.hexdigest()[:16]


def _open_lists(negatives: Negatives | None, train: ImageTextDataset) -> HardNegativeLists | None:
    if negatives is None or isinstance(negatives, HardNegativeLists):
        return negatives  # the sampler checks that lists fit the data set
    if isinstance(negatives, str | Path):
        opened = NegativeStore.open(
            Path(negatives), fingerprint=train.fingerprint, relation=train.relation
        )
        opened.manifest.check_contents(train, f"the lists in {negatives}")
        return opened.lists
    store = negatives if isinstance(negatives, NegativeStore) else negatives.store
    if store.manifest.corpus != train.fingerprint:
        raise ValueError(
            f"the negatives were mined from another data set than {train.name} "
            f"({train.split_name}); mine them from the data set that is trained on"
        )
    store.manifest.check_contents(train, "the negatives")
    return store.lists


def _check_needs(objective: WeightedSum, lists: HardNegativeLists | None) -> None:
    """Refuse a loss that needs more than scores of the batch and mined negatives."""
    names = ", ".join(sorted({type(term).__name__ for term in objective.terms.values()}))
    mined = objective.needs & OfflineNegativeSampler.provides
    if mined and lists is None:
        roles = ", ".join(sorted(repr(role.value) for role in mined))
        raise ValueError(
            f"the loss {names} needs mined negatives ({roles}), and none are given; mine them from "
            "the training split and give negatives=..., or choose a loss that needs the batch "
            "alone, such as HardestTripletLoss()"
        )
    if lists is not None and not mined:
        raise ValueError(
            f"negatives are given, and the loss {names} does not use them; leave negatives out, or "
            "choose a loss that does, such as AdaptiveQuintuplet()"
        )
    others = sorted(role.value for role in objective.needs - OfflineNegativeSampler.provides)
    others += sorted(objective.needs_words)
    others += ["targets of teachers"] if objective.needs_guide or objective.needs_guided else []
    if others:
        raise ValueError(
            f"the loss {names} needs {', '.join(others)}, which a Trainer does not provide; train "
            "with a recipe that does (`counterfoil plan` lists them)"
        )


def _distilled(objective: WeightedSum, weight: float) -> WeightedSum:
    """The loss with distillation towards the original beside it, reduced as its first term."""
    terms = {n: (w, cast("Loss", objective.terms[n])) for n, w in objective.weights.items()}
    if "original" in terms:
        raise ValueError(
            'distill adds a term "original" to the loss, which has one of this name; rename it'
        )
    first = next(iter(terms.values()))[1]
    loss = MarginDistillationLoss(**distillation_settings(reduction=first.reduction))
    return WeightedSum(terms={**terms, "original": (weight, loss)})


def _default_config(model: RetrievalModel) -> TrainConfig:
    """Settings for fine-tuning pretrained towers, as in the CLIP recipes, or for other models."""
    rate, batch = 1e-5, 64
    if isinstance(model, FrozenWithAdapters):
        rate, batch = 1e-3, 128
    elif isinstance(model, SupportsLoRA) and model.lora:
        rate = 2e-4
    elif not any(isinstance(part, PretrainedPart) for part in model.modules()):
        return TrainConfig()
    optimiser = OptimizerConfig(rule="adamw", rate=rate, decay=0.01)
    return TrainConfig(epochs=5, batch=batch, optimiser=optimiser, schedule=CosineLR(warmup=0.1))
