"""Guides: the stages that make them, and what a training makes of such a stage."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from counterfoil.core import distributed
from counterfoil.core.console import info
from counterfoil.core.resumable import WorkStopped
from counterfoil.model import Model, load_model
from counterfoil.negatives.similarity import CaptionSimilarity, CaptionSpace
from counterfoil.negatives.teachers import (
    FrozenTeacher,
    StoredFragments,
    StoredVectors,
    TargetSource,
    TargetStore,
    Teacher,
    TeacherEnsemble,
    TeacherModel,
    target_weighting,
    write_targets,
)
from counterfoil.pipelines.pipeline import (
    CaptionSpaceStage,
    ComputeTargets,
    Pretrain,
    Recipe,
    Train,
)
from counterfoil.pipelines.state import RunContext, RunStopped
from counterfoil.training.stopping import watch_for_stop

EVERY = 1.0  # minutes


def check_guide(recipe: Recipe, stage: Train) -> None:
    """Refuse a loss without the guide that it needs, before teachers are trained for it.

    Raises:
        ValueError: the stage names no guide, or teachers that cannot see what the student sees.
    """
    objective = stage.objective.build()
    if stage.guide is None and (objective.needs_guide or objective.needs_guided):
        raise ValueError(
            f"the loss of {stage.name!r} needs a guide that says how similar images and texts "
            "ought to be, and the stage names none; set guide to a stage such as Teach"
        )
    taught = recipe.stage(stage.guide) if stage.guide else None
    if isinstance(taught, ComputeTargets) and taught.inputs == "same":
        for name in taught.using:
            teacher = recipe.stage(name)
            assert isinstance(teacher, Train | Pretrain)
            if teacher.processor != stage.processor:
                raise ValueError(
                    f"{taught.name!r} shows teachers the same items as the student, but {name!r} "
                    f"has another lens than {stage.name!r}; set {taught.name}.inputs=clean"
                )


def check_teachers(context: RunContext, stage: ComputeTargets) -> None:
    """Refuse saved teachers that are not there or do not see the training split.

    Raises:
        ValueError: so they are.
    """
    first = torch.zeros(1, dtype=torch.long)
    for name in stage.models:
        processor = load_model(name).process(context.train)
        processor.images(first)
        processor.texts(first)


def build_guide(context: RunContext, stage: Train, scale: float) -> TargetSource | None:
    """What tells a training how similar pairs ought to be; None where it names nothing.

    Args:
        context: the run.
        stage: the training.
        scale: units of the student's scores, see `RetrievalModel.score_scale`.
    """
    if stage.guide is None:
        return None
    match context.recipe.stage(stage.guide):
        case ComputeTargets() as taught:
            return TeacherEnsemble(teachers=tuple(_teachers(context, taught, scale)))
        case CaptionSpaceStage() as meant:
            place, dataset = context.place(meant.name), context.train.fingerprint
            space = CaptionSpace.open(place, fingerprint=dataset)
            return CaptionSimilarity(space=space, measure=meant.measure)
    raise AssertionError(f"no guide is made of {stage.guide!r}")


def run_compute_targets(context: RunContext, stage: ComputeTargets) -> None:
    """Write down what the training split looks like to the teachers."""
    trained = []
    for name in _names(context, stage):
        model = load_model(name)
        trained.append(TeacherModel(model.model, model.process(context.train), model.source()))
    left, place = context.left(), context.place(stage.name)
    with watch_for_stop(0 if left is None else max(left, 0.01), EVERY) as watch:
        try:
            write_targets(
                place, trained, form=stage.form, precision=stage.precision, stop=watch.wanted
            )
        except WorkStopped:
            watch.heed()
            late = watch.late and watch.asked is None
            raise RunStopped("out of time" if late else "interrupted") from None
    many = f"{len(trained)} teacher{'s' if len(trained) > 1 else ''}"
    info(f"{stage.name}: {many}, {stage.form} for {len(context.train):,} images, {place}")


def run_caption_space(context: RunContext, stage: CaptionSpaceStage) -> None:
    """Write down how near the captions of the training split are in meaning."""
    place = context.place(stage.name)
    if distributed.rank() == 0:
        space = CaptionSpace.of(context.train, stage.space)
        space.save(place)
        texts, width = space.points.shape
        info(f"{stage.name}: {texts:,} captions in {width} dimensions, {place}")


def _teachers(context: RunContext, stage: ComputeTargets, scale: float) -> Iterator[Teacher]:
    """The stage's teachers; all that are plain vectors are one."""
    place = context.place(stage.name)
    store = TargetStore.open(place, fingerprint=context.train.fingerprint)
    weights = target_weighting(store.manifest.teachers, scale, standardise=stage.standardise)
    if stage.form == "models":
        for number, weight in enumerate(weights):
            model = _opened(context, stage, store, number)
            processor = model.process(context.train)
            yield FrozenTeacher(
                model=model.model, processor=processor, inputs=stage.inputs, weight=weight
            )
        return
    plain = [n for n, taught in enumerate(store.manifest.teachers) if taught.plain]
    if plain:
        stores = [store.encodings[n] for n in plain]
        yield StoredVectors(stores=stores, weights=[weights[n] for n in plain])
    for number, weight in enumerate(weights):
        if number not in plain:
            images, texts = store.encodings[number]
            matcher = _opened(context, stage, store, number).model
            yield StoredFragments(model=matcher, images=images, texts=texts, weight=weight)


def _opened(context: RunContext, stage: ComputeTargets, store: TargetStore, number: int) -> Model:
    """A teacher's model, if it is still the one that was asked."""
    model = load_model(_names(context, stage)[number])
    store.check(number, model.source(), context.place(stage.name))
    return model


def _names(context: RunContext, stage: ComputeTargets) -> tuple[str, ...]:
    """Where each teacher is."""
    return (*(str(context.place(name)) for name in stage.using), *stage.models)
