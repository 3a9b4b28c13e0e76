"""What the terminal shows of recipes and runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from counterfoil import world
from counterfoil.recipes.recipe import Recipe, Stage, Train, plain

console = Console()


def say(line: str) -> None:
    """One line, from the first process only."""
    if world.rank() == 0:
        console.print(escape(line), highlight=False, soft_wrap=True)


def catalogue(recipes: Iterable[Recipe]) -> None:
    """All recipes, a line each."""
    table = Table("recipe", "stages", "data", "about")
    for recipe in recipes:
        stages = " → ".join(stage.name for stage in recipe.stages)
        table.add_row(*(escape(t) for t in (recipe.name, stages, recipe.data, recipe.about)))
    console.print(table)


def plan(recipe: Recipe) -> None:
    """Every stage of a recipe, what it reads, and all its settings."""
    tree = Tree(f"[bold]{escape(recipe.name)}[/bold]  {escape(recipe.about)}")
    for stage in recipe.stages:
        reads = f"  ← {', '.join(stage.reads)}" if stage.reads else ""
        branch = tree.add(f"[bold]{escape(stage.name)}[/bold]  {stage.kind}{escape(reads)}")
        for line in _settings(stage):
            branch.add(escape(line))
    console.print(tree)


def _settings(stage: Stage) -> list[str]:
    lines = []
    for key, value in plain(stage).items():
        if key in ("name", "model", "objective") or value in (None, [], ""):
            continue
        lines.append(f"{key}: {', '.join(_named(value)) if isinstance(value, dict) else value}")
    if isinstance(stage, Train):
        lines = [f"model: {stage.model!r}", f"objective: {stage.objective!r}", *lines]
    return lines


def _named(values: dict[str, Any], before: str = "") -> Iterator[str]:
    """``key=value`` of everything inside, nested keys joined by dots."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _named(value, f"{before}{key}.")
        elif value not in (None, [], ""):
            yield f"{before}{key}={value!r}"
