"""A small sweep: both rounds of AOQ, whose second round is varied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from counterfoil.pipelines.grid_search import GridAxis, GridSearch
from counterfoil.recipes import catalogue
from counterfoil.recipes.run import Source
from counterfoil.recipes.settings import apply

DATA = "scenes:images=36"
SMALL = (
    "*.model.image.width=16", "*.model.text.width=16", "*.batch=16", "lists.texts=20",
    "lists.images=5", "adaptive.draw.images=5", "*.steps=2",
)  # fmt: skip
OVER = ("adaptive.draw.texts=10,20", "adaptive.rate=1e-3,1e-2")


def toy(*over: str, **changes: Any) -> GridSearch:
    """Four points that share the first round and its lists."""
    recipe = apply(catalogue.smoke(catalogue.find("aoq/vsepp-scenes")), SMALL)
    axes = tuple(GridAxis.parse(text) for text in over or OVER)
    return GridSearch(name="toy", recipe=recipe, axes=axes, **changes)


def source() -> Source:
    return Source(DATA)


def results(folder: Path) -> dict[str, Any]:
    """What stands in ``sweep.json`` but for how it was made."""
    found = json.loads((folder / "sweep.json").read_text())
    return {name: value for name, value in found.items() if name != "provenance"}
