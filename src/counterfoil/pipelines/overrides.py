"""``--set stage.key=value``: change one value of a recipe by name.

A key is a path: first the stage (``*`` for every stage that has the key), then fields of
dataclasses and arguments of configs, as in ``online.seed=3``, ``*.batch=64``,
``online.model.text.layers=2``. The places in `SHORTCUTS` may be left out: ``online.epochs=3`` is
``online.plan.epochs=3``, ``online.objective.triplet.steps=50`` names a term of the loss, and
``tags.tagsgenerator.temperature=1.0`` one of the sources, by its class in lower case (a second one
of a class is ``mined2``). Naming a source of `Train.addable` that a stage does not have adds it:
``adaptive.minedbatches.negatives=lists``. A value is read as a Python literal and must be of the
type that its annotation allows; the name of a stage, where an argument takes one, is its result.
"""

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
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from counterfoil.core.config import Config, FromStage, Placeholder, unknown_name
from counterfoil.pipelines.stages.base import KINDS as STAGE_KINDS
from counterfoil.pipelines.stages.base import is_stage_name
from counterfoil.training.config import TrainConfig

if TYPE_CHECKING:
    from counterfoil.pipelines.pipeline import Recipe, Stage

T = TypeVar("T")
ALL_STAGES = "*"
SHORTCUTS = (
    ("plan",),
    ("plan", "optimiser"),
    ("tasks",),
    ("terms",),
    ("term",),
    ("term", "second"),  # of a loss after its warm-up
    ("sources",),
)
ALIASES = {  # names of other libraries, which spelling does not lead to the ones here
    "lr": "rate",
    "learning_rate": "rate",
    "epoch": "epochs",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "bs": "batch",
    "batch_size": "batch",
}
_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


class _Setting(NamedTuple):
    """A setting as it was given, and the stages of the recipe."""

    text: str
    stages: tuple[str, ...] = ()


class _UnknownKeyError(ValueError):
    """A key that an object does not have."""


def apply_overrides(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with these settings, applied in order.

    Where a stage now starts from a model folder, or generates with it, the trainings whose place
    this model takes are left out, with the tests of these alone.

    Raises:
        ValueError: not ``stage.key=value``, an unknown stage or key (the nearest is named), or a
            value of another type.
    """
    changed = recipe
    for setting in settings:
        changed = _apply(changed, setting)
    return _without_replaced(recipe, changed)


def _without_replaced(before: Recipe, after: Recipe) -> Recipe:
    """Leave out trainings that were read, and whose place models from elsewhere have taken."""
    if not any(stage.outside_models for stage in after.stages):
        return after
    once_read = {name for stage in before.stages for name in stage.reads}
    replaced = {
        name
        for old, new in zip(before.stages, after.stages, strict=True)
        for name in set(old.reads) - set(new.reads)
        if old.kind in STAGE_KINDS["train"] and new.outside_models
    }
    left_out: set[str] = set()
    stages: list[Stage] = []
    for stage in reversed(after.stages):  # stages come after those that they read
        readers = [later for later in stages if stage.name in later.reads]
        tests = {later.name for later in readers if set(later.reads) == {stage.name}}
        only_tested = all(later.kind == "evaluate" for later in readers)
        needed = bool(readers) and not (stage.name in replaced and only_tested)
        if needed or stage.kind not in STAGE_KINDS["train"] or stage.name not in once_read:
            stages.append(stage)
        else:
            left_out |= tests
            stages = [later for later in stages if later.name not in left_out]
    kept = (_without_results(stage, left_out) for stage in reversed(stages))
    return replace(after, stages=tuple(stage for stage in kept if stage is not None))


def _without_results(stage: Stage, left_out: set[str]) -> Stage | None:
    """A stage without these evaluations; None for a comparison of fewer than two."""
    results = getattr(stage, "results", ())
    if stage.kind != "compare" or not left_out & set(results):
        return stage
    kept = tuple(name for name in results if name not in left_out)
    return replace(cast("Any", stage), results=kept) if len(kept) > 1 else None


def changed_settings(holder: T, setting: str) -> T:
    """A config or a dataclass with one value changed, ``key=value``."""
    path, equals, text = setting.partition("=")
    if not equals or not path.strip():
        raise ValueError(f"{setting!r} is no setting; write key=value, as in direction=i2t")
    return _change(holder, path.strip().split("."), _literal(text.strip()), _Setting(setting))


def _apply(recipe: Recipe, setting: str) -> Recipe:
    path, equals, text = setting.partition("=")
    name, dot, key = path.strip().partition(".")
    if not (equals and dot and key):
        raise ValueError(f"{setting!r} is no setting; write stage.key=value, as in online.seed=3")
    names = [stage.name for stage in recipe.stages]
    if name != ALL_STAGES and name not in names:
        raise ValueError(unknown_name(name, names, f"a stage of {recipe.name}"))
    value = _literal(text.strip())
    stages: list[Stage] = []
    errors: list[ValueError] = []
    given = _Setting(setting, tuple(names))
    for stage in recipe.stages:
        try:
            matches = name in (ALL_STAGES, stage.name)
            changed = stage.with_source_of(key) if name == stage.name else stage
            stages.append(_change(changed, key.split("."), value, given) if matches else stage)
        except _UnknownKeyError as error:
            errors.append(error)
            stages.append(stage)
    if errors and len(errors) == (len(names) if name == ALL_STAGES else 1):
        raise ValueError(str(errors[0])) from None
    return replace(recipe, stages=tuple(stages))


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _unknown_key(name: str, known: list[str], noun: str) -> str:
    """Error message for an unknown key: names its alias, else the nearest known key."""
    alias = ALIASES.get(name)
    if alias not in known:
        return unknown_name(name, known, noun)
    return f"{name!r} is not {noun}; did you mean {alias!r}? Known: {', '.join(known)}."


def _change(holder: T, path: Sequence[str], value: Any, setting: _Setting) -> T:
    """`holder` with the value at the end of the path replaced."""
    name, rest = path[0], path[1:]
    settable = named_values(holder)
    shortcuts = _shortcuts(settable)
    if name not in settable:
        for place, values in shortcuts:
            if name in values:
                return _change(holder, [*place, *path], value, setting)
        known = [*settable, *(key for _, values in shortcuts for key in values)]
        known += [kind.lower() for kind in getattr(holder, "addable", ())]
        message = _unknown_key(name, sorted(set(known)), f"a key of {_label(holder)}")
        raise _UnknownKeyError(f"{setting.text!r}: {message}")
    if rest:
        return cast("T", _with(holder, name, _change(settable[name], rest, value, setting)))
    value = _converted(holder, name, value, setting)
    if isinstance(holder, TrainConfig) and name == "epochs":
        return cast("T", holder.of_epochs(value))
    return cast("T", _with(holder, name, value))


def named_values(holder: Any) -> dict[str, Any]:
    """Values that can be named in a dataclass, a config (defaults included), a mapping or a tuple.

    In a loss with its weight they are "weight" and "term"; in a tuple of sources, the names of
    their classes in lower case, or of the stages whose targets they are.
    """
    if isinstance(holder, Placeholder):
        return {}
    if isinstance(holder, Config):
        parameters = inspect.signature(holder.make).parameters.values()
        named = (p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
        defaults = {p.name: None if p.default is p.empty else p.default for p in named}
        return defaults | dict(holder.arguments)
    if isinstance(holder, Mapping):
        return dict(holder)
    if isinstance(holder, tuple) and len(holder) == 2 and isinstance(holder[0], int | float):
        return {"weight": holder[0], "term": holder[1]} if isinstance(holder[1], Config) else {}
    if isinstance(holder, tuple):
        return _named_sources(holder)
    if is_dataclass(holder):
        return {f.name: getattr(holder, f.name) for f in fields(holder) if f.init}
    return {}


def _named_sources(holder: tuple[Any, ...]) -> dict[str, Any]:
    """Sources by the names of their classes, of which a second one has a 2 behind it."""
    named: dict[str, Any] = {}
    for each in holder:
        if not isinstance(each, Config | FromStage):
            return {}
        name = each.name if isinstance(each, FromStage) else each.make.__name__.lower()
        places = (name, *(f"{name}{number}" for number in range(2, len(holder) + 1)))
        named[next(place for place in places if place not in named)] = each
    return named


def _shortcuts(settable: Mapping[str, Any]) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Places that may be left out of a path, each with the values inside it."""
    places: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    for place in SHORTCUTS:
        values: Any = settable
        for name in place:
            values = named_values(values).get(name)
        places.append((place, named_values(values)))
    return places


def _with(holder: Any, name: str, value: Any) -> Any:
    if isinstance(holder, Config):
        return Config(holder.make, {**holder.arguments, name: value})
    if isinstance(holder, Mapping):
        return {**holder, name: value}
    if isinstance(holder, tuple):
        return tuple({**named_values(holder), name: value}.values())
    return replace(holder, **{name: value})


def _label(holder: Any) -> str:
    if isinstance(holder, Config):
        return holder.make.__qualname__
    if isinstance(holder, tuple):
        return "this term" if "term" in named_values(holder) else "these"
    return str(getattr(holder, "name", type(holder).__name__))


# Values against annotations.


def _converted(holder: Any, name: str, value: Any, given: _Setting) -> Any:
    """The value in the type that the annotation of `name` allows."""
    setting, old, hint = given.text, named_values(holder)[name], _hint(holder, name)
    if named_values(old):
        keys = ", ".join(sorted(named_values(old)))
        raise ValueError(f"{setting!r}: {name!r} cannot be replaced whole; set one of: {keys}")
    if isinstance(value, str) and _takes_stage(holder, name) and is_stage_name(value):
        if value not in given.stages:
            known = unknown_name(value, list(given.stages), "a stage of this recipe")
            raise ValueError(f"{setting!r}: {known} A folder is written ./{value}")
        return FromStage(value)
    value = _cast(hint, value)
    if _fits(hint, value):
        return value
    literals = [option for option in _options(hint) if get_origin(option) is Literal]
    if choices := [str(choice) for literal in literals for choice in get_args(literal)]:
        raise ValueError(
            f"{setting!r}: " + unknown_name(str(value), choices, f"a value of {name!r}")
        )
    example = "" if old is None or isinstance(old, Placeholder) else f", as in {old!r}"
    allowed = " or ".join(_type_name(option) for option in _options(hint))
    raise ValueError(
        f"{setting!r}: {value!r} is {_type_name(type(value))}, but {name!r} takes "
        f"{allowed}{example}"
    )


def _takes_stage(holder: Any, name: str) -> bool:
    """True if an argument of a source, or a place among the sources, takes a stage's result."""
    if isinstance(holder, Config):
        return name in getattr(holder.make, "takes", {})
    return isinstance(holder, tuple) and isinstance(named_values(holder).get(name), FromStage)


def _hint(holder: Any, name: str) -> Any:
    """The annotation of a field or an argument; Any where it cannot be resolved."""
    if isinstance(holder, tuple):
        return float
    annotated: Any = holder.make if isinstance(holder, Config) else type(holder)
    if isinstance(holder, Config) and isinstance(annotated, type):
        annotated = vars(annotated).get("__init__", annotated)
    try:
        return get_type_hints(annotated).get(name, Any)
    except NameError:  # imported for the type checker only
        return Any


def _cast(hint: Any, value: Any) -> Any:
    """Lists as tuples, and whole numbers as floats where only a float is allowed."""
    if isinstance(value, list | tuple):
        return tuple(_cast(_element(hint, place), item) for place, item in enumerate(value))
    options = _options(hint)
    if type(value) is int and int not in options and float in options:
        return float(value)
    return value


def _element(hint: Any, place: int) -> Any:
    """The annotation of one element of a tuple."""
    tuples = [option for option in _options(hint) if get_origin(option) is tuple]
    parts = get_args(tuples[0]) if tuples else ()
    if len(parts) == 2 and parts[1] is Ellipsis:
        return parts[0]
    return parts[place] if place < len(parts) else Any


def _fits(hint: Any, value: Any) -> bool:
    for option in _options(hint):
        origin, parts = get_origin(option), get_args(option)
        if option is Any or type(value) is option or (origin is Literal and value in parts):
            return True
        if origin is tuple and isinstance(value, tuple):
            right_length = parts[1:] == (Ellipsis,) or len(parts) == len(value)
            if right_length and all(_fits(_element(option, n), v) for n, v in enumerate(value)):
                return True
    return False


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _type_name(kind: Any) -> str:
    if kind is type(None):
        return "none"
    if kind is tuple or get_origin(kind) is tuple:
        return "a list"
    return _TYPE_NAMES.get(kind, f"a {getattr(kind, '__name__', kind)}")
