"""The tables that can be run by name."""

from __future__ import annotations

from counterfoil.core.literals import parse_choice
from counterfoil.recipes.evidence import ablations, aoq, curves, ndgl, readings, tags, written
from counterfoil.recipes.evidence.plan import Table


def tables() -> tuple[Table, ...]:
    """Every table."""
    alone = (aoq, ablations, ndgl, readings, curves)
    return (*(one.table() for one in alone), *tags.tables(), written.table())


def find(name: str) -> Table:
    """The table of this name.

    Raises:
        ValueError: there is none; the nearest name is told.
    """
    known = {table.name: table for table in tables()}
    parse_choice(known, name, "a table of experiments")
    return known[name]
