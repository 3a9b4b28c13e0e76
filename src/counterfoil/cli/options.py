"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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


def example(*lines: str) -> str:
    """Commands to try, as the last lines of a verb's help."""
    return "**Example**\n\n" + "\n\n".join(f"`{line}`" for line in lines)
