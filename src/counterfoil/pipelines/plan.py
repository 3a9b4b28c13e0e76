"""The plan of a recipe as a tree in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text
from rich.tree import Tree

from counterfoil.core.config import Config, FromStage
from counterfoil.core.console import console as open_console
from counterfoil.data.checks import counted
from counterfoil.pipelines.stages.base import Stage, recipe_to_dict
from counterfoil.pipelines.stages.train import Train
from counterfoil.pipelines.state import RunContext
from counterfoil.training.trainer import sampler_of

if TYPE_CHECKING:
    from counterfoil.data.dataset import ImageTextDataset
    from counterfoil.pipelines.pipeline import Recipe

console = open_console()


def print_plan(recipe: Recipe, dataset: ImageTextDataset | None = None) -> None:
    """Print every stage of a recipe, the stages it reads, and all its settings.

    Of trainings on a data set also the length, which depends on its size.
    """
    context = None if dataset is None else RunContext(recipe, dataset, Path(), {})
    tree = Tree(Text.assemble((recipe.name, "bold"), f"  {recipe.about}"))
    for stage in recipe.stages:
        reads = f"  ← {', '.join(stage.reads)}" if stage.reads else ""
        branch = tree.add(Text.assemble((stage.name, "bold"), f"  {stage.kind}{reads}"))
        if context and isinstance(stage, Train):
            branch.add(f"length: {_length(stage, context)}")
        for line in _settings(stage):
            branch.add(line)
    console.print(tree)


def _length(stage: Train, context: RunContext) -> str:
    """Epochs and steps of a training, and what ends it earlier, in words."""
    dev = context.dev
    plan = stage.plan if dev is None else stage.plan.on_dev(len(dev))
    batches = len(sampler_of(plan, context.train))
    total, steps = plan.total(batches), plan.steps_per_epoch(batches)
    epochs = counted(-(-total // steps), "epoch")
    words = [f"{epochs} of {counted(steps, 'step')}, {counted(total, 'step')} in all"]
    if dev is not None:
        apart = plan.epochs_per_evaluation(batches)
        often = "each epoch" if apart == 1 else f"every {apart} epochs"
        words.append(f"measured on {counted(len(dev), 'image')} of {dev.split_name} {often}")
    if dev is not None and plan.patience:
        words.append(f"ended by {counted(plan.patience, 'evaluation')} that are no better")
    if dev is None or plan.keep_last:
        words.append("the last epoch is kept")
    return "; ".join(words)


def _settings(stage: Stage) -> list[str]:
    """Lines ``key: value``: models, losses and the like first, as they are written in Python."""
    values = {field.name: getattr(stage, field.name) for field in fields(stage)}
    calls = {
        key: value if isinstance(value, tuple) else (value,)
        for key, value in values.items()
        if isinstance(value[0] if isinstance(value, tuple) and value else value, Config | FromStage)
    }
    lines = [f"{key}: {', '.join(map(repr, value))}" for key, value in calls.items()]
    for key, value in recipe_to_dict(stage).items():
        if key == "name" or key in calls or value in (None, [], ""):
            continue
        lines.append(
            f"{key}: {', '.join(_key_values(value)) if isinstance(value, dict) else value}"
        )
    return lines


def _key_values(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """``key=value`` of everything inside, nested keys joined by dots."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _key_values(value, f"{prefix}{key}.")
        elif value not in (None, [], ""):
            yield f"{prefix}{key}={value!r}"
