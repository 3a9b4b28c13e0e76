"""``counterfoil interpolate``: weights between a model and its fine-tuned form."""

from __future__ import annotations

from typing import Annotated

import typer

from counterfoil.cli.options import (
    CONVERSION,
    Corrections,
    Data,
    DataOptions,
    Images,
    NewFolder,
    example,
    refuse_without,
)

Alpha = Annotated[
    list[float] | None,
    typer.Option(
        min=0, max=1, help="Share of the fine-tuned weights; of several, or all, the best on dev."
    ),
]
Other = Annotated[
    str | None, typer.Option(help="Other data, as --data: measure what is forgotten there.")
]

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    rich_help_panel=CONVERSION,
    epilog=example(
        "counterfoil interpolate openai/clip-vit-base-patch32 runs/clip/tuned --data my-photos/ "
        "--other scenes --output runs/between",
        "counterfoil interpolate openai/clip-vit-base-patch32 runs/clip/tuned --alpha 0.5 "
        "--output runs/half",
    ),
)
def interpolate(
    context: typer.Context,
    original: Annotated[str, typer.Argument(help="Model before fine-tuning.")],
    tuned: Annotated[str, typer.Argument(help="Folder of the fine-tuned model.")],
    folder: NewFolder,
    alpha: Alpha = None,
    data: Data = None,
    images: Images = None,
    corrections: Corrections = None,
    other: Other = None,
) -> None:
    """Average the weights of a model before and after fine-tuning (WiSE-FT)."""
    refuse_without(context, "data", ("images", "corrections"))
    from counterfoil import hub

    hub.interpolate(
        original,
        tuned,
        folder,
        alphas=alpha or (),
        source=DataOptions(data, images=images, corrections=corrections).source() if data else None,
        other=DataOptions(other).source() if other else None,
    )
