"""Options that several verbs share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final, get_type_hints

import typer

if TYPE_CHECKING:
    from counterfoil.recipes.run import Source

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
) -> Source:
    """Where the data are; the rendered toy where the user names none."""
    from counterfoil.recipes.run import Source

    return Source(data or "scenes", features=features, images=images, decisions=decisions)


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

    def source(self) -> Source:
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
