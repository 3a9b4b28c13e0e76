"""TAGS on a user's own photos: ViLT from public weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from counterfoil.recipes import tags
from counterfoil.recipes.measures import Evaluate
from counterfoil.recipes.recipe import Compare, Recipe, Stage, Train
from counterfoil.recipes.tags_vilt import from_public

Name = Literal["vilt", "tags/vilt", "tags-dc/vilt"]
NAMES: tuple[Name, ...] = get_args(Name)
AT_ONCE = 2  # pairs whose sequences fit a graphics card of 16 GB


def own(name: Name) -> Recipe:
    """Hard negatives screened, step 1 of TAGS, or both steps; numbers are those of Flickr8k.

    The first training begins with public weights, not with a pre-training.
    """
    match name:
        case "vilt":
            trainings = [tags.hard("flickr8k")]
        case "tags/vilt":
            trainings = [tags.first("flickr8k")]
        case "tags-dc/vilt":
            trainings = [tags.first("flickr8k"), tags.second("flickr8k")]
    first, *rest = map(_fitting, trainings)
    trainings = [replace(first, start=None), *rest]
    tests = [Evaluate(name=f"test-{one.name}", using=(one.name,)) for one in trainings]
    stages: tuple[Stage, ...] = (*trainings, *tests)
    if rest:
        stages = (*stages, Compare(name="report", results=tuple(test.name for test in tests)))
    return Recipe(name=f"{name}-own", stages=stages, about="ViLT; own photos")


def _fitting(stage: Train) -> Train:
    whole = stage.plan.batch * stage.plan.accumulate
    plan = replace(stage.plan, batch=AT_ONCE, accumulate=whole // AT_ONCE)
    return replace(from_public(stage), plan=plan)
