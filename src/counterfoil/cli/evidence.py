"""``counterfoil run evidence/…`` and ``counterfoil table``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import example

app = typer.Typer(rich_markup_mode="markdown")

Budget = Annotated[
    str | None, typer.Option(help="Of an `evidence/…` table: cpu, gpu or smoke; default cpu.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Of a table: experiments whose names begin so, as `vsepp-0`."),
]
Ledger = Annotated[
    Path | None, typer.Option(help="Of a table: its raw results, JSONL; default in the folder.")
]


TABLES = "evidence/"  # what their names begin with


def plan_tables() -> None:
    """List all tables."""
    from counterfoil.recipes.evidence.catalogue import tables
    from counterfoil.recipes.evidence.shown import planned

    planned(tables())


def plan_table(name: str) -> None:
    """Show the experiments of a table."""
    from counterfoil.recipes.evidence.catalogue import find
    from counterfoil.recipes.evidence.shown import planned_experiments

    planned_experiments(find(name))


def is_table(
    name: str,
    budget: str | None,
    only: list[str] | None,
    ledger: Path | None,
    *,
    settings: list[str] | None,
    smoke: bool,
) -> bool:
    """Whether this names a table of experiments and not a recipe.

    Raises:
        ValueError: options of the one with the name of the other.
    """
    if name.startswith(TABLES):
        if settings or smoke:
            raise ValueError(
                f"{name} is a table, whose settings are fixed by --budget; --set and --smoke go "
                "with a recipe, and --budget smoke tries a table out"
            )
        return True
    if budget or only or ledger:
        raise ValueError(
            f"{name} is one recipe; --budget, --only and --ledger go with a table, as "
            "evidence/aoq-flickr8k"
        )
    return False


def run_table(
    name: str,
    data: str | None,
    features: Path | None,
    images: Path | None,
    decisions: Path | None,
    folder: Path | None,
    *,
    budget: str | None,
    only: list[str] | None,
    ledger: Path | None,
    resume: bool,
    minutes: float | None,
) -> bool:
    """Run what is missing of a table; whether all is done."""
    from counterfoil.recipes.evidence.catalogue import find
    from counterfoil.recipes.evidence.run import run
    from counterfoil.recipes.run import Source

    table, chosen = find(name), budget or "cpu"
    place = folder or Path("runs") / name / chosen
    return run(
        table,
        chosen,
        Source(data or table.data, features, images, decisions),
        place,
        ledger or place / "ledger.jsonl",
        only=only or (),
        resume=resume,
        minutes=minutes,
    )


@app.command(epilog=example("counterfoil table docs/evidence/aoq-flickr8k-cpu.jsonl --markdown"))
def table(
    ledger: Annotated[list[Path], typer.Argument(help="Raw results of experiments, JSONL.")],
    markdown: Annotated[bool, typer.Option(help="Print Markdown.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Draw the differences, SVG.")] = None,
) -> None:
    """Make the table of experiments again from their raw results."""
    from counterfoil.recipes.evidence.shown import show

    show(ledger, markdown=markdown, figure=figure)
