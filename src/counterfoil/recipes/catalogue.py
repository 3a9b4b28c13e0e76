"""Recipes: functions with arguments, by name, and recipes from a user's own file.

The names are registered, see `counterfoil.core.registry`; a recipe of one's own is a function with
keyword arguments of type str, int, float, bool or `Literal`, told of in its docstring::

    @register.recipe("twice")
    def twice(*, model: Literal["small", "large"] = "small") -> Recipe: ...

``counterfoil run twice --model large`` then runs it, as does ``cf.run("twice", model="large")``.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import re
import runpy
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    Protocol,
    TypeVar,
    cast,
    final,
    get_args,
    get_origin,
    get_type_hints,
)

from rich.table import Column, Table

from counterfoil.core import registry
from counterfoil.core.config import Config, unknown_name
from counterfoil.core.console import console, output
from counterfoil.losses.schedules import StartAt, SwitchAfter
from counterfoil.pipelines.pipeline import Recipe, Stage, Train
from counterfoil.training.mined import Mined

SMOKE_STEPS = 20
SMOKE_WARMUP = 5


# Arguments of recipes


@final
@dataclass(frozen=True)
class OneOf:
    """Annotation of an argument that has one of these values, which are not spelt in its type."""

    values: tuple[str, ...]


@final
@dataclass(frozen=True)
class RecipeArgument:
    """An argument of a recipe's function, as the command line offers it.

    Attributes:
        name: as in Python.
        kind: str, int, float or bool.
        values: the values it may have; empty for any of its kind.
        default: where it is not given; `inspect.Parameter.empty` if it has to be.
        about: a sentence of the docstring.
    """

    name: str
    kind: type
    values: tuple[Any, ...]
    default: Any
    about: str

    @property
    def option(self) -> str:
        """Its option on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty

    def read(self, recipe: str, value: object) -> Any:
        """The value, also from its text on a command line.

        Raises:
            ValueError: it is not of the argument's kind, or not among its values.
        """
        if isinstance(value, str) and self.kind in (int, float):
            with suppress(ValueError):  # refused below
                value = self.kind(value)
        if self.values:
            if value not in self.values:
                noun = f"a value of {self.name!r} of {recipe}"
                raise ValueError(unknown_name(str(value), [*map(str, self.values)], noun))
        elif type(value) is not self.kind:
            words = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}
            raise ValueError(f"{self.name!r} of {recipe} is {value!r}; give {words[self.kind]}")
        return value


def recipe_arguments(make: Callable[..., Recipe]) -> tuple[RecipeArgument, ...]:
    """The arguments of a recipe's function, from its signature and its docstring.

    Raises:
        TypeError: one has a type that no text on a command line stands for.
    """
    hints = get_type_hints(make, include_extras=True)
    told = _told(inspect.getdoc(make) or "")
    found = []
    for parameter in inspect.signature(make).parameters.values():
        hint: Any = hints.get(parameter.name, str)
        values: tuple[Any, ...] = ()
        if get_origin(hint) is Annotated:
            hint, *notes = get_args(hint)
            values = next((note.values for note in notes if isinstance(note, OneOf)), ())
        if get_origin(hint) is Literal:
            values = get_args(hint)
            hint = type(values[0])
        if hint not in (str, int, float, bool):
            raise TypeError(
                f"argument {parameter.name!r} of the recipe {make.__qualname__} is of type {hint}; "
                "str, int, float, bool and Literal can be given on a command line"
            )
        about = told.get(parameter.name, "")
        found.append(RecipeArgument(parameter.name, hint, values, parameter.default, about))
    return tuple(found)


def _told(docstring: str) -> dict[str, str]:
    """What the section "Args" of a docstring says of each argument."""
    _, _, section = docstring.partition("\nArgs:\n")
    section = re.split(r"\n\S", section)[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


# Recipes by name


def recipe_function(name: str) -> Callable[..., Recipe]:
    """The function that a recipe's name stands for.

    Raises:
        ValueError: there is none; the message has the nearest name.
    """
    known = registry.names("recipe")
    if name not in known and not registry.is_absent("recipe", name):
        pretrained = " --model MODEL" if name in registry.names("training") else ""
        if pretrained or name in _scratch_names():
            raise ValueError(
                f"{name!r} is not a recipe but a training, whose stages depend on the data; "
                f"`counterfoil train {name}{pretrained} --data DATA --plan` shows them"
            )
        near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"{name!r} is not a recipe; {hint}`counterfoil plan` lists them, and a file ends in .py"
        )
    make: Callable[..., Recipe] = registry.find("recipe", name)
    return make


def find_recipe(name: str, **arguments: Any) -> Recipe:
    """The recipe of this name with these arguments, or the one that a file calls ``recipe``.

    Raises:
        ValueError: there is none, or an argument is unknown, missing or has a value that it may not
            have.
    """
    if name.endswith(".py"):
        if arguments:
            raise ValueError(f"a recipe in a file takes no arguments; leave {min(arguments)!r} out")
        return _from_file(Path(name))
    make = recipe_function(name)
    known = {argument.name: argument for argument in recipe_arguments(make)}
    for given in arguments:
        if given not in known:
            raise ValueError(unknown_name(given, [*known], f"an argument of {name}"))
    for argument in known.values():
        if argument.required and argument.name not in arguments:
            raise ValueError(f"{name} needs {argument.name}: {argument.about or 'give it'}")
    return make(**{key: known[key].read(name, value) for key, value in arguments.items()})


def all_recipes(**fixed: Any) -> Iterator[Recipe]:
    """Every recipe with every combination of the values that its arguments list.

    Only those that have all of the `fixed` arguments, with these values.
    """
    for name in registry.names("recipe"):
        known = recipe_arguments(recipe_function(name))
        if not fixed.keys() <= {argument.name for argument in known}:
            continue
        varied = [a for a in known if a.name not in fixed and (a.values or a.kind is bool)]
        for values in itertools.product(*(a.values or (False, True) for a in varied)):
            arguments = {argument.name: value for argument, value in zip(varied, values)}
            try:
                recipe = find_recipe(name, **fixed, **arguments)
            except ValueError:  # not every model has numbers for every data set
                continue
            yield recipe


def print_catalogue() -> None:
    """Print all recipes with their options."""
    table = Table(Column("recipe", no_wrap=True), "options", "about")
    for name in registry.names("recipe"):
        make = recipe_function(name)
        options = " ".join(argument.option for argument in recipe_arguments(make))
        table.add_row(name, options, (inspect.getdoc(make) or "").split("\n", maxsplit=1)[0])
    console().print(table)
    output("`counterfoil plan RECIPE --help` tells the values of its options")


# Models that are trained from scratch on one's own data


class ScratchModels(Protocol):
    """Models to train from scratch on one's own data, registered as the kind "scratch"."""

    def names(self) -> list[str]:
        """Names of the models."""

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


def own_data_recipe(name: str, **options: Any) -> Recipe:
    """Train a model from scratch on one's own data, see `ScratchModels`.

    Raises:
        ValueError: there is no such model, or an option does not fit it.
    """
    for models in _scratch():
        if name in models.names():
            return models.own_data_recipe(name, **options)
    raise ValueError(unknown_name(name, _scratch_names(), "a model to train"))


def _scratch() -> list[ScratchModels]:
    return [registry.find("scratch", name) for name in registry.names("scratch")]


def _scratch_names() -> list[str]:
    return [name for models in _scratch() for name in models.names()]


# Small runs, and files


def smoke_recipe(recipe: Recipe) -> Recipe:
    """The recipe with at most 20 training steps a stage, to see whether it runs at all.

    Warm-ups are cut too, so that the loss that follows them is reached, unless it samples from
    lists that are mined only after some epochs.
    """
    return replace(recipe, stages=tuple(map(_short, recipe.stages)))


def _short(stage: Stage) -> Stage:
    stage = stage.shortened(SMOKE_STEPS)
    if isinstance(stage, Train) and not _mines_first_lists(stage):
        return replace(stage, objective=_with_short_warmups(stage.objective))
    return stage


def _mines_first_lists(stage: Train) -> bool:
    """True if a training draws from lists, and has none before it has mined them."""
    mined = stage.source(Mined)
    return mined is not None and mined.arguments.get("negatives") is None


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
