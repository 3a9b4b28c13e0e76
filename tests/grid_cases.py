"""A small sweep: both rounds of AOQ, whose second round is varied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.run import DataSource
from counterfoil.recipes import catalogue
from counterfoil.recipes.grid_search import GridAxis, GridSearch

DATA = "scenes:images=36"
SMALL = (
    "*.model.image.width=16", "*.model.text.width=16", "*.batch=16", "lists.texts=20",
    "lists.images=5", "adaptive.draw.images=5", "*.steps=2",
)  # fmt: skip
OVER = ("adaptive.draw.texts=10,20", "adaptive.rate=1e-3,1e-2")


def toy(*over: str, **changes: Any) -> GridSearch:
    """Four points that share the first round and its lists."""
    recipe = apply_overrides(
        catalogue.smoke_recipe(catalogue.find_recipe("aoq/vsepp-scenes")), SMALL
    )
    axes = tuple(GridAxis.parse(text) for text in over or OVER)
    return GridSearch(name="toy", recipe=recipe, axes=axes, **changes)


def source() -> DataSource:
    return DataSource(DATA)


def results(folder: Path) -> dict[str, Any]:
    """What stands in ``sweep.json`` but for how it was made."""
    found = json.loads((folder / "sweep.json").read_text())
    return {name: value for name, value in found.items() if name != "provenance"}
