"""Shared by training and pre-training stages: build, select and save a model."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from counterfoil.core import distributed
from counterfoil.core.config import Config
from counterfoil.core.console import info, warn
from counterfoil.data.checks import missing_pictures, none_is_there
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import Processor, ProcessorConfig, say_unknown
from counterfoil.data.tokenizers import WordTokenizer
from counterfoil.model import MODEL, Model, load_model
from counterfoil.models.base import (
    AcceptsOtherWeights,
    PretrainedPart,
    RetrievalModel,
)
from counterfoil.models.layers.pooling import TextTower, WordTower
from counterfoil.negatives.sources import PlannedModel
from counterfoil.pipelines.stages.base import KINDS, Stage, is_stage_name
from counterfoil.pipelines.state import DEV, RunContext, RunStopped
from counterfoil.saved import CARD, check_reopens, read_card, save_model
from counterfoil.training.callbacks import IMAGES, DevMetrics, dev_sample_note
from counterfoil.training.config import TrainConfig
from counterfoil.training.trainer import TrainResult, dev_figures, merge_lora

CONFIG, TEXT_CONFIG = "config", "text config"  # placeholders for a pretrained part's configuration
DEV_SAMPLE_SEED = 0  # the same for all trainings, so that their dev figures compare


@dataclass(frozen=True, kw_only=True)
class ModelStage(Stage):
    """A stage that trains a model and writes a model folder.

    Attributes:
        model: the model; ``from_data("words")``, ``from_data("features")``,
            ``from_data("classes")`` and ``from_data("mask")`` are filled in from the data.
        plan: batches, epochs, optimiser, schedule, seed.
        processor: the model's view of images and texts.
        start: model whose weights and processor to begin from, instead of random ones: a stage, or
            a model folder or name that `counterfoil.model.load_model` opens.
    """

    takes: ClassVar[Mapping[str, str]] = {"start": "train"}
    elsewhere: ClassVar[frozenset[str]] = frozenset({"start"})
    model: Config[RetrievalModel]
    plan: TrainConfig
    processor: ProcessorConfig = ProcessorConfig()
    start: str | None = None

    @property
    def training_seed(self) -> int:
        return self.plan.seed

    def digest_content(self) -> dict[str, Any]:
        return {"plan": self.plan.numbers()}

    def shortened(self, steps: int) -> Self:
        return replace(self, plan=replace(self.plan.of_epochs(1), steps=steps, log_every=1))

    def planned(self, context: RunContext) -> PlannedModel:
        return PlannedModel(self.name, _planned_processor(context, self))

    def training_details(self, context: RunContext) -> dict[str, Any]:
        """Further arguments of `training_record`: the loss and the negatives, where there are."""
        return {}


def _planned_processor(context: RunContext, stage: ModelStage) -> ProcessorConfig | Processor:
    """The processor of a stage's model, which is that of the model it starts from."""
    if stage.start is None:
        return stage.processor
    if is_stage_name(stage.start):
        planned = context.recipe.stage(stage.start).planned(context)
        return planned.processor if isinstance(planned, PlannedModel) else stage.processor
    processor = open_initial_model(context, stage, stage.start).processor
    assert processor is not None
    return processor


def build_for_training(
    context: RunContext, stage: ModelStage, word_vectors: Path | None = None
) -> Model:
    """Build a stage's model with its first weights and its processor.

    The values "words", "features", "classes", "size" and "mask" are filled in from the data.
    "pretrained" is true now and false in the config that is saved, which has "config" and "text
    config" too, so that a finished model is opened without the pretrained ones it came from.
    """
    start = load_model(context.model_path(stage.start)) if stage.start else None
    if not isinstance(stage.model.make, type):  # a factory of the user, with a processor of its own
        made = load_model(stage.model.fill({"pretrained": start is None}))
        if start:
            _load_start_weights(start, made.model, stage)
        return replace(made, name=stage.name, spec=stage.model.fill({"pretrained": False}))
    processor = start.processor if start else stage.processor.fit(context.train)
    assert processor is not None
    if processor.tokenizer and processor.tokenizer.unknown is not None:
        for name in context.dataset.split_names:
            if name in (*DEV, "test"):
                say_unknown(context.dataset.split(name), processor.tokenizer)
    known: dict[str, object] = {
        "words": processor.tokenizer.size if processor.tokenizer else 0,
        "mask": processor.tokenizer.mask if processor.tokenizer else None,
        "features": processor.image_processor.width,
        "classes": region_classes(context.train),
        "size": stage.processor.size if stage.processor.images == "pixels" else 0,
    }
    torch.manual_seed(stage.plan.seed)
    known |= _pretrained_configs(start.model if start else None)
    model = stage.model.fill({**known, "pretrained": start is None}).build()
    if start:
        _load_start_weights(start, model, stage)
    elif word_vectors:
        _load_word_vectors(word_vectors, model, processor, stage)
    known |= {"pretrained": False, **_pretrained_configs(model)}
    return Model(model, processor, stage.name, stage.model.fill(known))


def check_model(context: RunContext, stage: ModelStage) -> None:
    """Refuse a model that could not be opened again, or a start that does not fit it.

    Called before the first stage runs.
    """
    written = {"pretrained": False, CONFIG: "{}", TEXT_CONFIG: "{}"}  # as they will be
    check_reopens(stage.model.fill(written), f"the model of {stage.name!r}", without_others=True)
    if stage.start and not is_stage_name(stage.start):
        open_initial_model(context, stage, stage.start)
        build_for_training(context, stage)


def open_initial_model(context: RunContext, stage: ModelStage, name: str) -> Model:
    """Open a model that a stage names and no stage writes; it needs a processor."""
    try:
        model = load_model(name)
        if model.processor is None:
            raise ValueError("it reads ready-made vectors")
    except ValueError as error:
        stages = ", ".join(s.name for s in context.recipe.stages if s.kind in KINDS["train"])
        raise ValueError(
            f"{stage.name!r} names {name!r}, which is neither a stage of {context.recipe.name} "
            f"({stages}) nor a model folder or hub name that opens: {error}"
        ) from error
    return model


def check_pictures(context: RunContext, stage: ModelStage) -> None:
    """Refuse a training on pixels whose pictures are missing."""
    if stage.processor.images == "pixels" and not (stage.start and is_stage_name(stage.start)):
        for dataset in (context.train, *([context.dev] if context.dev else [])):
            _check_picture_files(dataset)


def _check_picture_files(dataset: ImageTextDataset) -> None:
    if dataset.pictures is None:
        raise ValueError(
            f"{dataset.name} ({dataset.split_name}) has no pictures, and this model reads pixels; "
            "name their folder, as in --data photos.csv:images=pictures/"
        )
    if missing := missing_pictures(dataset):
        raise ValueError(
            none_is_there(dataset)
            or f"{len(missing):,} of {len(dataset):,} pictures of {dataset.name} "
            f"({dataset.split_name}) are missing, such as {missing[0]}; "
            "`counterfoil data check` lists them"
        )


def region_classes(train: ImageTextDataset) -> int:
    """Number of classes of a detector's regions; 1 where the features come without classes."""
    classes = None if train.features is None else train.features.classes
    return 1 if classes is None else int(classes.shape[2])


def _pretrained_configs(model: RetrievalModel | None) -> dict[str, str | None]:
    """The configurations of the pretrained models inside, of one that reads texts and of another.

    A frozen tower of pictures may stand beside BERT.
    """
    found: dict[str, str | None] = {CONFIG: None, TEXT_CONFIG: None}
    for part in model.modules() if model else ():
        name = TEXT_CONFIG if isinstance(part, TextTower) else CONFIG
        if isinstance(part, PretrainedPart):
            found[name] = found[name] or part.config_json
    return found


def _load_start_weights(start: Model, model: RetrievalModel, stage: ModelStage) -> None:
    state = start.model.state_dict()
    try:
        model.load_state_dict(
            model.adopted(state) if isinstance(model, AcceptsOtherWeights) else state
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"{stage.name!r} starts from {stage.start!r}, which is another model: "
            f"{str(error).splitlines()[-1].strip()}"
        ) from error


def _load_word_vectors(
    path: Path, model: RetrievalModel, processor: Processor, stage: ModelStage
) -> None:
    towers = [module for module in model.modules() if isinstance(module, WordTower)]
    if not (towers and isinstance(processor.tokenizer, WordTokenizer)):
        raise ValueError(
            f"{stage.name!r} has no embeddings of words that could begin with {path}; leave "
            "word_vectors out"
        )
    from counterfoil.data.word_vectors import word_vectors as read_word_vectors

    vectors = read_word_vectors(path, processor.tokenizer.words)
    for tower in towers:
        tower.begin_with(vectors.rows, vectors.vectors)
    info(f"{stage.name}: {len(vectors):,} of {processor.tokenizer.size:,} words begin with {path}")


def limit_minutes(plan: TrainConfig, left: float | None) -> TrainConfig:
    """The plan with what is left of the run's time, where that is less than its own."""
    if left is None or 0 < plan.minutes < left:
        return plan
    return replace(plan, minutes=max(left, 0.01))


def is_finished(context: RunContext, stage: ModelStage) -> bool:
    """Return True if the model is saved although the run was killed before it could record that."""
    folder = context.place(stage.name) / MODEL
    if not (folder / CARD).is_file():
        return False
    return read_card(folder).provenance.get("digest") == context.digests[stage.name]


def save_result(context: RunContext, stage: ModelStage, model: Model, fitted: TrainResult) -> None:
    """Save a finished model with its processor; one that did not finish stops the run."""
    if not fitted.finished:
        why = "out of time" if fitted.stop_reason == "minutes" else "interrupted"
        raise RunStopped(f"{why} after {fitted.steps} steps")
    assert model.processor is not None
    spec = merge_lora(model)
    digest, details = context.digests[stage.name], stage.training_details(context)
    made = fitted.provenance(
        stage.plan, context.dataset, train=context.train, dev=context.dev, **details
    )
    if distributed.rank() == 0:
        save_model(
            context.place(stage.name) / MODEL,
            spec=spec,
            model=model.model,
            processor=model.processor,
            provenance={
                "recipe": context.recipe.name,
                "stage": stage.name,
                "digest": digest,
                **made,
            },
            metrics=fitted.best.dev if fitted.best else {},
        )
        remove_checkpoints(context, stage)
    distributed.barrier()


def remove_checkpoints(context: RunContext, stage: ModelStage) -> None:
    """Remove the checkpoints of a finished training."""
    if distributed.rank() == 0:
        shutil.rmtree(context.place(stage.name) / "checkpoints", ignore_errors=True)


def best_epoch_note(fitted: TrainResult, figure: str) -> str:
    """Number of epochs and the one that is kept with its dev figure, in words."""
    if fitted.best is None:
        return f"{fitted.epochs} epochs"
    on = dev_sample_note(fitted.best.dev)
    epochs = max(fitted.epochs, fitted.best.epoch)  # the last one may be cut short
    kept = "best" if fitted.chosen else "last"
    note = f"{kept} epoch {fitted.best.epoch} of {epochs}, dev {figure} {fitted.best.value:.1f}{on}"
    if fitted.finished and fitted.steps < fitted.planned:
        note += f"; stopped after {fitted.steps:,} of {fitted.planned:,} steps, no better since"
    if fitted.warm_up and fitted.first and fitted.first > 1 and not fitted.keep_last:
        competed = (
            f"epochs {fitted.first} to {epochs}" if fitted.chosen else f"epoch {epochs} alone"
        )
        note += f"; {competed} competed: the loss warmed up until step {fitted.warm_up:,}"
    return note


def selection_dataset(context: RunContext, stage: ModelStage) -> ImageTextDataset | None:
    """Dev, or as many of its images as the plan sets, with all their captions.

    They are drawn, or with `TrainConfig.dev_first` the first; more of them hold fewer.
    """
    dataset, many = context.dev, stage.plan.dev_images
    if dataset is None:
        warn(f"{context.dataset.name} has no dev split: the last epoch is kept")
        return None
    if not 0 < many < len(dataset):
        return dataset
    if stage.plan.dev_first:
        rows, of_them = torch.arange(many), "the first ones"
    else:
        rng = torch.Generator().manual_seed(DEV_SAMPLE_SEED)
        rows, of_them = (
            torch.randperm(len(dataset), generator=rng),
            f"drawn by seed {DEV_SAMPLE_SEED}",
        )
    sample = dataset.subset(rows[:many].sort().values)
    info(
        f"{stage.name}: measured on {many:,} of the {len(dataset):,} images of "
        f"{dataset.split_name}, {of_them}, with all their captions"
    )
    return sample


def dev_measure(context: RunContext, stage: ModelStage, model: Model) -> DevMetrics | None:
    """A function that measures a model on dev with the processor of `model`; None without dev."""
    dataset = selection_dataset(context, stage)
    if dataset is None:
        return None
    measure = dev_figures(model, dataset, stage.plan.select)
    if dataset is context.dev:
        return measure
    return lambda network: {**measure(network), IMAGES: float(len(dataset))}
