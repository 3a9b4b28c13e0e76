"""``--set stage.key=value``: one value of a recipe, changed by name.

A key is a path: first the stage (``*`` for every stage that has the key), then fields of records
and arguments of written calls, as in ``online.seed=3``, ``*.batch=64``,
``online.model.width=512``. The keys of a stage's plan and of its optimiser may be named directly:
``online.epochs=3`` is ``online.plan.epochs=3``. A value is read as a Python literal and must be of
the kind it replaces.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from counterfoil.recipes.recipe import Recipe, Stage
from counterfoil.spec import Late, Spec, unknown

T = TypeVar("T")
EVERY = "*"
SHORT = (("plan",), ("plan", "optimiser"))  # online.epochs is online.plan.epochs


def apply(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with these settings, applied in order.

    Raises:
        ValueError: not ``stage.key=value``, an unknown stage or key (the nearest is named), or a
            value of another kind.
    """
    for setting in settings:
        recipe = _one(recipe, setting)
    return recipe


def changed(spec: Spec[T], setting: str) -> Spec[T]:
    """A written call with one argument changed, ``key=value``.

    Raises:
        ValueError: as `apply` does.
    """
    path, equals, text = setting.partition("=")
    if not equals or not path.strip():
        raise ValueError(f"{setting!r} is no setting; write key=value, as in direction=i2t")
    return _change(spec, path.strip().split("."), _literal(text.strip()), setting)


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
    inside = _inside(holder)
    for place, reached in _short(inside):
        if name not in inside and name in reached:
            return _change(holder, [*place, *path], value, setting)
    if name not in inside:
        known = [*inside, *(key for _, reached in _short(inside) for key in reached)]
        told = unknown(name, list(dict.fromkeys(known)), f"a key of {_called(holder)}")
        raise _Absent(f"{setting!r}: {told}")
    old = inside[name]
    new = _change(old, rest, value, setting) if rest else _fitting(old, value, setting)
    return cast("T", _with(holder, name, new))


def _inside(holder: Any) -> dict[str, Any]:
    """What can be named inside a record, a written call, or a mapping."""
    if isinstance(holder, Spec):
        return dict(holder.arguments)
    if isinstance(holder, Mapping):
        return dict(holder)
    if is_dataclass(holder):
        return {f.name: getattr(holder, f.name) for f in fields(holder)}
    return {}


def _short(inside: Mapping[str, Any]) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Places whose keys may be named without naming the place, and what they hold."""
    found: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    for place in SHORT:
        reached: Any = inside
        for name in place:
            reached = _inside(reached).get(name)
        found.append((place, _inside(reached)))
    return found


def _with(holder: Any, name: str, value: Any) -> Any:
    if isinstance(holder, Spec):
        return Spec(holder.make, {**holder.arguments, name: value})
    if isinstance(holder, Mapping):
        return {**holder, name: value}
    return replace(holder, **{name: value})


def _called(holder: Any) -> str:
    if isinstance(holder, Spec):
        return holder.make.__qualname__
    return str(getattr(holder, "name", type(holder).__name__))


def _fitting(old: Any, value: Any, setting: str) -> Any:
    """The value, when it is of the kind of the old one.

    Raises:
        ValueError: it is not.
    """
    if old is None or isinstance(old, Late) or value is None:
        return value
    if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(old, tuple) and isinstance(value, list | tuple):
        return tuple(value)
    if type(old) is not type(value):
        raise ValueError(
            f"{setting!r}: {value!r} is {_kind(value)}, but this key takes {_kind(old)}, "
            f"as in {old!r}"
        )
    return value


def _kind(value: Any) -> str:
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return kinds.get(type(value), f"a {type(value).__name__}")
