"""Two folders of results, file by file: equal, within a bound, or different."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.net.bounds import VOLATILE

ERROR = "error.txt"  # of a case that did not end


class Found(NamedTuple):
    """The outcome of a comparison; `worst` is the largest distance of two numbers."""

    worst: float = 0.0
    different: tuple[str, ...] = ()  # what differs, beyond the bound: where and how much


class Pair(NamedTuple):
    """One thing on both sides: the worst distance, or words where it has none."""

    where: str
    apart: float = 0.0
    words: str = ""


_MISSING = object()


def compare_folders(old: Path, new: Path, bound: float = 0.0) -> Found:
    """Compare all files of two folders; numbers within `bound` of each other are alike."""
    for side, folder in (("old", old), ("new", new)):
        if (folder / ERROR).is_file():
            last = (folder / ERROR).read_text().strip().splitlines()[-1]
            return Found(different=(f"{side} failed: {last}",))
    names = sorted({path.name for folder in (old, new) for path in folder.glob("*")})
    if not names:
        return Found(different=("neither side has results",))
    pairs = [pair for name in names for pair in _files(old / name, new / name)]
    return Found(
        max((pair.apart for pair in pairs if not pair.words), default=0.0),
        tuple(
            f"{pair.where}: {pair.words or f'{pair.apart:.3g} apart'}"
            for pair in pairs
            if pair.words or not pair.apart <= bound
        ),
    )


def _files(old: Path, new: Path) -> Iterator[Pair]:
    name = old.name
    for side, path in (("old", old), ("new", new)):
        if not path.is_file():
            yield Pair(name, words=f"missing on the {side} side")
            return
    match old.suffix:
        case ".json":
            yield from _values(json.loads(old.read_text()), json.loads(new.read_text()), name)
        case ".jsonl":
            first, second = ([json.loads(row) for row in _rows(path)] for path in (old, new))
            yield from _values(first, second, name)
        case ".npy" | ".npz" | ".safetensors":
            yield from _arrays(_load(old), _load(new), name)
        case _:
            if old.read_bytes() != new.read_bytes():
                yield Pair(name, words="other bytes")


def _rows(path: Path) -> list[str]:
    return path.read_text().splitlines()


def _load(path: Path) -> Mapping[str, Any]:
    if path.suffix == ".safetensors":  # numpy has no bfloat16
        found = load_file(path)
        wide = {name: t.float() for name, t in found.items() if t.dtype == torch.bfloat16}
        return {name: tensor.numpy() for name, tensor in {**found, **wide}.items()}
    found = np.load(path)
    return {"": found} if path.suffix == ".npy" else dict(found)


def _arrays(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> Iterator[Pair]:
    for name in sorted({*old, *new}):
        place = f"{where} {name}".strip()
        if name not in old or name not in new:
            side = "old" if name not in old else "new"
            yield Pair(place, words=f"missing on the {side} side")
            continue
        first, second = old[name], new[name]
        if (first.dtype, first.shape) != (second.dtype, second.shape):
            kinds = [f"{array.dtype}{list(array.shape)}" for array in (first, second)]
            yield Pair(place, words=" became ".join(kinds))
        elif np.issubdtype(first.dtype, np.floating):
            yield _numbers(first.astype(np.float64), second.astype(np.float64), place)
        elif count := int((first != second).sum()):
            yield Pair(place, words=f"{count:,} of {first.size:,} entries differ")


def _numbers(old: Any, new: Any, where: str) -> Pair:
    """The largest distance of two arrays; NaN and infinities equal themselves alone."""
    same = (old == new) | (np.isnan(old) & np.isnan(new))
    odd = ~same & ~(np.isfinite(old) & np.isfinite(new))
    if count := int(odd.sum()):
        return Pair(where, words=f"{count:,} of {old.size:,} became or were NaN or infinite")
    return Pair(where, max((apart(a, b) for a, b in zip(old[~same], new[~same])), default=0.0))


def apart(old: float, new: float) -> float:
    """The distance of two numbers, relative to the old one where that is beyond 1.

    >>> apart(0.5, 0.25), apart(200.0, 150.0)
    (0.25, 0.25)
    """
    return float(abs(old - new) / max(1.0, abs(old)))


def _values(old: Any, new: Any, where: str) -> Iterator[Pair]:
    """Compare two values from JSON, key by key."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            pair = old.get(key, _MISSING), new.get(key, _MISSING)
            if key in VOLATILE and not any(isinstance(value, dict | list) for value in pair):
                continue
            yield from _values(*pair, f"{where} {key}")
    elif isinstance(old, list) and isinstance(new, list):
        for place, pair in enumerate(zip_longest(old, new, fillvalue=_MISSING)):
            yield from _values(*pair, f"{where} {place}")
    elif old is _MISSING or new is _MISSING:
        yield Pair(where, words=f"missing on the {'old' if old is _MISSING else 'new'} side")
    elif isinstance(old, float) and isinstance(new, float):
        if math.isfinite(old) and math.isfinite(new):
            yield Pair(where, apart(old, new))
        elif old != new and not (math.isnan(old) and math.isnan(new)):
            yield Pair(where, words=f"{old} became {new}")
    elif type(old) is not type(new) or old != new:
        yield Pair(where, words=f"{_short(old)} became {_short(new)}")


def _short(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False)
    return written if len(written) <= 60 else f"{written[:57]}..."
