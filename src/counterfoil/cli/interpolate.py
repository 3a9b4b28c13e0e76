"""``counterfoil interpolate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import Data, Decisions, Images, example, refuse_without, source

Alpha = Annotated[
    list[float] | None,
    typer.Option(
        min=0, max=1, help="Share of the tuned weights; several, or none for all: best on dev."
    ),
]
Other = Annotated[
    str | None, typer.Option(help="Other data, to measure what is forgotten; as --data.")
]

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    epilog=example(
        "counterfoil interpolate openai/clip-vit-base-patch32 runs/clip/tuned --data my-photos/ "
        "--other scenes --out runs/between",
        "counterfoil interpolate openai/clip-vit-base-patch32 runs/clip/tuned --alpha 0.5 "
        "--out runs/half",
    )
)
def interpolate(
    context: typer.Context,
    original: Annotated[str, typer.Argument(help="Model that the training began with.")],
    tuned: Annotated[str, typer.Argument(help="Folder of the model that it came to.")],
    out: Annotated[Path, typer.Option(help="Folder of the model; must not exist yet.")],
    alpha: Alpha = None,
    data: Data = None,
    images: Images = None,
    decisions: Decisions = None,
    other: Other = None,
) -> None:
    """Mix the weights of a model and of what it was tuned to; say what each of them forgets."""
    from counterfoil.hub import interpolate as interpolate_hub
    from counterfoil.pipelines.run import DataSource

    refuse_without(context, "data", ("images", "decisions"))
    interpolate_hub(
        original,
        tuned,
        out,
        alphas=alpha or (),
        source=source(data, None, images, decisions) if data else None,
        other=DataSource(other) if other else None,
    )
