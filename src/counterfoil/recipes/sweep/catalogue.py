"""The sweeps that can be run by name, and those that a user asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from counterfoil.core.literals import parse_choice
from counterfoil.recipes import catalogue
from counterfoil.recipes.settings import apply
from counterfoil.recipes.sweep import tags
from counterfoil.recipes.sweep.grid import SWEEPS, Sweep, axis


def sweeps() -> tuple[Sweep, ...]:
    """Every sweep that has a name."""
    return tuple(make() for make in _known().values())


def find(name: str) -> Sweep:
    """The sweep of this name.

    Raises:
        ValueError: there is none; the nearest name is told.
    """
    known = _known()
    parse_choice(known, name, "a sweep")
    return known[name]()


def asked(
    name: str,
    over: Sequence[str] = (),
    *,
    stage: str | None = None,
    settings: Sequence[str] = (),
    draw: int | None = None,
    seed: int = 0,
    seeds: str = "0",
    smoke: bool = False,
) -> Sweep:
    """What a user asks for: a sweep by its name, or a recipe and what of it to vary.

    Args:
        name: of a sweep, of a recipe, or a Python file.
        over: axes, each as `counterfoil.recipes.sweep.grid.axis` reads it.
        stage: training whose dev figure is compared; none for the last one.
        settings: what else is changed, at every point.
        draw: how many points to draw; 0 for the whole grid, none for what the sweep says.
        seed: of the draw.
        seeds: repeats, whole numbers between commas.
        smoke: at most 20 training steps a stage.

    Raises:
        ValueError: nothing of this name, or nothing that can be varied so.
    """
    if name.startswith(SWEEPS):
        if over or stage:
            raise ValueError(
                f"{name} says what is varied and compared; --over and --stage go with a recipe"
            )
        found = find(name)
        found = replace(found, draw=found.draw if draw is None else draw)
    else:
        axes = tuple(axis(text) for text in over)
        recipe = catalogue.find(name)
        found = Sweep(name=recipe.name, recipe=recipe, axes=axes, stage=stage or "", draw=draw or 0)
    recipe = apply(found.recipe, settings)
    return replace(found, recipe=recipe, seed=seed, seeds=_whole(seeds), smoke=smoke)


def _whole(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"--seeds {text}: whole numbers between commas are needed, as in 0,1,2"
        ) from None


def _known() -> dict[str, Callable[[], Sweep]]:
    rows: dict[str, Callable[[], Sweep]] = {}
    for to in catalogue.SETS:
        rows[f"{SWEEPS}tags-{to}"] = partial(tags.first, to)
        rows[f"{SWEEPS}tags-dc-{to}"] = partial(tags.second, to)
    return rows
