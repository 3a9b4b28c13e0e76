"""Pre-train a model with the tasks of UNITER (Chen et al., ECCV 2020, section 3.2).

Masked words (MLM), features (MRFR) and classes (MRC, MRC-kl) of masked regions, and image-text
matching (ITM) with word-region alignment (WRA). Checkpoints and metrics are as in any training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, final, get_args

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from counterfoil.core import distributed
from counterfoil.core.config import digest
from counterfoil.core.console import progress
from counterfoil.core.types import ModalityBatch, Pairs, Precision, WordSlots
from counterfoil.data.batching import BatchSampler
from counterfoil.data.processor import ProcessedDataset
from counterfoil.models.base import RetrievalModel, WordEmbeddingModel
from counterfoil.models.layers.joint_encoder import JointModel
from counterfoil.models.layers.pooling import full_precision
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.pretraining.losses import (
    optimal_transport,
    region_classification,
    region_kl_divergence,
    region_regression,
    word_region_alignment,
)
from counterfoil.papers.tags.inputs import choose_spans, mask_spans, with_singles
from counterfoil.training.batches import numbered_batches
from counterfoil.training.callbacks import DevEvaluation, DevMetrics
from counterfoil.training.checkpoint import CheckpointFolder, derive_seed, state_shapes
from counterfoil.training.config import TrainConfig
from counterfoil.training.logging import StepMonitor, check_trackers
from counterfoil.training.step import TrainableModule, autocast
from counterfoil.training.trainer import TrainingLoop, TrainResult, sampler_of

# Tasks: one a step.


Task = Literal["mlm", "mrfr", "mrc", "mrckl", "itm"]
TASKS: tuple[Task, ...] = get_args(Task)
REGION_TASKS: tuple[Task, ...] = ("mrfr", "mrc", "mrckl")  # tasks on masked regions
CLASS_TASKS: tuple[Task, ...] = ("mrc", "mrckl")  # tasks on the probabilities of a detector
SCORED_TASKS: tuple[Task, ...] = ("mlm", "itm")  # tasks with an answer that is right or wrong

TASK_LOSSES: Mapping[Task, Callable[[Tensor, Tensor], Tensor]] = {
    "mlm": partial(cross_entropy, reduction="none"),
    "mrfr": region_regression,
    "mrc": region_classification,
    "mrckl": region_kl_divergence,
    "itm": partial(cross_entropy, reduction="none"),
}

# from rows of a data set to a detector's (N, R, C) class probabilities of image regions, sum 1
RegionClasses = Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True, kw_only=True)
class PretrainTasks:
    """Frequencies of the pre-training tasks, and the shares of words and regions to mask.

    Attributes:
        mlm: weight of hidden words; only the ratio to the other tasks counts.
        mrfr: features of hidden regions.
        mrc: likeliest classes of hidden regions.
        mrckl: probabilities of the classes of hidden regions.
        itm: whether text and image match.
        transport: weight of the cost of moving words onto regions, which goes with `itm`.
        words: how likely a word is hidden.
        regions: how likely a region is hidden.
        mismatched: how likely a pair gets another image for `itm`.

    Raises:
        ValueError: a number out of range, or no task.
    """

    mlm: float = 2.0
    mrfr: float = 1.0
    mrc: float = 0.0
    mrckl: float = 1.0
    itm: float = 2.0
    transport: float = 0.1
    words: float = 0.15
    regions: float = 0.15
    mismatched: float = 0.5

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            most = 1.0 if name in ("words", "regions", "mismatched") else torch.inf
            if not 0 <= value <= most:
                raise ValueError(
                    f"{name}={value}: a number from 0 {'to 1' if most == 1 else 'on'} is needed"
                )
        if not self.used():
            raise ValueError("no task is left to pre-train with; give one of them a ratio above 0")

    def used(self, among: tuple[Task, ...] = TASKS) -> tuple[Task, ...]:
        """The tasks of a ratio above 0."""
        return tuple(task for task in among if getattr(self, task))

    def without_classes(self) -> PretrainTasks:
        """The tasks that need no class probabilities of regions; an error if none is left."""
        return replace(self, **dict.fromkeys(CLASS_TASKS, 0.0))

    def only(self, wanted: Task) -> PretrainTasks:
        """Keep one task alone."""
        return replace(self, **{str(task): float(task == wanted) for task in TASKS})

    def draw(self, seed: int) -> Task:
        """One of the tasks, by their ratios."""
        rng = torch.Generator().manual_seed(seed)
        ratios = torch.tensor([getattr(self, task) for task in TASKS], dtype=torch.double)
        return TASKS[int(torch.multinomial(ratios, 1, generator=rng))]


@final
@dataclass(frozen=True, slots=True)
class PretrainBatch:
    """Pairs with hidden words or regions; P of the B are this process's share."""

    task: Task
    anchors: Pairs  # (B,) data set rows of all pairs
    images: ModalityBatch  # P of them, as they are
    texts: ModalityBatch  # P of them; words are hidden for "mlm"
    real: Tensor  # (P,) bool, False for a pair that only fills up the share
    slots: WordSlots  # where words are hidden, in real pairs
    labels: Tensor  # (M,) long, the hidden words
    hidden_regions: Tensor  # (P, R) bool, True where a region is hidden, in real pairs
    matching: Tensor  # (P,) bool, True where text and image belong together
    classes: Tensor | None = None  # (P, R, C) class probabilities, for tasks that predict them

    def to(self, device: torch.device | str) -> PretrainBatch:
        """Move the batch to another device; the data set rows stay where they are."""
        return replace(
            self,
            images=self.images.to(device),
            texts=self.texts.to(device),
            real=self.real.to(device),
            slots=WordSlots(self.slots.pair.to(device), self.slots.place.to(device)),
            labels=self.labels.to(device),
            hidden_regions=self.hidden_regions.to(device),
            matching=self.matching.to(device),
            classes=None if self.classes is None else self.classes.to(device),
        )


@final
@dataclass(frozen=True, kw_only=True)
class PretrainStream:
    """The batches of a pre-training, each the same from the same seed wherever it begins."""

    processor: ProcessedDataset
    sampler: BatchSampler
    epochs: int
    seed: int
    tasks: PretrainTasks
    mask: int  # id of the token that hides a word
    words: Tensor  # (W,) long, ids that may stand in the place of a hidden word
    accumulate: int = 1  # batches of one task in a row, as one optimiser step takes them
    classes: RegionClasses | None = None

    def batches(self, start: int = 0) -> Iterator[PretrainBatch]:
        """Batch `start` of the training and those after it."""
        for number, texts in numbered_batches(self.sampler, self.epochs, start):
            yield self._batch(texts, number)

    def _batch(self, texts: Tensor, number: int) -> PretrainBatch:
        epoch, place = divmod(number, len(self.sampler))
        step = epoch * -(-len(self.sampler) // self.accumulate) + place // self.accumulate
        task = self.tasks.draw(derive_seed(self.seed, "task", step))
        rng = torch.Generator().manual_seed(derive_seed(self.seed, "hide", number))
        images = self.processor.dataset.relation.text_to_image[texts]
        matching = torch.ones(len(texts), dtype=torch.bool)
        if task == "itm":
            images, matching = mismatch_pairs(
                images, len(self.processor.dataset), share=self.tasks.mismatched, rng=rng
            )
        share = distributed.shard(len(texts))
        here = torch.arange(share.start, share.stop)
        real = here < len(texts)
        here = here.clamp(max=len(texts) - 1)
        inputs = self.processor.images(images[here])
        masked, slots, labels = self._mask_texts(task, texts, rng)
        in_share = (slots.pair >= share.start) & (slots.pair < share.stop)
        hidden_regions = torch.zeros_like(inputs.mask)
        if task in REGION_TASKS:
            chance = torch.rand(len(texts), inputs.mask.shape[1], generator=rng)[here]
            hidden_regions = hide_regions(inputs.mask, chance, share=self.tasks.regions)
            hidden_regions = hidden_regions & real.unsqueeze(1)
        classes = self.classes if task in CLASS_TASKS else None
        return PretrainBatch(
            task=task,
            anchors=Pairs(images, texts),
            images=inputs,
            texts=masked.rows(here),
            real=real,
            slots=WordSlots(slots.pair[in_share] - share.start, slots.place[in_share]),
            labels=labels[in_share],
            hidden_regions=hidden_regions,
            matching=matching[here],
            classes=classes(images[here]) if classes else None,
        )

    def _mask_texts(
        self, task: Task, rows: Tensor, rng: torch.Generator
    ) -> tuple[ModalityBatch, WordSlots, Tensor]:
        """The texts of all processes, with some words hidden for "mlm"."""
        texts = self.processor.texts(rows)
        none = torch.zeros(0, dtype=torch.long)
        if task != "mlm":
            return texts, WordSlots(none, none), none
        singles = with_singles(
            torch.zeros(len(rows), 0, texts.mask.shape[1], dtype=torch.bool),
            maskable_tokens(texts, self.words),
            singles="only",
        )
        slots = choose_spans(singles, times=1, rng=rng, share=self.tasks.words, first=True)
        masked = mask_spans(texts, slots, mask=self.mask, words=self.words, rng=rng)
        return replace(masked.texts, ids=texts.ids), masked.slots, masked.labels


def maskable_tokens(texts: ModalityBatch, words: Tensor) -> Tensor:
    """(N, L) bool, True at tokens that can be hidden: all but special ones.

    In a text of special and unknown tokens alone, all tokens of its mask can.
    """
    maskable = texts.mask & torch.isin(texts.values, words)
    return maskable | texts.mask & ~maskable.any(1, keepdim=True)


def hide_regions(mask: Tensor, chance: Tensor, *, share: float) -> Tensor:
    """(N, R) bool, True at regions that are hidden: each by itself, one at least of each image.

    A real region is hidden where its chance, drawn evenly from 0 to 1, is below the share.
    """
    chance = chance.masked_fill(~mask, 2.0)
    least = chance == chance.amin(1, keepdim=True)
    return ((chance < share) | least) & mask


def mismatch_pairs(
    images: Tensor, count: int, *, share: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(B,) image rows of which a share is replaced, and (B,) bool, True where the row is the same.

    `count` is the number of images to draw from.
    """
    other = torch.randint(max(count - 1, 1), images.shape, generator=rng)
    other = other + (other >= images).long()
    same = torch.rand(images.shape, generator=rng) >= share
    if count < 2:
        return images, torch.ones_like(same)
    return images.where(same, other), same


# One step of pre-training.


@final
@dataclass(frozen=True, slots=True)
class TaskOutputs:
    """Predictions of a model for its share of a batch, and their targets."""

    predictions: Tensor  # (M, ...) rows of logits or features
    targets: Tensor  # (M,) long, or (M, ...) features or probabilities
    distance: Tensor | None = None  # (M,) cost of moving words onto regions, for "itm"


def task_outputs(
    model: JointModel, batch: PretrainBatch, *, transport: bool = False
) -> TaskOutputs:
    """Run a model on its share of a batch; `transport` adds the cost of alignment for "itm"."""
    texts, hidden = model.encode_texts(batch.texts), batch.hidden_regions
    if batch.task in REGION_TASKS:
        assert isinstance(model, UNITER)
        joint = model.joint(model.embed_images(batch.images, hidden), texts)
        states = joint.images.tokens[hidden]
        if batch.task == "mrfr":
            return TaskOutputs(model.regressed(states), batch.images.values[hidden])
        assert batch.classes is not None
        return TaskOutputs(model.classified(states), batch.classes[hidden])
    joint = model.joint(model.encode_images(batch.images), texts)
    if batch.task == "mlm":
        states = joint.texts.tokens[batch.slots.pair, batch.slots.place]
        return TaskOutputs(model.filled(states), batch.labels)
    real, matched, distance = batch.real, model.matched(joint.pooled), None
    if transport:
        words, regions = joint.texts, joint.images
        distance = optimal_transport(words.tokens, regions.tokens, words.mask, regions.mask)[real]
    return TaskOutputs(matched[real], batch.matching[real].long(), distance)


@final
class PretrainStep(TrainableModule[PretrainBatch]):
    """A module that maps pairs with masked words or regions to named losses.

    Each process encodes its share of the pairs; a loss is the mean over the hidden items of all
    processes, so that gradients are those of one process with the whole batch. With "bf16" it
    computes under autocast; losses are float32 at least.

    Raises:
        ValueError: the model cannot be pre-trained.
    """

    def __init__(
        self, model: RetrievalModel, tasks: PretrainTasks, *, precision: Precision = "fp32"
    ) -> None:
        super().__init__()
        self.model: JointModel = check_pretrainable(model, tasks)
        self.tasks, self.precision = tasks, precision
        self.watch = StepMonitor()

    def forward(self, batch: PretrainBatch) -> dict[str, Tensor]:
        """The loss of the task, and for "itm" that of moving words onto regions ("wra")."""
        with autocast(self.precision, batch.real.device):
            outputs = task_outputs(self.model, batch, transport=self.tasks.transport > 0)
        loss = TASK_LOSSES[batch.task](full_precision(outputs.predictions), outputs.targets)
        losses: dict[str, Tensor] = {batch.task: _mean(loss)}
        if outputs.distance is not None:
            alignment = word_region_alignment(outputs.distance, outputs.targets == 1)
            losses["wra"] = self.tasks.transport * _mean(alignment)
        return losses

    def level(self, batch: PretrainBatch) -> Tensor | None:
        """None: there is no margin that scores could collapse to."""
        return None


def check_pretrainable(model: RetrievalModel, tasks: PretrainTasks) -> JointModel:
    """Refuse a model without the parts that the tasks need, and return others."""
    if not isinstance(model, JointModel):
        raise ValueError(
            f"{type(model).__name__} cannot be pre-trained: it does not read words and images "
            "together; use UNITER or ViLT"
        )
    if tasks.used(REGION_TASKS) and not isinstance(model, UNITER):
        raise ValueError(
            f"{type(model).__name__} sees no regions that could be hidden; set mrfr, mrc and "
            "mrckl to 0"
        )
    return model


def mask_word(model: RetrievalModel) -> int:
    """Id of the token that hides a word from a model; an error if it has none."""
    tokens = [part.mask_word for part in model.modules() if isinstance(part, WordEmbeddingModel)]
    if not tokens or tokens[0] is None:
        raise ValueError(
            f"{type(model).__name__} has no token that hides a word; read texts with a tokenizer "
            "that has one, such as bert-base-cased"
        )
    return tokens[0]


def _mean(values: Tensor) -> Tensor:
    """Mean of all processes' rows, whose gradient reaches each process's own."""
    count = distributed.gather(torch.tensor(values.numel(), device=values.device)).sum()
    return distributed.gather_rows(values.sum().reshape(1)).sum() / count


ACCURACY = "accuracy"  # the dev figure that an epoch is chosen by
MAX_DEV_PAIRS = 2048  # pairs of dev that are evaluated


def pretrain(
    plan: TrainConfig,
    model: RetrievalModel,
    tasks: PretrainTasks,
    train: ProcessedDataset,
    *,
    folder: Path,
    classes: RegionClasses | None = None,
    dev: ProcessedDataset | None = None,
    run: str = "",
    resume: bool = False,
) -> TrainResult:
    """Pre-train a model in place; with `resume`, from the last checkpoint in the folder on.

    Every process of a group calls this with the same arguments. ``metrics.jsonl`` and
    ``checkpoints/`` are written to the folder. Without `classes`, a detector's probabilities, the
    tasks "mrc" and "mrckl" are left out. An epoch is chosen on `dev` by `plan.select`: "accuracy",
    the mean of "mlm" and "itm", or one of them. `run` is a digest of what else the numbers depend
    on.

    Raises:
        ValueError: the model or the plan does not fit pre-training, no task is left, a tracker
            is not installed, the loss is not finite, or the checkpoint is damaged or belongs to
            another training.
    """
    check_trackers(plan.track)
    if plan.grad_cache:
        raise ValueError(
            f"grad_cache={plan.grad_cache} is for losses that compare the pairs of a batch, which "
            "pre-training does not; set batch to fewer and accumulate to more"
        )
    if plan.gradient_checkpointing:
        raise ValueError(
            "gradient_checkpointing is for models of transformers, and pre-training makes one of "
            "ours; leave it out, or set batch to fewer and accumulate to more"
        )
    tasks = tasks if classes is not None else tasks.without_classes()
    step = PretrainStep(model, tasks, precision=plan.precision).to(distributed.device())
    stream = PretrainStream(
        processor=train,
        sampler=sampler_of(plan, train.dataset),
        epochs=plan.epochs,
        seed=plan.seed,
        tasks=tasks,
        mask=mask_word(model),
        words=vocabulary_of(train),
        accumulate=plan.accumulate,
        classes=classes,
    )
    numbers = [run, plan.numbers(), train.dataset.fingerprint, asdict(tasks), state_shapes(step)]
    facts = dict(zip(("run", "plan", "data", "tasks"), numbers))
    saved = CheckpointFolder(folder / "checkpoints", digest(numbers), facts)
    callbacks = []
    if dev is not None and tasks.used(SCORED_TASKS):
        callbacks.append(DevEvaluation(dev_accuracy(stream, dev)))
    loop = TrainingLoop(plan, step, stream, saved, callbacks)
    return loop.run(folder / "metrics.jsonl", resume=resume)


def vocabulary_of(processor: ProcessedDataset) -> Tensor:
    """(W,) long, ids that stand for a word; an error where texts are ready-made vectors."""
    tokenizer = processor.processor.tokenizer
    if tokenizer is None:
        raise ValueError("pre-training hides words, and these texts are ready-made vectors")
    is_word = torch.ones(tokenizer.size, dtype=torch.bool)
    is_word[list(tokenizer.wordless)] = False
    return is_word.nonzero().squeeze(1)


def dev_accuracy(stream: PretrainStream, dev: ProcessedDataset) -> DevMetrics:
    """Return a function that measures a model on fixed batches of dev, like those of the training.

    Its figures are the accuracy of each task with right and wrong answers, and "accuracy", their
    mean, in percent.
    """
    size = stream.sampler.batch
    sampler = BatchSampler(dev.dataset.relation, batch=size, seed=0)
    fixed = replace(
        stream, processor=dev, sampler=sampler, epochs=1, seed=0, accumulate=1, classes=None
    )
    count = min(len(sampler), -(-MAX_DEV_PAIRS // size))

    @torch.no_grad()
    def measure(model: RetrievalModel) -> Mapping[str, float]:
        assert isinstance(model, JointModel)
        accuracies: dict[str, float] = {}
        for task in stream.tasks.used(SCORED_TASKS):
            right = torch.zeros(2, dtype=torch.long, device=distributed.device())
            batches = replace(fixed, tasks=stream.tasks.only(task)).batches()
            with progress(f"batches of {task}", count) as advance:
                for batch in islice(batches, count):
                    outputs = task_outputs(model, batch.to(distributed.device()))
                    hits = (outputs.predictions.argmax(1) == outputs.targets).sum()
                    right += torch.stack([hits, hits.new_tensor(len(outputs.targets))])
                    advance(1)
            hit, all_ = distributed.gather(right).sum(0).tolist()
            accuracies[task] = float(100 * hit / max(all_, 1))
        return {**accuracies, ACCURACY: sum(accuracies.values()) / len(accuracies)}

    return measure
