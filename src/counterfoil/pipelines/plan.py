"""The plan of a recipe as a tree in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rich.text import Text
from rich.tree import Tree

from counterfoil.core.config import Config, FromStage
from counterfoil.core.console import console as open_console
from counterfoil.pipelines.stages.base import Stage, recipe_to_dict

if TYPE_CHECKING:
    from counterfoil.pipelines.pipeline import Recipe

console = open_console()


def print_plan(recipe: Recipe) -> None:
    """Print every stage of a recipe, the stages it reads, and all its settings."""
    tree = Tree(Text.assemble((recipe.name, "bold"), f"  {recipe.about}"))
    for stage in recipe.stages:
        reads = f"  ← {', '.join(stage.reads)}" if stage.reads else ""
        branch = tree.add(Text.assemble((stage.name, "bold"), f"  {stage.kind}{reads}"))
        for line in _settings(stage):
            branch.add(line)
    console.print(tree)


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
