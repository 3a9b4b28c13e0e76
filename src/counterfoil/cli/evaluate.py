"""``counterfoil evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    Data,
    Decisions,
    Features,
    Images,
    Numbers,
    Split,
    example,
    source,
)

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    epilog=example(
        "counterfoil evaluate runs/demo/adaptive --data scenes",
        "counterfoil evaluate openai/clip-vit-base-patch32 --data my-photos/ --split test",
        "counterfoil evaluate runs/tags/tags --first runs/vsepp/online --depth 50 --data flickr8k/",
        "counterfoil evaluate vectors --data embeddings/ --split all",
    )
)
def evaluate(
    model: Annotated[
        list[str], typer.Argument(help="Model folder, HF name, or `vectors`; several: ensemble.")
    ],
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "test",
    protocol: Annotated[str, typer.Option(help="whole, flickr-1k, coco-1k, coco-5k.")] = "whole",
    ties: Annotated[str, typer.Option(help="row, optimistic, pessimistic.")] = "row",
    first: Annotated[
        list[str] | None, typer.Option(help="Model that shortlists; may be given many times.")
    ] = None,
    depth: Annotated[
        int | None, typer.Option(min=1, help="Re-rank so many of each query; default 50.")
    ] = None,
    full: Annotated[
        bool, typer.Option(help="Rank everything too, to tell what shortlists lose.")
    ] = False,
    eccv: Annotated[Path | None, typer.Option(help="ECCV-Caption annotations, folder.")] = None,
    cxc: Annotated[Path | None, typer.Option(help="CxC annotations, folder.")] = None,
    out: Numbers = None,
) -> None:
    """Measure retrieval both ways and say by which protocol."""
    from counterfoil.cli.verbs import evaluate as evaluate_verbs

    where = source(data, features, images, decisions)
    evaluate_verbs(
        model,
        where,
        split,
        protocol=protocol,
        ties=ties,
        first=first or (),
        depth=depth,
        full=full,
        eccv=eccv,
        cxc=cxc,
        out=out,
    )
