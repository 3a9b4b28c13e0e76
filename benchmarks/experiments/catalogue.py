"""The tables of experiments by name."""

from __future__ import annotations

from benchmarks.experiments import aoq, ndgl, tags
from benchmarks.experiments.table import PREFIX, Table
from counterfoil.core.config import unknown_name


def tables() -> tuple[Table, ...]:
    """Every table."""
    return (*aoq.tables(), *ndgl.tables(), *tags.tables())


def find(name: str) -> Table:
    """The table of this name, with or without the "evidence/" that ledgers put before it.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    known = {table.name.removeprefix(PREFIX): table for table in tables()}
    short = name.removeprefix(PREFIX)
    if short not in known:
        raise ValueError(unknown_name(short, list(known), "a table of experiments"))
    return known[short]
