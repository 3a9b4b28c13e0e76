"""``counterfoil VERB``: every verb calls one function of the library.

The modules import the library inside their functions, so that ``--help`` loads no torch and a verb
loads what it needs.
"""

from __future__ import annotations

import sys
from functools import cache
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
from counterfoil.cli.options import RESEARCH, answer, verb_names
from counterfoil.core import registry

# The help lists the verbs in this order: everyday ones, recipes, research, and tools.
EVERYDAY = (train, mine, evaluate, explain, audit, index, search, serve, run, foils)


def _print_version(requested: bool) -> None:
    if requested:
        from counterfoil import __version__

        print(f"counterfoil {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """Image-text retrieval models, trained on the negatives that matter."""


@cache
def application(*, complete: bool = True) -> typer.Typer:
    """The command line, with the verbs that are registered by name if it is to be `complete`."""
    app = typer.Typer(
        name="counterfoil",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
    app.callback()(_options)
    app.add_typer(data.app, name="data")
    for module in EVERYDAY:
        app.add_typer(module.app)
    app.add_typer(negatives.diagnose_app)
    app.add_typer(negatives.app, name="negatives", rich_help_panel=RESEARCH)
    app.add_typer(models.app)
    for name in registry.names("verb") if complete else ():
        registry.find("verb", name)(app)
    return app


def main(arguments: list[str] | None = None) -> int:
    """Run the command line: 0 for success, 2 for wrong input, 3 if it was stopped."""
    words = sys.argv[1:] if arguments is None else arguments
    own = application(complete=False)
    wanted = next((word for word in words if not word.startswith("-")), "")
    added = {name.split()[0] for name in registry.names("verb")}
    return answer(own if wanted in verb_names(own) - added else application(), arguments)
