"""TAGS and TAGS-DC in the paper's large setting: UNITER-large, with its numbers of Table 5."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from counterfoil.recipes import tags
from counterfoil.recipes.pretraining import Pretrain
from counterfoil.recipes.profiles import Dataset
from counterfoil.recipes.recipe import Recipe, Stage, Train
from counterfoil.recipes.tags_numbers import LARGE_PAPER, LARGE_RELEASED

__all__ = ["KINDS", "Kind", "recipe"]

Kind = Literal["", "tags/", "tags-dc/", "tags-dc/released/"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def recipe(kind: Kind, dataset: Dataset) -> Recipe:
    """A recipe of UNITER-base with the large model and its numbers.

    Args:
        kind: what its name begins with.
        dataset: one of the paper's.
    """
    make = {
        "": tags.hard_negatives,
        "tags/": tags.tags,
        "tags-dc/": tags.tags_dc,
        "tags-dc/released/": tags.released,
    }[kind]
    base = make("uniter", dataset)
    stages = tuple(_large(stage, kind, dataset) for stage in base.stages)
    return replace(
        base,
        name=f"{kind}uniter-large-{dataset}",
        stages=stages,
        about=base.about.replace("UNITER", "UNITER-large"),
    )


def _large(stage: Stage, kind: Kind, dataset: Dataset) -> Stage:
    """The stage with the large model; a training with its numbers, too."""
    if not isinstance(stage, Train | Pretrain):
        return stage
    numbers = LARGE_RELEASED if kind == "tags-dc/released/" else LARGE_PAPER
    one, two = numbers[dataset]
    way: tags.Way = "released" if kind == "tags-dc/released/" else "tags"
    match stage.name:
        case tags.HARD:
            stage = tags.hard(dataset, one)
        case "tags" | "tags-released":
            stage = tags.first(dataset, way, name=stage.name, numbers=one)
        case "tags-dc" | "tags-dc-released":
            assert isinstance(stage, Train)
            start = stage.start or tags.STEP_1
            stage = tags.second(dataset, way, name=stage.name, start=start, numbers=two)
    wide = stage.model.but(layers=24, width=1024, heads=16, inner=4096)
    return replace(stage, model=wide)
