"""Options that were typed and that nothing would read: refused in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import typer


def refuse(context: typer.Context, names: Sequence[str], when: str) -> None:
    """Refuse options that stand on the command line and would have no effect.

    Args:
        context: of the verb.
        names: of its parameters.
        when: they would be read, as in "with --data".

    Raises:
        ValueError: one of them was typed.
    """
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name in names and _typed(context, option.name)
    ]
    if given:
        *most, last = given
        listed = f"{', '.join(most)} and {last}" if most else last
        are, them = ("are", "them") if most else ("is", "it")
        raise ValueError(f"{listed} {are} read only {when}; leave {them} out")


def refuse_without(
    context: typer.Context,
    name: str,
    names: Sequence[str],
    *,
    alone: bool = False,
    argument: bool = False,
) -> None:
    """Refuse options that go with another one, where that one is not there.

    Args:
        context: of the verb.
        name: the parameter that they go with.
        names: of those parameters.
        alone: they go without it: refuse them where it is there.
        argument: it is no option.

    Raises:
        ValueError: one of them was typed.
    """
    if bool(context.params[name]) == alone:
        told = f"a {name}" if argument else f"--{name.replace('_', '-')}"
        refuse(context, names, f"{'without' if alone else 'with'} {told}")


def _typed(context: typer.Context, name: str | None) -> bool:
    source = context.get_parameter_source(name) if name else None
    return source is not None and source.name == "COMMANDLINE"
