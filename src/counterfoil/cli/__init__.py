"""``counterfoil VERB``: every verb calls one function of the library.

The modules import the library inside their functions, so that ``--help`` loads no torch and a verb
loads what it needs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from counterfoil.cli import (
    audit,
    data,
    evaluate,
    explain,
    foils,
    index,
    mine,
    models,
    negatives,
    run,
    search,
    serve,
    train,
)
from counterfoil.cli.options import RESEARCH, answer
from counterfoil.papers.cli import analyse, write

app = typer.Typer(
    name="counterfoil",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
# The help lists the verbs in this order: everyday ones, recipes, research, and tools.
app.add_typer(data.app, name="data")
for module in (train, mine, evaluate, explain, audit, index, search, serve, run, foils):
    app.add_typer(module.app)
app.add_typer(analyse.app, name="analyse", rich_help_panel=RESEARCH)
app.add_typer(write.app, name="write", rich_help_panel=RESEARCH)
app.add_typer(negatives.diagnose_app)
app.add_typer(negatives.app, name="negatives", rich_help_panel=RESEARCH)
app.add_typer(models.app)


def _print_version(requested: bool) -> None:
    if requested:
        from counterfoil import __version__

        print(f"counterfoil {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """Image-text retrieval models, trained on the negatives that matter."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line: 0 for success, 2 for wrong input, 3 if it was stopped."""
    return answer(app, arguments)
