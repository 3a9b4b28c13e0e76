"""The tables of experiments by name."""

from __future__ import annotations

from benchmarks.experiments import aoq, defaults, ndgl, tags
from benchmarks.experiments.table import Table
from counterfoil.core.config import unknown_name


def tables() -> tuple[Table, ...]:
    """Every table."""
    return (*aoq.tables(), *ndgl.tables(), *tags.tables(), *defaults.tables())


def find(name: str) -> Table:
    """The table of this name.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    known = {table.name: table for table in tables()}
    if name not in known:
        raise ValueError(unknown_name(name, list(known), "a table of experiments"))
    return known[name]
