"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    str | None,
    typer.Option(help="Folder, JSON file, Hugging Face name, or `scenes[:images=...,seed=...]`."),
]
Features = Annotated[Path | None, typer.Option(help="Folder of region or grid features.")]
Images = Annotated[
    Path | None, typer.Option(help="Folder of the pictures, if not beside the data.")
]
Folder = Annotated[Path | None, typer.Option(help="Where results go; default `runs/RECIPE`.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="stage.key=value; may be given many times.")
]
Split = Annotated[str, typer.Option(help="Which split.")]
Minutes = Annotated[
    float | None, typer.Option(min=0.01, help="Stop by itself after this long; `--resume` goes on.")
]

STOPPED = 3  # exit code of a run that can go on with --resume


def example(*lines: str) -> str:
    """Commands to try, as the last lines of a verb's help."""
    return "**Example**\n\n" + "\n\n".join(f"`{line}`" for line in lines)
