"""Whether a value that a user typed may stand where an annotation says what is allowed."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from counterfoil.core.config import Config, FromData, unknown_name

if TYPE_CHECKING:
    from counterfoil.pipelines.pipeline import Recipe, Stage

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def match_type(holder: Any) -> dict[str, Any]:
    """What can be named inside a record, a written call (defaults included), or a mapping.

    Inside a term with its weight these are "weight" and "term"; inside several written calls the
    names of what is called, in small letters.
    """
    if isinstance(holder, Config):
        named = inspect.signature(holder.make).parameters.values()
        given = {p.name: p.default for p in named if p.default is not p.empty}
        return given | dict(holder.arguments)
    if isinstance(holder, Mapping):
        return dict(holder)
    if isinstance(holder, tuple) and holder and isinstance(holder[-1], Config):
        return _parts(holder)
    if is_dataclass(holder):
        return {f.name: getattr(holder, f.name) for f in fields(holder) if f.init}
    return {}


def _parts(holder: tuple[Any, ...]) -> dict[str, Any]:
    """What can be named inside a term with its weight, or inside several written calls."""
    if not isinstance(holder[0], Config):
        return {"weight": holder[0], "term": holder[1]} if len(holder) == 2 else {}
    named = {one.make.__name__.lower(): one for one in holder if isinstance(one, Config)}
    return named if len(named) == len(holder) else {}


def convert_value(holder: Any, name: str, value: Any, setting: str) -> Any:
    """The value in the form in which it may replace what stands under a name.

    Raises:
        ValueError: it is of another kind, or none of those that are allowed.
    """
    old, hint = match_type(holder)[name], _hint(holder, name)
    if match_type(old) and not isinstance(old, FromData):
        keys = ", ".join(sorted(match_type(old)))
        raise ValueError(f"{setting!r}: {name!r} cannot be replaced whole; set one of: {keys}")
    value = _cast(hint, value)
    if _fits(hint, value):
        return value
    if choices := _choices(hint):
        raise ValueError(
            f"{setting!r}: " + unknown_name(str(value), choices, f"a value of {name!r}")
        )
    example = "" if old is None or isinstance(old, FromData) else f", as in {old!r}"
    raise ValueError(
        f"{setting!r}: {value!r} is {_kind(type(value))}, but {name!r} takes {_said(hint)}{example}"
    )


def _hint(holder: Any, name: str) -> Any:
    """The annotation of what stands under a name; Any where there is none to be found."""
    if isinstance(holder, tuple):
        return float
    made: Any = holder.make if isinstance(holder, Config) else type(holder)
    if isinstance(holder, Config) and isinstance(made, type):
        made = vars(made).get("__init__", made)
    try:
        return get_type_hints(made).get(name, Any)
    except NameError:  # imported for the type checker only
        return Any


def _cast(hint: Any, value: Any) -> Any:
    """Lists as tuples, and whole numbers as floats where a float is wanted."""
    if isinstance(value, list | tuple):
        parts = [_element(hint, place) for place in range(len(value))]
        return tuple(_cast(part, inner) for part, inner in zip(parts, value))
    if type(value) is int and not _fits_exactly(hint, int) and _fits_exactly(hint, float):
        return float(value)
    return value


def _element(hint: Any, place: int) -> Any:
    """The annotation of one element of a tuple."""
    found = [option for option in _options(hint) if get_origin(option) is tuple]
    parts = get_args(found[0]) if found else ()
    if len(parts) == 2 and parts[1] is Ellipsis:
        return parts[0]
    return parts[place] if place < len(parts) else Any


def _fits(hint: Any, value: Any) -> bool:
    for option in _options(hint):
        origin = get_origin(option)
        if option is Any or (origin is Literal and value in get_args(option)):
            return True
        if origin is tuple and isinstance(value, tuple):
            parts = get_args(option)
            many = parts[1:] == (Ellipsis,) or len(parts) == len(value)
            if many and all(_fits(_element(option, n), v) for n, v in enumerate(value)):
                return True
        if type(value) is option:
            return True
    return False


def _fits_exactly(hint: Any, kind: type) -> bool:
    return kind in _options(hint)


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _choices(hint: Any) -> list[str]:
    literals = [option for option in _options(hint) if get_origin(option) is Literal]
    return [str(choice) for literal in literals for choice in get_args(literal)]


def _said(hint: Any) -> str:
    return " or ".join(_kind(option) for option in _options(hint))


def _kind(kind: Any) -> str:
    if kind is type(None):
        return "none"
    if kind is tuple or get_origin(kind) is tuple:
        return "a list"
    return _KINDS.get(kind, f"a {getattr(kind, '__name__', kind)}")


# ``--set stage.key=value``: one value of a recipe, changed by name.
#
# A key is a path: first the stage (``*`` for every stage that has the key), then fields of records
# and arguments of written calls, as in ``online.seed=3``, ``*.batch=64``,
# ``online.model.text.layers=2``. The keys of a stage's plan and of its optimiser may be named
# directly: ``online.epochs=3`` is ``online.plan.epochs=3``; so may the terms of an objective and
# their arguments: ``online.objective.triplet.steps=50``; so may each of several proposers:
# ``tags.proposer.tagsgenerator.temperature=1.0``. A value is read as a Python literal and must
# be of the kind that its annotation allows.


T = TypeVar("T")
EVERY = "*"
SHORT = (("plan",), ("plan", "optimiser"), ("tasks",), ("terms",), ("term",), ("proposers",))


def apply_overrides(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with these settings, applied in order.

    Raises:
        ValueError: not ``stage.key=value``, an unknown stage or key (the nearest is named), or a
            value of another kind.
    """
    for setting in settings:
        recipe = _one(recipe, setting)
    return recipe


def changed_settings(holder: T, setting: str) -> T:
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
        raise ValueError(unknown_name(stage, names, f"a stage of {recipe.name}"))
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
    found = match_type(holder)
    for place, reached in _short(found):
        if name not in found and name in reached:
            return _change(holder, [*place, *path], value, setting)
    if name not in found:
        known = [*found, *(key for _, reached in _short(found) for key in reached)]
        told = unknown_name(name, list(dict.fromkeys(known)), f"a key of {_called(holder)}")
        raise _Absent(f"{setting!r}: {told}")
    if rest:
        return cast("T", _with(holder, name, _change(found[name], rest, value, setting)))
    return cast("T", _with(holder, name, convert_value(holder, name, value, setting)))


def _short(found: Mapping[str, Any]) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Places whose keys may be named without naming the place, and what they hold."""
    places: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    for place in SHORT:
        reached: Any = found
        for name in place:
            reached = match_type(reached).get(name)
        places.append((place, match_type(reached)))
    return places


def _with(holder: Any, name: str, value: Any) -> Any:
    if isinstance(holder, Config):
        return Config(holder.make, {**holder.arguments, name: value})
    if isinstance(holder, Mapping):
        return {**holder, name: value}
    if isinstance(holder, tuple):
        return tuple({**match_type(holder), name: value}.values())
    return replace(holder, **{name: value})


def _called(holder: Any) -> str:
    if isinstance(holder, Config):
        return holder.make.__qualname__
    if isinstance(holder, tuple):
        return "this term" if "term" in match_type(holder) else "these"
    return str(getattr(holder, "name", type(holder).__name__))
