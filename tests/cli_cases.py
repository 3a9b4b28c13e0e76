"""All verbs of the command line, as they are typed."""

from __future__ import annotations

import typer.main

from counterfoil.cli import application

ROOT = typer.main.get_command(application())


def verbs(group, words: tuple[str, ...] = ()) -> dict[tuple[str, ...], object]:
    found = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= verbs(command, (*words, name))
        else:
            found[(*words, name)] = command
    return found


VERBS = verbs(ROOT)
