"""Recipes by name, and recipes from a user's own file.

The names are registered, see `counterfoil.core.registry`: a recipe of one's own is a function that
returns it::

    @register.recipe("twice")
    def twice() -> Recipe: ...
"""

from __future__ import annotations

import difflib
import runpy
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from rich.table import Column, Table

from counterfoil.core import registry
from counterfoil.core.config import Config, unknown_name
from counterfoil.core.console import console
from counterfoil.losses.schedules import StartAt, SwitchAfter
from counterfoil.pipelines.pipeline import Recipe, Stage, Train

SMOKE_STEPS = 20
SMOKE_WARMUP = 5

Recipes = dict[str, Callable[[], Recipe]]  # how each recipe is made, by name


@runtime_checkable
class Catalogue(Protocol):
    """Many recipes that are registered under one name, and models to train on one's own data."""

    def recipes(self) -> Recipes:
        """How each recipe is made, by name."""

    def models(self) -> list[str]:
        """Models that can be trained from scratch on one's own data."""

    def own_data_recipe(
        self,
        name: str,
        *,
        pixels: bool,
        teachers: Sequence[str] = (),
        lengths: tuple[int, int],
        tower: str | None = None,
    ) -> Recipe:
        """Train such a model and evaluate it."""

    def describe(self) -> None:
        """Print the recipes."""


def _demo() -> Recipe:
    from counterfoil.recipes.demo import demo_recipe

    return demo_recipe()


def _registered() -> dict[str, Any]:
    return {name: registry.find("recipe", name) for name in registry.names("recipe")}


def catalogues() -> list[Catalogue]:
    """The registered catalogues."""
    return [part for part in _registered().values() if isinstance(part, Catalogue)]


def known_recipes() -> Recipes:
    """How every recipe is made, by name.

    Raises:
        ValueError: two recipes have one name.
    """
    recipes: Recipes = {"demo": _demo}
    for name, part in _registered().items():
        more = part.recipes() if isinstance(part, Catalogue) else {name: part}
        if twice := recipes.keys() & more.keys():
            raise ValueError(
                f"there is a recipe {min(twice)!r} already; register yours under another name"
            )
        recipes |= more
    return recipes


def find_recipe(name: str) -> Recipe:
    """The recipe of this name, or the one that a Python file calls ``recipe``.

    Raises:
        ValueError: there is none; the message has the nearest name.
    """
    if name.endswith(".py"):
        return _from_file(Path(name))
    if name == "demo":
        return _demo()
    known = known_recipes()
    if name not in known:
        pretrained = " --model MODEL" if name in registry.names("training") else ""
        if pretrained or any(name in catalogue.models() for catalogue in catalogues()):
            raise ValueError(
                f"{name!r} is not a recipe but a training, whose stages depend on the data; "
                f"`counterfoil train {name}{pretrained} --data DATA --plan` shows them"
            )
        near = difflib.get_close_matches(name, list(known), 1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"{name!r} is not a recipe; {hint}`counterfoil plan` lists them, and a file ends in .py"
        )
    return known[name]()


def own_data_recipe(name: str, **options: Any) -> Recipe:
    """Train a model of a catalogue from scratch on one's own data, see `Catalogue`.

    Raises:
        ValueError: no catalogue has the model, or an option does not fit it.
    """
    for catalogue in catalogues():
        if name in catalogue.models():
            return catalogue.own_data_recipe(name, **options)
    known = [model for catalogue in catalogues() for model in catalogue.models()]
    raise ValueError(unknown_name(name, known, "a model to train"))


def print_catalogue() -> None:
    """Print all recipes."""
    single = {"demo": _demo}
    single |= {n: part for n, part in _registered().items() if not isinstance(part, Catalogue)}
    table = Table(Column("recipe", no_wrap=True), "", "about")
    for name, make in single.items():
        table.add_row(name, "", make().about)
    console().print(table)
    for catalogue in catalogues():
        catalogue.describe()


def smoke_recipe(recipe: Recipe) -> Recipe:
    """The recipe with at most 20 training steps a stage, to see whether it runs at all.

    Warm-ups are cut too, so that the loss that follows them is reached, unless it samples from
    lists that are mined only after some epochs.
    """
    return replace(recipe, stages=tuple(map(_short, recipe.stages)))


def _short(stage: Stage) -> Stage:
    stage = stage.shortened(SMOKE_STEPS)
    if isinstance(stage, Train) and (stage.negatives or not stage.refresh.every):
        return replace(stage, objective=_with_short_warmups(stage.objective))
    return stage


T = TypeVar("T")


def _with_short_warmups(value: T) -> T:
    """An objective's configuration in which no schedule waits longer than a few steps."""
    result: Any = value
    match result:
        case Config():
            arguments = {k: _with_short_warmups(inner) for k, inner in result.arguments.items()}
            if result.make in (SwitchAfter, StartAt):
                arguments["steps"] = min(arguments["steps"], SMOKE_WARMUP)
            result = Config(result.make, arguments)
        case Mapping():
            result = {name: _with_short_warmups(inner) for name, inner in result.items()}
        case tuple():
            result = tuple(_with_short_warmups(inner) for inner in result)
    return cast("T", result)


def _from_file(path: Path) -> Recipe:
    if not path.is_file():
        raise ValueError(f"{path} does not exist; a Python file that sets `recipe` is needed there")
    try:
        recipe = runpy.run_path(str(path)).get("recipe")
    except Exception as error:  # whatever a user's own file may raise
        raise ValueError(f"{path}{_line(error, path)}: {_message(error)}") from error
    if not isinstance(recipe, Recipe):
        raise ValueError(f"{path} does not set `recipe` to a counterfoil.pipelines.pipeline.Recipe")
    return recipe


def _line(error: Exception, path: Path) -> str:
    """The last line of a user's file that an error passed through."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""


def _message(error: Exception) -> str:
    if isinstance(error, ValueError):  # ours are sentences
        return str(error)
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
