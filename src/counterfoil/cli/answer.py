"""How the command line ends: a code, and one sentence where the input was at fault."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

INTERRUPTED = 130

_Usage: type[Exception] = next(  # the parent of all complaints, which is in no public module
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


def answer(app: typer.Typer, arguments: Sequence[str] | None) -> int:
    """Run a command line and say in one sentence what was wrong with it, if anything was.

    Our own bugs are raised; with ``COUNTERFOIL_TRACEBACK`` set, so is all else.
    """
    try:
        code = app(arguments, prog_name="counterfoil", standalone_mode=False)
    except _Usage as error:
        return _refuse(_usage(error))
    except (ValueError, OSError) as error:
        if os.environ.get("COUNTERFOIL_TRACEBACK"):
            raise
        return _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # some versions of typer turn the interrupt into this
        print("counterfoil: interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _usage(error: Exception) -> str:
    """What was wrong with the command line, and where to look; "" when help was shown instead."""
    message = str(getattr(error, "format_message", error.__str__)()).strip().rstrip(".")
    given = _given(error)
    if given and given not in message:
        message = f"{message}, not {given}"
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "counterfoil"
    return f"{message}; `{where} --help` shows an example" if message else ""


def _given(error: Exception) -> str:
    """What a value was that typer's validation refused without naming it."""
    found = getattr(error.__cause__ or error.__context__, "errors", None)
    details = found() if callable(found) else []
    return repr(details[0]["input"]) if details else ""


def _refuse(sentence: str) -> int:
    if sentence:
        print(f"counterfoil: {' '.join(sentence.split())}", file=sys.stderr)
    return 2
