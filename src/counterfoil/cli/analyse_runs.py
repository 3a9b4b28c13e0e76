"""``counterfoil analyse``: what finished runs have in their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import Page, example

app = typer.Typer(rich_markup_mode="markdown")

Runs = Annotated[list[Path], typer.Argument(help="Folders of finished runs.")]


@app.command(epilog=example("counterfoil analyse curves runs/demo --out curves.html"))
def curves(
    folders: Annotated[
        list[Path], typer.Argument(help="Training stages, or runs with all their trainings.")
    ],
    out: Page,
) -> None:
    """Draw learning curves of several trainings, as one per loss."""
    from counterfoil.recipes.analyses import curves as analysis

    analysis.curves(folders, out)


@app.command(
    epilog=example(
        "counterfoil analyse difficulty runs/tags/ablations/static/uniter-scenes --out hard.html"
    )
)
def difficulty(
    folders: Annotated[
        list[Path], typer.Argument(help="Training stages, or runs with all their trainings.")
    ],
    out: Page,
) -> None:
    """Draw how hard written captions are while training goes on, static and dynamic ones."""
    from counterfoil.recipes.analyses import difficulty as analysis

    analysis.difficulty(folders, out)


@app.command(
    epilog=example(
        "counterfoil analyse student runs/ndgl/gpo-scenes runs/ndgl/chan-scenes --out student.html"
    )
)
def student(folders: Runs, out: Page) -> None:
    """Set students beside their teachers and the teachers' ensemble, one run a host."""
    from counterfoil.recipes.analyses import student as analysis

    analysis.student(folders, out)


@app.command(
    epilog=example(
        "counterfoil analyse against teachers runs/ndgl/teachers/chan-scenes --out teachers.html",
        "counterfoil analyse against batch runs/ndgl/batches/chan-scenes --out batches.html",
    )
)
def against(
    quantity: Annotated[str, typer.Argument(help="`teachers` or `batch`.")],
    folders: Runs,
    out: Page,
) -> None:
    """Draw results against the number of teachers, or against the size of a batch."""
    from counterfoil.recipes.analyses import against as analysis

    analysis.against(quantity, folders, out)
