"""Whether a value that a user typed may stand where an annotation says what is allowed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from counterfoil.spec import Late, Spec, unknown

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def inside(holder: Any) -> dict[str, Any]:
    """What can be named inside a record, a written call (defaults included), or a mapping.

    Inside a term with its weight these are "weight" and "term"; inside several written calls the
    names of what is called, in small letters.
    """
    if isinstance(holder, Spec):
        named = inspect.signature(holder.make).parameters.values()
        given = {p.name: p.default for p in named if p.default is not p.empty}
        return given | dict(holder.arguments)
    if isinstance(holder, Mapping):
        return dict(holder)
    if isinstance(holder, tuple) and holder and isinstance(holder[-1], Spec):
        return _parts(holder)
    if is_dataclass(holder):
        return {f.name: getattr(holder, f.name) for f in fields(holder) if f.init}
    return {}


def _parts(holder: tuple[Any, ...]) -> dict[str, Any]:
    """What can be named inside a term with its weight, or inside several written calls."""
    if not isinstance(holder[0], Spec):
        return {"weight": holder[0], "term": holder[1]} if len(holder) == 2 else {}
    named = {one.make.__name__.lower(): one for one in holder if isinstance(one, Spec)}
    return named if len(named) == len(holder) else {}


def fitting(holder: Any, name: str, value: Any, setting: str) -> Any:
    """The value in the form in which it may replace what stands under a name.

    Raises:
        ValueError: it is of another kind, or none of those that are allowed.
    """
    old, hint = inside(holder)[name], _hint(holder, name)
    if inside(old) and not isinstance(old, Late):
        keys = ", ".join(sorted(inside(old)))
        raise ValueError(f"{setting!r}: {name!r} cannot be replaced whole; set one of: {keys}")
    value = _cast(hint, value)
    if _fits(hint, value):
        return value
    if choices := _choices(hint):
        raise ValueError(f"{setting!r}: " + unknown(str(value), choices, f"a value of {name!r}"))
    example = "" if old is None or isinstance(old, Late) else f", as in {old!r}"
    raise ValueError(
        f"{setting!r}: {value!r} is {_kind(type(value))}, but {name!r} takes {_said(hint)}{example}"
    )


def _hint(holder: Any, name: str) -> Any:
    """The annotation of what stands under a name; Any where there is none to be found."""
    if isinstance(holder, tuple):
        return float
    made: Any = holder.make if isinstance(holder, Spec) else type(holder)
    if isinstance(holder, Spec) and isinstance(made, type):
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
