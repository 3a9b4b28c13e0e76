"""An analysis: tables and figures with the numbers behind them, written as one page and as JSON.

A function that analyses something makes records of numbers, a table by naming the columns of its
records, and figures; `Analysis.publish` prints the tables and writes the page, verdict first.

>>> measured = [{"model": "scan", "r1": 67.42, "queries": 1000}]
>>> shown = table("Recall", measured, {"model": "model", "R@1": "r1", "queries": "queries"})
>>> shown.rows
(('scan', '67.4', '1,000'),)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, final, runtime_checkable

from counterfoil.core.console import console, output
from counterfoil.core.io import ensure_absent, ensure_writable_file, write_json
from counterfoil.report.page import Page, TableBlock, current_provenance, write_page
from counterfoil.report.tables import MISSING, TerminalTable, format_number


@runtime_checkable
class Measured(Protocol):
    """A number that writes itself, as with its interval; a format says how many digits."""

    def text(self, form: str = ".1f") -> str:
        """The number in words, as "33.3 (16.7 to 50.0)"."""


Cell: TypeAlias = "str | float | Measured | tuple[float | Measured | None, str] | None"
Column: TypeAlias = "str | tuple[str, str] | Callable[[Any], Cell]"


@final
@dataclass(frozen=True, kw_only=True)
class Analysis(Page):
    """Result of an analysis: a page with its numbers, ready to be published.

    Attributes:
        numbers: JSON-ready numbers, or records of them as `to_numbers` takes.
        seed: of the sampling, if there was any.
        recipe: name of the recipe, if the analysis is about one.
    """

    numbers: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    recipe: str = ""

    def publish(self, out: Path, shown: int | None = None) -> None:
        """Print verdict and tables, write the page, and write the numbers as JSON beside it.

        Only the first process of a distributed run does.

        Args:
            out: the page.
            shown: tables to print; None for all, which the page has in any case.
        """
        from counterfoil.core import distributed  # which imports torch

        if distributed.rank():
            return
        provenance = current_provenance(seed=self.seed, recipe=self.recipe)
        page = replace(self, provenance=provenance)
        output(self.headline)
        for block in self.tables[:shown]:
            console().print(TerminalTable(block, self.protocol))
        numbers = {
            "title": self.title,
            "protocol": self.protocol,
            "provenance": asdict(provenance),
            **to_numbers(self.numbers),
        }
        write_json(out.with_suffix(".json"), numbers)
        write_page(page, out)
        output(f"open {out}; its numbers: {out.with_suffix('.json')}")


def to_numbers(value: Any) -> Any:
    """Convert records inside of lists and mappings to JSON: by `to_dict`, or by their fields."""
    if hasattr(value, "to_dict"):
        return to_numbers(value.to_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return to_numbers({each.name: getattr(value, each.name) for each in fields(value)})
    if isinstance(value, Mapping):
        return {key: to_numbers(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_numbers(part) for part in value]
    return value


def check_page_path(out: Path) -> None:
    """Refuse a page that is no ``.html`` or exists, or whose ``.json`` does."""
    if out.suffix != ".html":
        raise ValueError(f"{out} is no page; name a file that ends in .html")
    ensure_writable_file(out, exist_ok=True)
    for path in (out, out.with_suffix(".json")):
        ensure_absent(path, "a new page with --output")


def table(
    title: str, records: Sequence[Any], columns: Mapping[str, Column], note: str = ""
) -> TableBlock:
    """A table of records, which are mappings or have attributes.

    `columns` has by its heading the field of each column, a field with its format, or a function of
    the record; see `cells` for how values are written.
    """
    rows = (cells(*(_value(record, column) for column in columns.values())) for record in records)
    return TableBlock(title, tuple(columns), tuple(rows), note)


def _value(record: Any, column: Column) -> Cell:
    if callable(column):
        return column(record)
    name, form = (column, "") if isinstance(column, str) else column
    value: Any = record[name] if isinstance(record, Mapping) else getattr(record, name)
    return (value, form) if form else value


def cells(*values: Cell) -> tuple[str, ...]:
    """Cells of a row of a table: a dash for what is None or NaN.

    Integers have separators, other numbers one decimal, and shares their interval, unless the value
    comes with another format.
    """
    return tuple(_cell(*value) if isinstance(value, tuple) else _cell(value) for value in values)


def _cell(value: str | float | Measured | None, form: str = "") -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Measured):
        return value.text(form or ".1f")
    if value is None or value != value:
        return MISSING
    return format_number(value, form or ("," if isinstance(value, int) else ".1f"))
