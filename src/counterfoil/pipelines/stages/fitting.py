"""What a training begins with: the model, its first weights, and what it sees."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from counterfoil.core import distributed
from counterfoil.core.config import Config
from counterfoil.core.console import info, warn
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.processor import Processor
from counterfoil.data.tokenizers import WordTokenizer
from counterfoil.data.word_vectors import word_vectors
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.model import CARD, MODEL, Model, load_model, read_card, save_model
from counterfoil.models.base import (
    AcceptsOtherWeights,
    PretrainedPart,
    RetrievalModel,
    SupportsLoRA,
)
from counterfoil.models.layers.pooling import WordTower
from counterfoil.pipelines.pipeline import Pretrain, Train
from counterfoil.pipelines.state import RunContext, RunStopped
from counterfoil.training.config import TrainConfig
from counterfoil.training.trainer import IMAGES, TrainResult, dev_sample_note


def build_for_training(context: RunContext, stage: Train | Pretrain) -> Model:
    """The model with the weights it begins from, and what it sees.

    The late values "words", "features", "classes", "size" and "mask" become what the data say.
    "pretrained" is true now and false in the written call of the model, which has "config" too, so
    that a finished model is opened without the pretrained one it came from.

    Raises:
        ValueError: weights, word vectors or data do not fit the model.
    """
    start = load_model(str(context.place(stage.start))) if stage.start else None
    processor = start.processor if start else stage.processor.fit(context.train)
    assert processor is not None
    known: dict[str, object] = {
        "words": processor.tokenizer.size if processor.tokenizer else 0,
        "mask": processor.tokenizer.mask if processor.tokenizer else None,
        "features": processor.image_processor.width,
        "classes": region_classes(context.train),
        "size": stage.processor.size if stage.processor.images == "pixels" else 0,
    }
    torch.manual_seed(stage.plan.seed)
    config = _config(start.model) if start else None
    model = stage.model.fill({**known, "pretrained": start is None, "config": config}).build()
    if start:
        _begin_from(start, model, stage)
    elif isinstance(stage, Train) and stage.word_vectors:
        _begin_with(Path(stage.word_vectors), model, processor, stage)
    known |= {"pretrained": False, "config": _config(model)}
    return Model(model, processor, stage.name, stage.model.fill(known))


def region_classes(train: ImageTextDataset) -> int:
    """How many classes the regions of a data set have; 1 where nobody says."""
    told = None if train.features is None else train.features.classes
    return 1 if told is None else int(told.shape[2])


def check_word_vectors(stage: Train) -> None:
    """Refuse word vectors that are not there, or that nothing would read.

    Raises:
        ValueError: so they are.
    """
    if stage.word_vectors is None:
        return
    if stage.start:
        raise ValueError(
            f"{stage.name!r} starts from {stage.start!r} and keeps its word embeddings; set "
            f"word_vectors of {stage.start!r} alone"
        )
    if stage.processor.texts != "words":
        raise ValueError(
            f"{stage.name!r} reads texts with {stage.processor.texts!r} and has no vocabulary of "
            f"words; "
            "leave word_vectors out"
        )
    if not Path(stage.word_vectors).is_file():
        raise ValueError(
            f"{stage.word_vectors} is no file; set {stage.name}.word_vectors to word vectors in "
            "GloVe's text format, such as glove.840B.300d.txt"
        )


def _config(model: RetrievalModel) -> str | None:
    """The configuration of the pretrained model inside, if there is one."""
    inside = (part for part in model.modules() if isinstance(part, PretrainedPart))
    return next((part.written for part in inside), None)


def _begin_from(start: Model, model: RetrievalModel, stage: Train | Pretrain) -> None:
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


def _begin_with(path: Path, model: RetrievalModel, processor: Processor, stage: Train) -> None:
    towers = [module for module in model.modules() if isinstance(module, WordTower)]
    if not (towers and isinstance(processor.tokenizer, WordTokenizer)):
        raise ValueError(
            f"{stage.name!r} has no embeddings of words that could begin with {path}; leave "
            "word_vectors out"
        )
    found = word_vectors(path, processor.tokenizer.words)
    for tower in towers:
        tower.begin_with(found.rows, found.vectors)
    info(f"{stage.name}: {len(found):,} of {processor.tokenizer.size:,} words begin with {path}")


# What trainings of every kind keep, and how they are cut short and gone on with.


def limit_minutes(plan: TrainConfig, left: float | None) -> TrainConfig:
    """The plan with what is left of the run's time, where that is less than its own."""
    if left is None or 0 < plan.minutes < left:
        return plan
    return replace(plan, minutes=max(left, 0.01))


def is_finished(context: RunContext, stage: Train | Pretrain) -> bool:
    """Whether the stage was stopped between its last act and the note that it is done."""
    folder = context.place(stage.name) / MODEL
    if not (folder / CARD).is_file():
        return False
    return read_card(folder).provenance.get("digest") == context.digests[stage.name]


def save_result(
    context: RunContext, stage: Train | Pretrain, model: Model, fitted: TrainResult
) -> None:
    """Save a finished model with its processor; one that did not finish stops the run.

    Raises:
        Stopped: it did not.
    """
    if not fitted.finished:
        why = "out of time" if fitted.stop_reason == "minutes" else "interrupted"
        raise RunStopped(f"{why} after {fitted.steps} steps")
    assert model.processor is not None
    spec = _merged(model)
    if distributed.rank() == 0:
        save_model(
            context.place(stage.name) / MODEL,
            spec=spec,
            model=model.model,
            processor=model.processor,
            provenance=_provenance(context, stage, fitted),
            metrics=fitted.best.dev if fitted.best else {},
        )
        remove_checkpoints(context, stage)
    distributed.barrier()


def remove_checkpoints(context: RunContext, stage: Train | Pretrain) -> None:
    """What a finished training no longer needs."""
    if distributed.rank() == 0:
        shutil.rmtree(context.place(stage.name) / "checkpoints", ignore_errors=True)


def best_epoch_note(fitted: TrainResult, figure: str) -> str:
    """In words: how many epochs, and the best of them with its dev figure."""
    if fitted.best is None:
        return f"{fitted.epochs} epochs"
    on = dev_sample_note(fitted.best.dev)
    begun = max(fitted.epochs, fitted.best.epoch)  # the last one may be cut short
    return f"best epoch {fitted.best.epoch} of {begun}, dev {figure} {fitted.best.value:.1f}{on}"


def _merged(model: Model) -> Config[RetrievalModel]:
    """How to build the model once its adapters are in its weights, unless they stay apart."""
    assert model.spec is not None
    matcher = model.model
    if not isinstance(matcher, SupportsLoRA) or not matcher.lora or matcher.apart:
        return model.spec
    matcher.merge()
    return model.spec.replace(lora=0)


def _provenance(
    context: RunContext, stage: Train | Pretrain, fitted: TrainResult
) -> dict[str, object]:
    return {
        "recipe": context.recipe.name,
        "stage": stage.name,
        "digest": context.digests[stage.name],
        "data": context.dataset.name,
        "data_fingerprint": context.dataset.fingerprint,
        "seed": stage.plan.seed,
        "epochs": fitted.epochs,
        "best_epoch": fitted.best.epoch if fitted.best else fitted.epochs,
    }


# What the best epoch of a training is chosen on.


SEED = 0  # of the sample: the same for all trainings


def selection_note(context: RunContext, stage: Train | Pretrain) -> ImageTextDataset | None:
    """Dev, or as many of its images as the plan asks for, with all their captions.

    A larger sample holds the smaller ones. What is not all of dev is said.
    """
    dataset, many = context.dev, stage.plan.dev_images
    if dataset is None:
        warn(
            f"{context.dataset.name} has no dev split: the last epoch is kept, whatever it is worth"
        )
        return None
    if not 0 < many < len(dataset):
        return dataset
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(SEED))
    sample = dataset.subset(order[:many].sort().values)
    info(
        f"{stage.name}: measured on {many:,} of the {len(dataset):,} images of "
        f"{dataset.split_name}, drawn "
        f"by seed {SEED}, with all their captions"
    )
    return sample


def dev_measure(
    context: RunContext, stage: Train, model: Model
) -> Callable[[RetrievalModel], Mapping[str, float]] | None:
    """What gives dev figures of a model with the processor of another; None where there is no
    dev.
    """
    dataset = selection_note(context, stage)
    if dataset is None:
        return None
    sampled = {IMAGES: float(len(dataset))} if dataset is not context.dev else {}

    def figures(matcher: RetrievalModel) -> Mapping[str, float]:
        inside = any(part is matcher for part in model.model.modules())
        member = (model if inside else replace(model, model=matcher)).embed(dataset)
        found = evaluate_protocol(
            [member], dataset.text_to_image, len(dataset), besides=dataset.extra_positives
        )
        return {
            "rsum": found.rsum,
            **{f"i2t_r{k}": r for k, r in zip((1, 5, 10), found.i2t.numbers)},
            **{f"t2i_r{k}": r for k, r in zip((1, 5, 10), found.t2i.numbers)},
            **sampled,
        }

    return figures
