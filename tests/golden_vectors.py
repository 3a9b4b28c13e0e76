"""Inputs, outputs and tolerances of folders of golden vectors below COUNTERFOIL_GOLDEN.

A system may have any number of folders, of any sizes and under any name: they are found by `system`
in their meta.json. The tests of a module with a SYSTEM are run on all of them, see conftest.py of
the papers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

# the first word of `system` in lower case, where it is not the name that the tests have
TITLES = {
    "vsepp": "vse++",
    "xdim": "x-dim",
    "ernievil": "ernie-vil",
    "eval": "evaluation:",
    "eval_a": "retrieval",
}
CHOSEN: dict[str, Path] = {}  # the folder that a test is run on, by the name of the system


@dataclass(frozen=True)
class Golden:
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    meta: dict

    def exact(self, key: str) -> bool:
        return bool(self.meta["outputs"][key].get("exact"))

    def atol(self, key: str) -> float:
        return self.meta["outputs"][key]["atol"]


class Key(str):
    """Name of an output, with the folder that it is in."""

    folder: Path

    @staticmethod
    def of(name: str, folder: Path) -> Key:
        key = Key(name)
        key.folder = folder
        return key


@cache
def _folders(root: str) -> dict[Path, str]:
    """The first word of the system of each folder."""
    found = {}
    for path in sorted(Path(root).glob("*/meta.json")):
        title = json.loads(path.read_text()).get("system", "")
        found[path.parent] = title.split(" ")[0].casefold()
    return found


def folders(system: str) -> list[Path]:
    """All folders of a system; first the one that has its name."""
    root, title = os.environ.get("COUNTERFOIL_GOLDEN"), TITLES.get(system, system)
    found = [path for path, word in _folders(root).items() if word == title] if root else []
    return sorted(found, key=lambda path: path.name != system)


def folder(system: str) -> Path | None:
    """The folder of a system that is run now."""
    return CHOSEN.get(system) or next(iter(folders(system)), None)


def needs(system: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not folders(system), reason=f"no golden vectors of {system}")


def load(system: str) -> Golden:
    return _load(folder(system))


@cache
def _load(path: Path) -> Golden:
    return Golden(
        load_file(path / "inputs.safetensors"),
        load_file(path / "outputs.safetensors"),
        json.loads((path / "meta.json").read_text()),
    )


def keys(system: str) -> list[str]:
    """Names of all outputs, for parametrising; what is informative only is left out by name."""
    found: list[str] = [
        Key.of(name, path)
        for path in folders(system)
        for name in json.loads((path / "meta.json").read_text())["outputs"]
        if not name.endswith("_author_numpy")
    ]
    return found or ["none"]


def cached(make: Callable[..., Any]) -> Callable[..., Any]:
    """`functools.cache`, but for each choice of folders apart."""
    kept: dict[object, Any] = {}

    @wraps(make)
    def found(*args: object) -> Any:
        place = (args, tuple(sorted(CHOSEN.items())))
        if place not in kept:
            kept[place] = make(*args)
        return kept[place]

    return found


def same(golden: Golden, key: str, ours: Tensor) -> None:
    """Compare as the folder's own `meta.json` says."""
    theirs = golden.outputs[key]
    if golden.exact(key):
        assert torch.equal(ours.long(), theirs.long()), key
    else:
        torch.testing.assert_close(
            ours.to(theirs.dtype).view_as(theirs), theirs, rtol=0, atol=golden.atol(key)
        )
