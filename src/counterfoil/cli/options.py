"""Options that several verbs share."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final, get_type_hints

import typer

if TYPE_CHECKING:
    from counterfoil.pipelines.run import DataSource


Data = Annotated[
    str | None,
    typer.Option(help="Folder, JSON file, Hugging Face name, or `scenes[:images=...,seed=...]`."),
]
Features = Annotated[Path | None, typer.Option(help="Folder of region or grid features.")]
Images = Annotated[
    Path | None, typer.Option(help="Folder of the pictures, if not beside the data.")
]
Decisions = Annotated[
    Path | None,
    typer.Option(help="Corrections of an audit, if not `corrections.jsonl` beside the data."),
]
Folder = Annotated[Path | None, typer.Option(help="Where results go; default `runs/RECIPE`.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="stage.key=value; may be given many times.")
]
Split = Annotated[str, typer.Option(help="Which split.")]
Minutes = Annotated[
    float | None, typer.Option(min=0.01, help="Stop by itself after this long; `--resume` goes on.")
]
Resume = Annotated[bool, typer.Option(help="Go on with what was stopped.")]
Smoke = Annotated[bool, typer.Option(help="At most 20 training steps a stage.")]
OneModel = Annotated[
    str, typer.Argument(help="Model folder, HF name, or `vectors`; joined by `+`: ensemble.")
]
Models = Annotated[
    list[str], typer.Argument(help="Model folders or HF names; joined by `+`: ensemble.")
]
Page = Annotated[Path, typer.Option(help="Page to write, .html; must not exist yet.")]
Numbers = Annotated[
    Path | None, typer.Option("--json", "--out", help="Write the numbers as JSON too.")
]
Seed = Annotated[int, typer.Option(help="Seed of what is drawn at random.")]
Query = Annotated[
    list[str] | None, typer.Option(help="A caption or image id of the split; many times.")
]
Count = Annotated[int, typer.Option(min=1, help="Queries of each kind.")]

STOPPED = 3  # exit code of a run that can go on with --resume


def source(
    data: str | None,
    features: Path | None,
    images: Path | None,
    decisions: Path | None = None,
) -> DataSource:
    """Where the data are; the rendered toy where the user names none."""
    from counterfoil.pipelines.run import DataSource

    return DataSource(data or "scenes", features=features, images=images, decisions=decisions)


@final
@dataclass(frozen=True)
class DataOptions:
    """The options ``--data``, ``--features``, ``--images`` and ``--decisions`` of a command.

    A command that is decorated with `data_options` takes them as one parameter of this type.
    """

    data: Data = None
    features: Features = None
    images: Images = None
    decisions: Decisions = None

    def source(self) -> DataSource:
        """The data; rendered scenes if the user names none."""
        return source(self.data, self.features, self.images, self.decisions)


def data_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `DataOptions` instead of its parameter of that type.

    Typer reads a command's signature, so the decorated function has a signature in which the
    parameter is replaced by one parameter for each field.
    """
    hints = get_type_hints(command, include_extras=True)
    options = get_type_hints(DataOptions, include_extras=True)
    parameters, place = [], ""
    for parameter in inspect.signature(command).parameters.values():
        if hints[parameter.name] is DataOptions:
            place = parameter.name
            new = [(field.name, field.default) for field in fields(DataOptions)]
        else:
            new = [(parameter.name, parameter.default)]
        parameters += [
            # Keyword-only parameters may have defaults in any order.
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=options.get(name, hints.get(name)),
            )
            for name, default in new
        ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        data = DataOptions(**{field.name: given.pop(field.name) for field in fields(DataOptions)})
        command(**given, **{place: data})

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def example(*lines: str) -> str:
    """Commands to try, as the last lines of a verb's help."""
    return "**Example**\n\n" + "\n\n".join(f"`{line}`" for line in lines)


# How the command line ends: a code, and one sentence where the input was at fault.


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


# Options that were typed and that nothing would read: refused in one sentence.


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
