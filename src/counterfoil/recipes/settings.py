"""``--set stage.key=value``: one value of a recipe, changed by name.

A key is a path: first the stage (``*`` for every stage that has the key), then fields of records
and arguments of written calls, as in ``online.seed=3``, ``*.batch=64``,
``online.model.text.layers=2``. The keys of a stage's plan and of its optimiser may be named
directly: ``online.epochs=3`` is ``online.plan.epochs=3``; so may the terms of an objective and
their arguments: ``online.objective.triplet.steps=50``; so may each of several proposers:
``tags.proposer.tailored.temperature=1.0``. A value is read as a Python literal and must
be of the kind that its annotation allows.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from counterfoil.recipes.kinds import fitting, inside
from counterfoil.recipes.recipe import Recipe, Stage
from counterfoil.spec import Spec, unknown

T = TypeVar("T")
EVERY = "*"
SHORT = (("plan",), ("plan", "optimiser"), ("tasks",), ("terms",), ("term",), ("proposers",))


def apply(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with these settings, applied in order.

    Raises:
        ValueError: not ``stage.key=value``, an unknown stage or key (the nearest is named), or a
            value of another kind.
    """
    for setting in settings:
        recipe = _one(recipe, setting)
    return recipe


def changed(holder: T, setting: str) -> T:
    """A written call or a record with one value changed, ``key=value``.

    Raises:
        ValueError: as `apply` does.
    """
    path, equals, text = setting.partition("=")
    if not equals or not path.strip():
        raise ValueError(f"{setting!r} is no setting; write key=value, as in direction=i2t")
    return _change(holder, path.strip().split("."), _literal(text.strip()), setting)


def _one(recipe: Recipe, setting: str) -> Recipe:
    path, equals, text = setting.partition("=")
    stage, dot, key = path.strip().partition(".")
    if not (equals and dot and key):
        raise ValueError(f"{setting!r} is no setting; write stage.key=value, as in online.seed=3")
    names = [s.name for s in recipe.stages]
    if stage != EVERY and stage not in names:
        raise ValueError(unknown(stage, names, f"a stage of {recipe.name}"))
    value = _literal(text.strip())
    changed: list[Stage] = []
    met: list[ValueError] = []
    for candidate in recipe.stages:
        if stage not in (EVERY, candidate.name):
            changed.append(candidate)
            continue
        try:
            changed.append(_change(candidate, key.split("."), value, setting))
        except _Absent as absent:
            met.append(absent)
            changed.append(candidate)
    if met and len(met) == (1 if stage != EVERY else len(names)):
        raise ValueError(str(met[0])) from None
    return replace(recipe, stages=tuple(changed))


class _Absent(ValueError):
    """There is no such key here."""


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _change(holder: T, path: Sequence[str], value: Any, setting: str) -> T:
    """`holder` with the value at the end of the path replaced."""
    name, rest = path[0], path[1:]
    found = inside(holder)
    for place, reached in _short(found):
        if name not in found and name in reached:
            return _change(holder, [*place, *path], value, setting)
    if name not in found:
        known = [*found, *(key for _, reached in _short(found) for key in reached)]
        told = unknown(name, list(dict.fromkeys(known)), f"a key of {_called(holder)}")
        raise _Absent(f"{setting!r}: {told}")
    if rest:
        return cast("T", _with(holder, name, _change(found[name], rest, value, setting)))
    return cast("T", _with(holder, name, fitting(holder, name, value, setting)))


def _short(found: Mapping[str, Any]) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Places whose keys may be named without naming the place, and what they hold."""
    places: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    for place in SHORT:
        reached: Any = found
        for name in place:
            reached = inside(reached).get(name)
        places.append((place, inside(reached)))
    return places


def _with(holder: Any, name: str, value: Any) -> Any:
    if isinstance(holder, Spec):
        return Spec(holder.make, {**holder.arguments, name: value})
    if isinstance(holder, Mapping):
        return {**holder, name: value}
    if isinstance(holder, tuple):
        return tuple({**inside(holder), name: value}.values())
    return replace(holder, **{name: value})


def _called(holder: Any) -> str:
    if isinstance(holder, Spec):
        return holder.make.__qualname__
    if isinstance(holder, tuple):
        return "this term" if "term" in inside(holder) else "these"
    return str(getattr(holder, "name", type(holder).__name__))
