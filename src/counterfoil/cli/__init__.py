"""``counterfoil VERB``: every verb calls one function of the library.

Verbs are registered, see `counterfoil.core.registry`: a command line imports the module of its verb
alone. The modules import the library inside their functions, so that ``--help`` loads no torch and
a verb loads what it needs.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from inspect import isfunction
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from counterfoil.cli.options import answer, imported
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
    imports: Annotated[  # `main` has taken it out, since it may name what the verb looks for
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Import a module first, here or on the path, that registers models, losses, "
            "recipes or readers; anywhere on the line, repeatable.",
        ),
    ] = None,
) -> None:
    """Image-text retrieval models, trained on the negatives that matter."""


class _Verbs(TyperGroup):
    """The verbs, in the order in which they are registered."""

    def list_commands(self, ctx: Any) -> list[str]:
        order = registry.names("verb")
        return sorted(super().list_commands(ctx), key=order.index)


@cache
def application(verb: str = "") -> typer.Typer:
    """The command line with one verb, or with all if `verb` is none."""
    app = typer.Typer(
        name="counterfoil",
        cls=_Verbs,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
    app.callback()(_options)
    names = [verb] if verb else registry.names("verb")
    # one module may have several verbs
    for part in dict.fromkeys(map(_part, names)):
        app.add_typer(part)
    return app


def _part(verb: str) -> typer.Typer:
    """The command line of a registered verb; a plain function becomes one."""
    part = registry.find("verb", verb)
    if isinstance(part, typer.Typer):
        return part
    if not isfunction(part):
        raise ValueError(
            f"the verb {verb!r} is {part!r:.80}; register a function, whose parameters are its "
            "arguments, or a typer.Typer"
        )
    app = typer.Typer()
    app.command(verb)(part)
    return app


def _import_named(words: list[str]) -> list[str]:
    """Import the modules of ``--import``; return the other words."""
    rest, names, following = list[str](), list[str](), iter(words)
    for word in following:
        option, equals, value = word.partition("=")
        if option == "--import":
            names.append(value if equals else next(following, ""))
        else:
            rest.append(word)
    if names and "" not in sys.path:
        sys.path.insert(0, "")  # the present folder, as `python -m` has it
    for name in names:
        try:
            import_module(name)
            imported.append(name)
        except (ImportError, TypeError) as error:  # TypeError: a name that begins with a dot
            if isinstance(error, TypeError) and not name.startswith("."):
                raise
            raise ValueError(
                f"--import {name} failed: {error}; name a module in this folder or on the path, "
                "without .py"
            ) from error
        except ValueError as error:
            raise ValueError(f"--import {name} failed: {error}") from error
    return rest


def main(arguments: list[str] | None = None) -> int:
    """Run the command line: 0 for success, 2 for wrong input, 3 if it was stopped."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        words = _import_named(words)
    except ValueError as error:
        failure(f"counterfoil: {error}")
        return 2
    if arguments is None:
        sys.argv[1:] = words
    else:
        arguments = words
    known = {*registry.names("verb"), *registry.absent("verb")}
    verb = words[0] if words and words[0] in known else ""
    try:
        app = application(verb)
    except ValueError as error:  # of a verb of another package, or of one that is not installed
        failure(f"counterfoil: {error}")
        return 2
    return answer(app, arguments)
