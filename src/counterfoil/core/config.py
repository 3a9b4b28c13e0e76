"""Configurations: constructor calls as data.

`config(SCAN, ...)` records a call without making it. The type checker checks the arguments against
SCAN's own signature; the record prints as the call, hashes by content, is saved as JSON under a
stable name (`counterfoil.core.registry`) and makes the call with `build()`. No second class has
to be kept in step with the first, and no recipe names a class by a string.

>>> from fractions import Fraction
>>> half = config(Fraction, numerator=1, denominator=from_data("parts"))
>>> half
Fraction(numerator=1, denominator=from_data('parts'))
>>> half.fill({"parts": 2}).build()
Fraction(1, 2)
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, cast, final, get_args

from counterfoil.core import registry
from counterfoil.core.shipped import Kind

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@final
@dataclass(frozen=True, slots=True)
class FromData:
    """Placeholder of an argument that is known when the data are, see `from_data`."""

    name: str

    def __repr__(self) -> str:
        return f"from_data({self.name!r})"


@final
@dataclass(frozen=True, slots=True)
class FromStage:
    """Placeholder of what another stage of a recipe writes, see `from_stage`."""

    name: str

    def __repr__(self) -> str:
        return f"from_stage({self.name!r})"


@final
@dataclass(frozen=True, eq=False)
class Config(Generic[T_co]):
    """A call that is recorded and not made yet: a class or function with its arguments.

    Attributes:
        make: the class or function to call.
        arguments: by keyword; plain values, nested configurations, `FromData` or `FromStage`.
    """

    make: Callable[..., T_co]
    arguments: Mapping[str, Any]

    def build(self) -> T_co:
        """Make the call, innermost configurations first.

        Raises:
            ValueError: a placeholder was not filled in.
        """
        return self.make(**_map(self.arguments, _build))

    def replace(self, **changes: Any) -> Config[T_co]:
        """Return the call with some arguments changed.

        Raises:
            ValueError: the call has no such argument; the nearest one is named.
        """
        known = [p for p in inspect.signature(self.make).parameters if p != "self"]
        for name in changes:
            if name not in known:
                raise ValueError(
                    unknown_name(name, known, f"an argument of {self.make.__qualname__}")
                )
        return Config(self.make, {**self.arguments, **changes})

    def fill(self, values: Mapping[str, Any]) -> Config[T_co]:
        """Return the call with values known from the data filled in; names without one stay."""
        return Config(self.make, _map(self.arguments, partial(_fill, values)))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, for checkpoints, manifests and digests; `config_from_dict` reads it."""
        return cast("dict[str, Any]", _to_plain(self))

    def digest(self) -> str:
        """Twelve hex digits, the hash of the content."""
        return digest(self.to_dict())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.make.__qualname__}({inner})"


Placeholder = FromData | FromStage  # what stands for a value that is known later


def config(make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Config[T]:
    """Record a call. Keyword arguments only.

    Raises:
        TypeError: positional arguments, or arguments that `make` does not take.
    """
    if args:
        raise TypeError("a configuration names every argument: positional arguments are refused")
    inspect.signature(make).bind_partial(**kwargs)
    return Config(make, kwargs)


def lazy(make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Record a call whose result is an argument of another recorded call."""
    # It returns a Config and claims to return a T: the value that the outer call receives when it
    # is built. Typed so, config(SCAN, image=lazy(Regions, features=2048)) is checked against the
    # signature of SCAN, which asks for a tower. Outside of such arguments use `config`.
    return cast("T", config(make, *args, **kwargs))


def from_data(name: str) -> Any:
    """Placeholder of a value that depends on the data, as ``from_data("words")``."""
    return FromData(name)


def from_stage(name: str) -> Any:
    """Placeholder of what a stage of the recipe writes, as ``from_stage("lists")``."""
    return FromStage(name)


def fill_stages(value: Any, find: Callable[[FromStage], Any]) -> Any:
    """A value in which `find` gives what stands for each placeholder of a stage."""

    def change(found: Config[Any] | Placeholder) -> Any:
        match found:
            case FromStage():
                return find(found)
            case Config():
                return Config(found.make, _map(found.arguments, change))
        return found

    return _map(value, change)


def digest(plain: object) -> str:
    """Twelve hex digits, the hash of a JSON-ready value."""
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def unknown_name(name: str, known: list[str], noun: str) -> str:
    """Error message for an unknown name: suggests the nearest known one and lists all."""
    near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? Known" if near else "known"
    return f"{name!r} is not {noun}; {hint}: {', '.join(sorted(known)) or 'none'}."


def config_from_dict(plain: object, *, kinds: Sequence[Kind] = registry.CALLED) -> Config[Any]:
    """Read the form of `Config.to_dict`; only registered names of these kinds are looked up.

    Raises:
        ValueError: it is no recorded call, or it calls anything else.
    """
    recorded = _from_plain(plain, kinds)
    if not isinstance(recorded, Config):
        raise ValueError("this is not a written call: a mapping with the key 'call' is needed")
    return recorded


def _map(value: Any, change: Callable[[Config[Any] | Placeholder], Any]) -> Any:
    """Change the configurations and placeholders in a value, also those in containers."""
    match value:
        case Config() | FromData() | FromStage():
            return change(value)
        case Mapping():
            return {name: _map(inner, change) for name, inner in value.items()}
        case tuple() | list():
            return type(value)(_map(inner, change) for inner in value)
    return value


def _build(value: Config[Any] | Placeholder) -> Any:
    if isinstance(value, Config):
        return value.build()
    known = "the data are" if isinstance(value, FromData) else "the stage is done"
    raise ValueError(f"{value!r} has not been filled in; it is known when {known}")


def _fill(values: Mapping[str, Any], value: Config[Any] | Placeholder) -> Any:
    if isinstance(value, Config):
        return value.fill(values)
    return values.get(value.name, value) if isinstance(value, FromData) else value


def _to_plain(value: Any) -> Any:
    match value:
        case Config():
            call = {"call": registry.name_of(value.make)}
            return call | {name: _to_plain(v) for name, v in value.arguments.items()}
        case FromData():
            return {"late": value.name}
        case FromStage():
            return {"from_stage": value.name}
        case Mapping():
            return {str(name): _to_plain(v) for name, v in value.items()}
        case tuple() | list():
            return [_to_plain(v) for v in value]
        case None | bool() | int() | float() | str():
            return value
    if is_dataclass(value) and not isinstance(value, type):  # the call that made it
        plain = {f.name: _to_plain(getattr(value, f.name)) for f in fields(value) if f.init}
        return {"call": registry.name_of(type(value)), **plain}
    raise ValueError(
        f"{value!r} cannot be part of a written call: use plain values or configurations"
    )


def _from_plain(value: Any, kinds: Sequence[Kind]) -> Any:
    match value:
        case {"late": str(name)} if len(value) == 1:
            return FromData(name)
        case {"call": str(call)}:
            inner = {k: _from_plain(v, kinds) for k, v in value.items() if k != "call"}
            return Config(registry.find_called(call, kinds), inner)
        case Mapping():
            return {name: _from_plain(v, kinds) for name, v in value.items()}
        case list():
            return tuple(_from_plain(v, kinds) for v in value)
    return value


def parse_choice(choices: Iterable[str], text: object, noun: str) -> str:
    """Return the text if it is one of the choices; else the error names the nearest one.

    `noun` names the choices in the message, as in "a tie rule".
    """
    known = list(choices)
    if text not in known:
        raise ValueError(unknown_name(str(text), known, noun))
    return str(text)


def parse_literal(kind: Any, text: object, noun: str) -> Any:
    """Return the text if it is a value of a `Literal` type, as `parse_choice` does."""
    return parse_choice(get_args(kind), text, noun)
