"""What version 0.1 planned, printed and saved, and how today's answers are compared with it.

``tests/saved/`` holds the snapshots. ``renamed.json`` there maps names of 0.1 to those of today;
whoever renames a class, a setting or a field of JSON adds a row, and nothing else changes.
`python tests/saved_cases.py plans|json|numbers` writes a snapshot anew, for changes that are meant.
The folder ``v0.1/`` was written by 0.1 and is never written again.
"""

from __future__ import annotations

import gzip
import inspect
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import torch

from counterfoil.recipes import catalogue
from counterfoil.recipes.recipe import Recipe
from counterfoil.spec import Late, Spec

SAVED = Path(__file__).parent / "saved"
PLANS, OUTPUTS, NUMBERS = SAVED / "plans.json.gz", SAVED / "outputs.json", SAVED / "numbers.json"
WRITTEN_BY_0_1 = SAVED / "v0.1"


def read(path: Path) -> Any:
    packed = path.read_bytes()
    return json.loads(gzip.decompress(packed) if path.suffix == ".gz" else packed)


@cache
def renamed(kind: str) -> dict[str, str]:
    """Names of 0.1 to those of today: "calls", "keys" of settings and JSON, or "recipes"."""
    return read(SAVED / "renamed.json")[kind]


# plans


def plans() -> dict[str, Any]:
    """Every built-in recipe with all settings; equal stages are stored once."""
    places: dict[str, int] = {}
    recipes: dict[str, Any] = {}
    for name in sorted(catalogue.names()):
        recipe = catalogue.find(name)
        texts = [json.dumps(settings(stage), sort_keys=True) for stage in recipe.stages]
        stages = [places.setdefault(text, len(places)) for text in texts]
        recipes[name] = {"about": recipe.about, "data": recipe.data, "stages": stages}
    return {"recipes": recipes, "stages": [json.loads(text) for text in places]}


def settings(value: Any) -> Any:
    """JSON-ready form of a stage: calls by simple name, with the defaults of their signatures."""
    match value:
        case Spec():
            inner = {**_defaults(value.make), **value.arguments}
            return {"call": value.make.__qualname__} | {k: settings(v) for k, v in inner.items()}
        case Late():
            return {"late": value.name}
        case Enum():
            return value.name
        case Mapping():
            return {str(name): settings(inner) for name, inner in value.items()}
        case tuple() | list():
            return [settings(inner) for inner in value]
        case set() | frozenset():
            return sorted((settings(inner) for inner in value), key=str)
        case None | bool() | int() | float() | str():
            return value
        case Path():
            return str(value)
        case torch.dtype():
            return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        own = {one.name: settings(getattr(value, one.name)) for one in fields(value)}
        kind = getattr(value, "kind", None)
        return {"kind": kind, **own} if isinstance(kind, str) else own
    return {"value": type(value).__qualname__}


def _defaults(make: Any) -> dict[str, Any]:
    known = inspect.signature(make).parameters.values()
    return {one.name: one.default for one in known if one.default is not inspect.Parameter.empty}


def plan_differences(stored: Mapping[str, Any], name: str, today: Recipe) -> list[str]:
    """How a recipe departs from its plan of 0.1; settings that are new stand at their defaults."""
    wanted = [stored["stages"][place] for place in stored["recipes"][name]["stages"]]
    if len(wanted) != len(today.stages):
        return [f"{name}: {len(today.stages)} stages, not {len(wanted)}"]
    found: list[str] = []
    for before, stage in zip(wanted, today.stages, strict=True):
        if in_words_of_today(before) != settings(stage):  # the quick answer first
            found += _departures(f"{name}.{stage.name}", in_words_of_today(before), stage)
    return found


def in_words_of_today(value: Any) -> Any:
    """A plan of 0.1 under the names that its calls and settings have now."""
    if isinstance(value, list):
        return [in_words_of_today(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    calls, keys = renamed("calls"), renamed("keys")
    return {
        keys.get(key, key): calls.get(inner, inner)
        if key in ("call", "value") and isinstance(inner, str)
        else in_words_of_today(inner)
        for key, inner in value.items()
    }


def _departures(where: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(settings(now), dict):
        yield from _departing_settings(where, before, now)
    elif isinstance(before, list) and isinstance(now, tuple | list) and len(before) == len(now):
        for place, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from _departures(f"{where}[{place}]", one, other)
    elif settings(now) != before:
        yield f"{where}: {settings(now)!r}, not {before!r}"


def _departing_settings(where: str, before: Mapping[str, Any], now: Any) -> Iterator[str]:
    defaults: dict[str, Any] = {}
    if isinstance(now, Spec):
        defaults = _defaults(now.make)
        own = {"call": now.make.__qualname__, **defaults, **now.arguments}
    elif is_dataclass(now) and not isinstance(now, type | Late):
        defaults = _defaults(type(now))
        own = {"kind": getattr(now, "kind", None)} if "kind" in before else {}
        own |= {one.name: getattr(now, one.name) for one in fields(now)}
    else:
        own = now if isinstance(now, Mapping) else settings(now)
    for key in own:
        new = key not in before
        if new and not (key in defaults and settings(own[key]) == settings(defaults[key])):
            yield f"{where}.{key}: {settings(own[key])!r}, which 0.1 did not set"
    for key, value in before.items():
        if key in own:
            yield from _departures(f"{where}.{key}", value, own[key])
        else:
            yield f"{where}.{key}: missing, not {value!r}"


# JSON with floats


def differences(before: Any, now: Any, where: str = "", tolerance: float = 1e-5) -> Iterator[str]:
    """Where two JSON values differ; floats may differ by the tolerance, relative above 1."""
    if isinstance(before, bool) or isinstance(now, bool) or before is None or now is None:
        if before is not now:
            yield f"{where}: {now!r}, not {before!r}"
    elif isinstance(before, int | float) and isinstance(now, int | float):
        if not math.isclose(before, now, rel_tol=tolerance, abs_tol=tolerance):
            yield f"{where}: {now!r}, not {before!r}"
    elif isinstance(before, dict) and isinstance(now, dict):
        keys = renamed("keys")
        names = {keys.get(key, key): key for key in before}
        for key in [*names, *(key for key in now if key not in names)]:
            if key not in now or key not in names:
                yield f"{where}.{key}: {'missing' if key not in now else 'new'}"
            else:
                yield from differences(before[names[key]], now[key], f"{where}.{key}", tolerance)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(one, other, f"{where}[{place}]", tolerance)
    elif before != now:
        yield f"{where}: {now!r}, not {before!r}"


def write(path: Path, value: Any) -> None:
    text = (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


if __name__ == "__main__":
    import sys

    match sys.argv[1]:
        case "plans":
            write(PLANS, plans())
