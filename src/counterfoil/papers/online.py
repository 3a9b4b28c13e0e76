"""Recipes of single models and ensembles with their own losses: ``online`` and ``queue``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from counterfoil.core.config import lazy
from counterfoil.losses.queue import MomentumQueueLoss
from counterfoil.papers.systems import (
    COMPARED,
    JOINT,
    NAMES,
    NEWER,
    SYSTEMS,
    DataSet,
    ensemble_members,
    find_system,
    members_note,
)
from counterfoil.papers.tags.recipe import tags_recipe
from counterfoil.papers.training import (
    ModelSetting,
    as_published,
    check_numbers,
    dataset_recipe,
    evaluation_stages,
    momentum_queue,
    online_stage,
)
from counterfoil.pipelines.pipeline import Evaluate, Recipe
from counterfoil.recipes.base import Terms
from counterfoil.recipes.catalogue import OneOf

_CLASSIC = (*NAMES, *COMPARED)
_JOINT = tuple(name for name in JOINT if SYSTEMS[name].datasets)


@as_published
def online(
    *,
    model: Annotated[str, OneOf((*_CLASSIC, *NEWER, *_JOINT))] = "vsepp",
    like: DataSet = "scenes",
) -> Recipe:
    """A model as its paper trains it, on negatives of its batches, and its evaluation.

    Args:
        model: a single model, or an ensemble of two that average their scores; uniter and vilt are
            pre-trained first.
        like: data set whose numbers, widths and protocol it has.

    Raises:
        ValueError: the model has no numbers for the data set.
    """
    if model in _CLASSIC:
        return classic_recipe(model, like)
    if model in _JOINT:
        return tags_recipe("", model, like)
    check_numbers(model, like, find_system(model).datasets)
    return modern_recipe(model, like)


@as_published
def queue(
    *, model: Literal["vsepp", "gpo", "gpo-bert"] = "vsepp", like: DataSet = "scenes"
) -> Recipe:
    """The model's own loss, alone and with USER's momentum queue as a further source of negatives.

    Args:
        model: trained twice.
        like: data set whose numbers, widths and protocol it has.

    Raises:
        ValueError: the model has no numbers for the data set.
    """
    check_numbers(model, like, find_system(model).datasets)
    setup = ModelSetting(name=model, dataset=like).setup()
    more: Terms = {"queue": (1.0, lazy(MomentumQueueLoss, reduction=setup.reduction))}
    queued = replace(setup, sources=(momentum_queue(like),)).stage("queue", more)
    tests = [t for k in ("online", "queue") for t in evaluation_stages(k, model, like)]
    return dataset_recipe(
        f"queue/{model}-{like}",
        like,
        (setup.stage("online"), queued, *tests),
        "single model; its own loss, and USER's momentum queue beside it",
        results=("test-online", "test-queue"),
    )


def classic_recipe(name: str, dataset: str) -> Recipe:
    """Train a model of `CLASSIC` or an ensemble, and evaluate."""
    members = ensemble_members(name)
    trainings = (online_stage(member.model, dataset, member=member) for member in members)
    stages = *trainings, *evaluation_stages("online", name, dataset, "test")
    about = f"{members_note(name)}; online hardest triplet"
    return dataset_recipe(f"{name}-{dataset}", dataset, stages, about)


def modern_recipe(name: str, dataset: str) -> Recipe:
    """Train a model of `NEWER` and evaluate."""
    training = ModelSetting(name=name, dataset=dataset).setup().stage("online")
    stages = training, *evaluation_stages("online", name, dataset, "test")
    system = find_system(name)
    about = f"{system.title}; single model, its own loss"
    data = "scenes:features=regions" if system.boxes and dataset == "scenes" else ""
    return dataset_recipe(f"{name}-{dataset}", dataset, stages, about, data=data)


def own_recipe(name: str, *, pixels: bool) -> Recipe:
    """Train and evaluate on a user's own data: pixels where there are no features."""
    like = "scenes" if pixels else "flickr8k"
    stages = online_stage(name, like), Evaluate(name="test", using=("online",))
    return Recipe(name=f"{name}-own", stages=stages, about="online hardest triplet, own data")
