"""Which settings a sweep tries; the points are recipes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch

from counterfoil.recipes import catalogue
from counterfoil.recipes.recipe import Recipe, Stage, Train
from counterfoil.recipes.settings import apply
from counterfoil.spec import unknown

SWEEPS = "sweeps/"  # what the names of those that are built in begin with
MOST = 10_000  # points of a grid
_OPEN, _SHUT, _QUOTES = "([{", ")]}", "'\""


@final
@dataclass(frozen=True, kw_only=True)
class Axis:
    """Values that one key of a recipe takes, or several keys together.

    Attributes:
        keys: as ``--set`` names them.
        values: as ``--set`` reads them.

    Raises:
        ValueError: no value, or one twice.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.values or not all(self.values) or not all(self.keys):
            raise ValueError(
                f"{self.name}={','.join(self.values)} is no axis of a sweep; write "
                "stage.key=value,value, as in online.margin=0.1,0.2"
            )
        twice = [value for value in self.values if self.values.count(value) > 1]
        if twice:
            raise ValueError(f"{self.name} is to be {twice[0]} twice; name each value once")

    @property
    def name(self) -> str:
        """The keys, joined by +."""
        return "+".join(self.keys)

    def settings(self, value: str) -> tuple[str, ...]:
        """What ``--set`` would be given for one of the values."""
        return tuple(f"{key}={value}" for key in self.keys)


@final
@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A recipe and what of it is varied.

    Attributes:
        name: as in "sweeps/tags-dc-scenes".
        recipe: what is run at every point.
        axes: every combination of their values is a point.
        stage: training whose dev figure is compared; empty for the last one.
        draw: how many points are drawn from the grid; 0 for all.
        seed: of the draw.
        seeds: repeats of every point: what is added to the seed of every training, but not of
            pre-training, which the repeats share.
        smoke: at most 20 training steps a stage.
        about: one sentence.

    Raises:
        ValueError: nothing to vary, a key twice, more points are to be drawn than there are, a
            seed twice or below 0, or no such training.
    """

    name: str
    recipe: Recipe
    axes: tuple[Axis, ...]
    stage: str = ""
    draw: int = 0
    seed: int = 0
    seeds: tuple[int, ...] = (0,)
    smoke: bool = False
    about: str = ""

    def __post_init__(self) -> None:
        if not self.axes:
            raise ValueError(f"{self.name} varies nothing; add --over stage.key=value,value")
        keys = [key for axis in self.axes for key in axis.keys]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise ValueError(f"{twice[0]} is varied twice; name each key once")
        if self.size > MOST:
            raise ValueError(f"the grid has {self.size:,} points, at most {MOST:,} are allowed")
        if self.draw > self.size:
            raise ValueError(f"{self.draw:,} points cannot be drawn, the grid has {self.size:,}")
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            told = ",".join(map(str, self.seeds))
            raise ValueError(f"--seeds {told}: different whole numbers from 0 on are needed")
        self._check_stage()

    def _check_stage(self) -> None:
        trained = [stage.name for stage in self.recipe.stages if isinstance(stage, Train)]
        if not trained:
            raise ValueError(f"{self.recipe.name} trains nothing that could be compared on dev")
        if self.stage and self.stage not in trained:
            raise ValueError(unknown(self.stage, trained, f"a training of {self.recipe.name}"))

    @property
    def folder(self) -> Path:
        """Where results go when nobody says."""
        return Path("runs") / SWEEPS / self.name.removeprefix(SWEEPS)

    @property
    def size(self) -> int:
        """Points of the whole grid."""
        count = 1
        for axis in self.axes:
            count *= len(axis.values)
        return count

    @property
    def compared(self) -> str:
        """Training whose dev figure is compared."""
        trained = [stage.name for stage in self.recipe.stages if isinstance(stage, Train)]
        return self.stage or trained[-1]


@final
@dataclass(frozen=True, kw_only=True)
class Point:
    """One combination of values.

    Attributes:
        values: one for each axis.
        recipes: one for each seed.
    """

    values: tuple[str, ...]
    recipes: tuple[Recipe, ...]


def axis(text: str) -> Axis:
    """An axis as a user writes it: ``key=value,value``, or ``key+key=…`` for keys kept equal.

    Commas inside brackets and quotes belong to a value: ``online.betas=(0.9, 0.98),(0.9, 0.999)``.

    Raises:
        ValueError: it is not written so.
    """
    keys, equals, values = text.partition("=")
    if not equals:
        raise ValueError(
            f"{text!r} is no axis of a sweep; write stage.key=value,value, as in "
            "online.margin=0.1,0.2"
        )
    return Axis(keys=tuple(key.strip() for key in keys.split("+")), values=_split(values))


def points(sweep: Sweep) -> tuple[Point, ...]:
    """The points of a sweep, in the order of the grid.

    Raises:
        ValueError: a key or value that the recipe does not take.
    """
    for one in sweep.axes:  # a wrong value is told before many right ones are built
        for value in one.values:
            apply(sweep.recipe, one.settings(value))
    return tuple(_point(sweep, _values(sweep, number)) for number in _drawn(sweep))


def behind(recipe: Recipe, stage: str) -> tuple[Stage, ...]:
    """A stage and all that it depends on, in order."""
    wanted = [stage]
    for name in wanted:  # grows by what each stage reads
        wanted += [read for read in recipe.stage(name).reads if read not in wanted]
    return tuple(one for one in recipe.stages if one.name in wanted)


def labels(axes: Sequence[Axis]) -> tuple[str, ...]:
    """Names of axes as short as tells each from the others."""
    return tuple(_label(axis, [other for other in axes if other is not axis]) for axis in axes)


def _label(axis: Axis, others: Sequence[Axis]) -> str:
    for many in range(1, 1 + max(len(key.split(".")) for key in axis.keys)):
        short = _endings(axis, many)
        same = any(_endings(other, many) == short for other in others)
        if len(set(short)) == len(short) and not same:
            return "+".join(short)
    return axis.name


def _endings(axis: Axis, many: int) -> tuple[str, ...]:
    """The last parts of its keys."""
    return tuple(".".join(key.split(".")[-many:]) for key in axis.keys)


def _point(sweep: Sweep, values: tuple[str, ...]) -> Point:
    settings = [s for axis, value in zip(sweep.axes, values) for s in axis.settings(value)]
    found = apply(sweep.recipe, settings)
    if sweep.smoke:
        found = catalogue.smoke(found)
    return Point(values=values, recipes=tuple(_seeded(found, seed) for seed in sweep.seeds))


def _seeded(recipe: Recipe, more: int) -> Recipe:
    """The recipe with another seed of every training."""
    stages = [
        replace(stage, plan=replace(stage.plan, seed=stage.plan.seed + more))
        if isinstance(stage, Train)
        else stage
        for stage in recipe.stages
    ]
    return replace(recipe, stages=tuple(stages))


def _drawn(sweep: Sweep) -> list[int]:
    """Numbers of the points; those of a longer draw with the same seed hold those of a shorter."""
    if not sweep.draw:
        return list(range(sweep.size))
    order = torch.randperm(sweep.size, generator=torch.Generator().manual_seed(sweep.seed))
    return sorted(order[: sweep.draw].tolist())


def _values(sweep: Sweep, number: int) -> tuple[str, ...]:
    """The values of a point; those of the last axis change first."""
    found = []
    for axis in reversed(sweep.axes):
        number, place = divmod(number, len(axis.values))
        found.append(axis.values[place])
    return tuple(reversed(found))


def _split(text: str) -> tuple[str, ...]:
    """Values between commas that are in no bracket and no quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if letter == "," and not depth and not quote:
            parts.append("")
            continue
        if quote:
            quote = "" if letter == quote else quote
        elif letter in _QUOTES:
            quote = letter
        depth += 0 if quote else (letter in _OPEN) - (letter in _SHUT)
        parts[-1] += letter
    return tuple(part.strip() for part in parts)
