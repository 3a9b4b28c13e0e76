"""Inputs, outputs and tolerances of one folder of golden vectors, named by COUNTERFOIL_GOLDEN."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor


@dataclass(frozen=True)
class Golden:
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    meta: dict

    def exact(self, key: str) -> bool:
        return bool(self.meta["outputs"][key].get("exact"))

    def atol(self, key: str) -> float:
        return self.meta["outputs"][key]["atol"]


def folder(system: str) -> Path | None:
    root = os.environ.get("COUNTERFOIL_GOLDEN")
    path = Path(root) / system if root else None
    return path if path and path.is_dir() else None


def needs(system: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(folder(system) is None, reason=f"no golden vectors of {system}")


def load(system: str) -> Golden:
    path = folder(system)
    return Golden(
        load_file(path / "inputs.safetensors"),
        load_file(path / "outputs.safetensors"),
        json.loads((path / "meta.json").read_text()),
    )


def keys(system: str) -> list[str]:
    """Names of all outputs, for parametrising; what is informative only is left out by name."""
    path = folder(system)
    if path is None:
        return ["none"]
    names = json.loads((path / "meta.json").read_text())["outputs"]
    return [name for name in names if not name.endswith("_author_numpy")]


def same(golden: Golden, key: str, ours: Tensor) -> None:
    """Compare as the folder's own `meta.json` says."""
    theirs = golden.outputs[key]
    if golden.exact(key):
        assert torch.equal(ours.long(), theirs.long()), key
    else:
        torch.testing.assert_close(
            ours.to(theirs.dtype).view_as(theirs), theirs, rtol=0, atol=golden.atol(key)
        )
