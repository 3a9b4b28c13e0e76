"""Guides: the stages that make them, and what a training makes of such a stage."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from counterfoil import world
from counterfoil.core.console import info
from counterfoil.core.resumable import WorkStopped
from counterfoil.negatives.guide import Guide
from counterfoil.negatives.semantics import CaptionSemantics, CaptionSpace
from counterfoil.negatives.taught import TaughtStore, weigher
from counterfoil.negatives.teach import Trained, write
from counterfoil.negatives.teachers import Fragments, Frozen, Teacher, Teachers, Vectors
from counterfoil.recipes.context import Context, Stopped
from counterfoil.recipes.guides import Semantics, Teach
from counterfoil.recipes.model import Model, open_model
from counterfoil.recipes.recipe import Pretrain, Recipe, Train
from counterfoil.train.stopping import stopping

EVERY = 1.0  # minutes


def check(recipe: Recipe, stage: Train) -> None:
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
    if isinstance(taught, Teach) and taught.inputs == "same":
        for name in taught.using:
            teacher = recipe.stage(name)
            assert isinstance(teacher, Train | Pretrain)
            if teacher.lens != stage.lens:
                raise ValueError(
                    f"{taught.name!r} shows teachers the same items as the student, but {name!r} "
                    f"has another lens than {stage.name!r}; set {taught.name}.inputs=clean"
                )


def check_teachers(context: Context, stage: Teach) -> None:
    """Refuse saved teachers that are not there or do not see the training split.

    Raises:
        ValueError: so they are.
    """
    first = torch.zeros(1, dtype=torch.long)
    for name in stage.models:
        lens = open_model(name).on(context.train)
        lens.images(first)
        lens.texts(first)


def guide(context: Context, stage: Train, scale: float) -> Guide | None:
    """What tells a training how similar pairs ought to be; None where it names nothing.

    Args:
        context: the run.
        stage: the training.
        scale: units of the student's scores, see `Matcher.score_scale`.
    """
    if stage.guide is None:
        return None
    match context.recipe.stage(stage.guide):
        case Teach() as taught:
            return Teachers(teachers=tuple(_teachers(context, taught, scale)))
        case Semantics() as meant:
            place, corpus = context.place(meant.name), context.train.fingerprint
            space = CaptionSpace.open(place, fingerprint=corpus)
            return CaptionSemantics(space=space, measure=meant.measure)
    raise AssertionError(f"no guide is made of {stage.guide!r}")


def teach(context: Context, stage: Teach) -> None:
    """Write down what the training split looks like to the teachers."""
    trained = []
    for name in _names(context, stage):
        model = open_model(name)
        trained.append(Trained(model.matcher, model.on(context.train), model.source()))
    left, place = context.left(), context.place(stage.name)
    with stopping(0 if left is None else max(left, 0.01), EVERY) as watch:
        try:
            write(place, trained, form=stage.form, precision=stage.precision, stop=watch.wanted)
        except WorkStopped:
            watch.heed()
            late = watch.late and watch.asked is None
            raise Stopped("out of time" if late else "interrupted") from None
    many = f"{len(trained)} teacher{'s' if len(trained) > 1 else ''}"
    info(f"{stage.name}: {many}, {stage.form} for {len(context.train):,} images, {place}")


def mean(context: Context, stage: Semantics) -> None:
    """Write down how near the captions of the training split are in meaning."""
    place = context.place(stage.name)
    if world.rank() == 0:
        space = CaptionSpace.of(context.train, stage.space)
        space.save(place)
        texts, width = space.points.shape
        info(f"{stage.name}: {texts:,} captions in {width} dimensions, {place}")


def _teachers(context: Context, stage: Teach, scale: float) -> Iterator[Teacher]:
    """The stage's teachers; all that are plain vectors are one."""
    place = context.place(stage.name)
    store = TaughtStore.open(place, fingerprint=context.train.fingerprint)
    weights = weigher(store.manifest.teachers, scale, standardise=stage.standardise)
    if stage.form == "models":
        for number, weight in enumerate(weights):
            model = _opened(context, stage, store, number)
            lens = model.on(context.train)
            yield Frozen(matcher=model.matcher, lens=lens, inputs=stage.inputs, weight=weight)
        return
    plain = [n for n, taught in enumerate(store.manifest.teachers) if taught.plain]
    if plain:
        stores = [store.encodings[n] for n in plain]
        yield Vectors(stores=stores, weights=[weights[n] for n in plain])
    for number, weight in enumerate(weights):
        if number not in plain:
            images, texts = store.encodings[number]
            matcher = _opened(context, stage, store, number).matcher
            yield Fragments(matcher=matcher, images=images, texts=texts, weight=weight)


def _opened(context: Context, stage: Teach, store: TaughtStore, number: int) -> Model:
    """A teacher's model, if it is still the one that was asked."""
    model = open_model(_names(context, stage)[number])
    store.check(number, model.source(), context.place(stage.name))
    return model


def _names(context: Context, stage: Teach) -> tuple[str, ...]:
    """Where each teacher is."""
    return (*(str(context.place(name)) for name in stage.using), *stage.models)
