"""The recipe ``online``: any model of the papers with its own loss."""

from __future__ import annotations

from typing import Annotated

from counterfoil.papers.ndgl import systems as ndgl_models
from counterfoil.papers.systems import (
    COMPARED,
    NAMES,
    DataSet,
    as_published,
    check_numbers,
    online_recipe,
)
from counterfoil.papers.tags.recipe import TAGS_MODELS, tags_recipe
from counterfoil.pipelines.pipeline import Recipe
from counterfoil.recipes.catalogue import OneOf

_OLDER = (*NAMES, *COMPARED)
_MODERN = (*ndgl_models.MODERN, *ndgl_models.COMPARED)
_JOINT = tuple(name for name, model in TAGS_MODELS.items() if model.datasets)


@as_published
def online(
    *,
    model: Annotated[str, OneOf((*_OLDER, *_MODERN, *_JOINT))] = "vsepp",
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
    if model in _OLDER:
        return online_recipe(model, like)
    if model in _JOINT:
        return tags_recipe("", model, like)
    check_numbers(model, like, ndgl_models.PRESETS[model].datasets)
    return ndgl_models.modern_recipe(model, like)
