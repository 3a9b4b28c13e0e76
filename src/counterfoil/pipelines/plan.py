"""Trees that the terminal shows of recipes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.markup import escape
from rich.tree import Tree

from counterfoil.core.console import console as open_console
from counterfoil.pipelines.pipeline import Generate, Pretrain, Recipe, Stage, Train, recipe_to_dict

console = open_console()


def print_plan(recipe: Recipe) -> None:
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
    for key, value in recipe_to_dict(stage).items():
        if key in ("name", "model", "objective", "proposer", "parser") or value in (None, [], ""):
            continue
        lines.append(f"{key}: {', '.join(_named(value)) if isinstance(value, dict) else value}")
    if isinstance(stage, Pretrain):
        lines = [f"model: {stage.model!r}", *lines]
    if isinstance(stage, Generate):
        lines = [f"parser: {stage.parser!r}", *lines]
    if isinstance(stage, Train):
        lines = [f"model: {stage.model!r}", f"objective: {stage.objective!r}", *lines]
        lines += [f"proposer: {stage.proposer!r}"] if stage.proposer else []
    return lines


def _named(values: dict[str, Any], before: str = "") -> Iterator[str]:
    """``key=value`` of everything inside, nested keys joined by dots."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _named(value, f"{before}{key}.")
        elif value not in (None, [], ""):
            yield f"{before}{key}={value!r}"
