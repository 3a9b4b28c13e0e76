"""A call that has been written down but not made.

`config(SCAN, ...)` is checked by the type checker against SCAN's own signature, prints as the call it
stands for, hashes by content, is saved as JSON under a stable name (see
`counterfoil.core.saved_names`), and builds when asked. There is no second class to keep in step
with the first, and no string that names a class in a recipe.

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
import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, cast, final, get_args

from counterfoil.core.saved_names import place_of, saved_name

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@final
@dataclass(frozen=True, slots=True)
class FromData:
    """A value that is known only when the data are: see `late`."""

    name: str

    def __repr__(self) -> str:
        return f"from_data({self.name!r})"


@final
@dataclass(frozen=True, eq=False)
class Config(Generic[T_co]):
    """A call, see the module.

    Attributes:
        make: what is called.
        arguments: by keyword; plain values, other specs, or `late` values.
    """

    make: Callable[..., T_co]
    arguments: Mapping[str, Any]

    def build(self) -> T_co:
        """Make the call, innermost specs first.

        Raises:
            ValueError: a late value was never resolved.
        """
        return self.make(**{name: _build(value) for name, value in self.arguments.items()})

    def replace(self, **changes: Any) -> Config[T_co]:
        """The same call with some arguments changed.

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
        """The same call with late values filled in."""
        return cast("Config[T_co]", _resolve(self, values))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, for checkpoints, manifests and digests."""
        return cast("dict[str, Any]", _plain(self))

    def digest(self) -> str:
        """Twelve hex digits that name the content of the call."""
        return digest(self.to_dict())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.make.__qualname__}({inner})"


def config(make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Config[T]:
    """Write a call down. Keyword arguments only.

    Raises:
        TypeError: positional arguments, or arguments that `make` does not take.
    """
    if args:
        raise TypeError("a spec names every argument")
    inspect.signature(make).bind_partial(**kwargs)
    return Config(make, kwargs)


def lazy(make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Write down a call whose result is an argument of another written call.

    It returns a `Config`; the type says what the spec will build, so that the outer call is checked
    against its own signature: ``of(SCAN, image=part(Regions, features=2048))``.
    """
    return cast("T", config(make, *args, **kwargs))


def from_data(name: str) -> Any:
    """A value that depends on the data: ``late("words")``, ``late("features")``."""
    return FromData(name)


def digest(plain: object) -> str:
    """Twelve hex digits that name the content of a JSON-ready value."""
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def unknown_name(given: str, known: list[str], what: str) -> str:
    """One sentence for a name that does not exist: the nearest one, then all of them."""
    near = difflib.get_close_matches(given, known, 1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? Known" if near else "known"
    return f"{given!r} is not {what}; {hint}: {', '.join(sorted(known)) or 'none'}."


def config_from_dict(plain: object, *, allow: tuple[str, ...] = ("counterfoil",)) -> Config[Any]:
    """The call that `Config.plain` wrote; only callables of the allowed packages are looked up.

    Raises:
        ValueError: not a written call, or it names something outside the allowed packages.
    """
    spec = _unplain(plain, allow)
    if not isinstance(spec, Config):
        raise ValueError("this is not a written call: a mapping with the key 'call' is needed")
    return spec


def _build(value: Any) -> Any:
    match value:
        case Config():
            return value.build()
        case FromData():
            raise ValueError(f"{value!r} has not been filled in; it is known when the data are")
        case Mapping():
            return {name: _build(inner) for name, inner in value.items()}
        case tuple() | list():
            return type(value)(_build(inner) for inner in value)
    return value


def _resolve(value: Any, known: Mapping[str, Any]) -> Any:
    match value:
        case Config():
            inner = {name: _resolve(v, known) for name, v in value.arguments.items()}
            return Config(value.make, inner)
        case FromData():
            return known.get(value.name, value)
        case Mapping():
            return {name: _resolve(v, known) for name, v in value.items()}
        case tuple() | list():
            return type(value)(_resolve(v, known) for v in value)
    return value


def _plain(value: Any) -> Any:
    match value:
        case Config():
            call = {"call": saved_name(value.make)}
            return call | {name: _plain(v) for name, v in value.arguments.items()}
        case FromData():
            return {"late": value.name}
        case Mapping():
            return {str(name): _plain(v) for name, v in value.items()}
        case tuple() | list():
            return [_plain(v) for v in value]
        case None | bool() | int() | float() | str():
            return value
    raise ValueError(f"{value!r} cannot be part of a written call: use plain values or specs")


def _unplain(value: Any, allow: tuple[str, ...]) -> Any:
    match value:
        case {"late": str(name)} if len(value) == 1:
            return FromData(name)
        case {"call": str(call)}:
            inner = {k: _unplain(v, allow) for k, v in value.items() if k != "call"}
            return Config(_find(call, allow), inner)
        case Mapping():
            return {name: _unplain(v, allow) for name, v in value.items()}
        case list():
            return tuple(_unplain(v, allow) for v in value)
    return value


def _find(call: str, allow: tuple[str, ...]) -> Callable[..., Any]:
    module, _, name = place_of(call).partition(":")
    if call.isidentifier() and not name:
        raise ValueError(_vanished(call))
    if module.partition(".")[0] not in allow or not name.isidentifier():
        raise ValueError(
            f"{call!r} is not something this file may call; allowed are classes and functions of "
            f"{', '.join(allow)}"
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(_vanished(call)) from error
    return cast("Callable[..., Any]", found)


def _vanished(call: str) -> str:
    return (
        f"{call!r} does not exist in this version of counterfoil; the file was written by another "
        "one"
    )


# Words that stand for a choice, checked against the choices there are.


def parse_choice(choices: Iterable[str], text: object, what: str) -> str:
    """The text, if it is one of the choices.

    Args:
        choices: all that are allowed.
        text: what was given.
        what: what it has to be, as in "a tie rule".

    Raises:
        ValueError: it is none of them; the nearest one is named.
    """
    pass

    known = list(choices)
    for choice in known:
        if choice == text:
            return choice
    raise ValueError(unknown_name(str(text), known, what))


def parse_literal(kind: Any, text: object, what: str) -> Any:
    """The text, if it is a value of a `Literal` type.

    Args:
        kind: the type, as in ``Literal["row", "optimistic"]``.
        text: what was given.
        what: what it has to be, as in "a tie rule".

    Raises:
        ValueError: it is none of them; the nearest one is named.
    """
    return parse_choice(get_args(kind), text, what)
