"""What the terminal shows of recipes and runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, get_args

from rich.markup import escape
from rich.table import Column, Table
from rich.tree import Tree

from counterfoil.console import console as console
from counterfoil.console import say as say
from counterfoil.recipes.ablations import LOSSES
from counterfoil.recipes.members import NAMES
from counterfoil.recipes.modern import HOSTS as MODERN
from counterfoil.recipes.modern import reads_bert
from counterfoil.recipes.ndgl_variants import VARIANTS
from counterfoil.recipes.profiles import LARGE, Dataset
from counterfoil.recipes.recipe import Pretrain, Recipe, Stage, Train, Write, plain
from counterfoil.recipes.tags import HOSTS as WRITING
from counterfoil.recipes.tags import VARIANTS as WRITTEN
from counterfoil.recipes.tags import sets
from counterfoil.recipes.tags_hosts import VARIANTS as TAUGHT
from counterfoil.recipes.tags_large import KINDS


def catalogue(recipes: Iterable[Recipe]) -> None:
    """All recipes; those that differ in host and data set alone share a line."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for recipe in recipes:
        family, host = _family(recipe.name)
        about = recipe.about.split("; ")[-1]
        found.setdefault((family, about), {})[host] = None
    table = Table(Column("recipe", no_wrap=True), "HOST", "about")
    for (family, about), hosts in found.items():
        table.add_row(*(escape(text) for text in (family, " ".join(hosts), about)))
    console.print(table)
    say(f"DATA: {' '.join(get_args(Dataset))}")
    say(f"LARGE: {' '.join(LARGE)}")
    say("scan, bfan and vsrn are ensembles of 2, but not in ndgl/ and tags/; others are one model")
    say(f"aoq/ablations/LOSS/HOST-DATA is one of them alone; LOSS: {' '.join(LOSSES)}")
    say(f"ndgl/WHAT/HOST-DATA is a comparison of gpo or chan; WHAT: {' '.join(VARIANTS)}")
    say(f"WHAT/HOST-DATA compares ways to write; WHAT: {' '.join(WRITTEN)}")
    taught = ", ".join(f"{kind} ({' '.join(hosts)})" for kind, (_, hosts) in TAUGHT.items())
    large = ", ".join(f"{begins}uniter-large-LARGE" for begins in KINDS)
    say(f"UNITER-large, with the paper's numbers for it: {large}")
    say(f"WHAT/HOST-DATA trains other hosts on foils of TAGS; WHAT (HOST): {taught}")


def _family(name: str) -> tuple[str, str]:
    """A recipe's name with HOST-DATA where host and data set stand, and the host.

    Of a host that not every data set has recipes for, the whole name.
    """
    writing = {host for host in WRITING if sets(host) == get_args(Dataset)}
    for host in sorted({*NAMES, *MODERN, *writing}, key=len, reverse=True):
        large = any(host == one and reads_bert(one) for one in MODERN)
        for data in get_args(Dataset):
            if f"{host}-{data}" in name:
                return name.replace(f"{host}-{data}", f"HOST-{'LARGE' if large else 'DATA'}"), host
    return name, ""


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
        if key in ("name", "model", "objective", "proposer", "parser") or value in (None, [], ""):
            continue
        lines.append(f"{key}: {', '.join(_named(value)) if isinstance(value, dict) else value}")
    if isinstance(stage, Pretrain):
        lines = [f"model: {stage.model!r}", *lines]
    if isinstance(stage, Write):
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
