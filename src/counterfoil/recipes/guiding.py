"""Guides: the stages that make them, and what a training makes of such a stage."""

from __future__ import annotations

from counterfoil.negatives.guide import Guide
from counterfoil.recipes.context import Context
from counterfoil.recipes.guides import Teach
from counterfoil.recipes.recipe import Train


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
            return _teachers(context, taught, scale)
    raise AssertionError(f"no guide is made of {stage.guide!r}")


def teach(context: Context, stage: Teach) -> None:
    """Write down what a split looks like to the teachers."""
    raise NotImplementedError


def _teachers(context: Context, stage: Teach, scale: float) -> Guide:
    raise NotImplementedError
