"""``counterfoil VERB``: every verb calls one function of the library.

Verbs are registered, see `counterfoil.core.registry`: a command line imports the module of its verb
alone. The modules import the library inside their functions, so that ``--help`` loads no torch and
a verb loads what it needs.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Annotated

import typer

from counterfoil.cli.options import answer
from counterfoil.core import registry
from counterfoil.core.console import failure


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
def application(verb: str = "") -> typer.Typer:
    """The command line with one verb, or with all if `verb` is none."""
    app = typer.Typer(
        name="counterfoil",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
    app.callback()(_options)
    names = registry.names("verb")
    added: list[typer.Typer] = []
    for name in [known for known in names if known.split()[0] == verb] or names:
        part: typer.Typer = registry.find("verb", name)
        if part in added:  # one module may have several verbs
            continue
        added.append(part)
        group, _, inner = name.partition(" ")
        parent: typer.Typer = registry.find("verb", group) if inner else app
        parent.add_typer(part, rich_help_panel=part.info.rich_help_panel)  # typer drops its own
    return app


def main(arguments: list[str] | None = None) -> int:
    """Run the command line: 0 for success, 2 for wrong input, 3 if it was stopped."""
    words = sys.argv[1:] if arguments is None else arguments
    verb = words[0] if words and words[0] in registry.names("verb") else ""
    try:
        app = application(verb)
    except ValueError as error:  # of a verb that another package adds
        failure(f"counterfoil: {error}")
        return 2
    return answer(app, arguments)
