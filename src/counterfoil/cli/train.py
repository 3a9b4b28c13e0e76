"""``counterfoil train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from counterfoil.cli.options import (
    STOPPED,
    Data,
    Decisions,
    Features,
    Folder,
    Images,
    Minutes,
    Resume,
    Settings,
    example,
    source,
)

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    epilog=example(
        "counterfoil train vsepp --data my-photos/ --folder runs/mine",
        "counterfoil train ndgl/gpo --data my-photos/ --teacher runs/a/online --teacher runs/b",
        "counterfoil train aoq --model openai/clip-vit-base-patch32 --tune frozen "
        "--data my-photos/ --folder runs/clip",
    ),
)
def train(
    what: Annotated[
        str,
        typer.Argument(
            help="vsepp, scan-t2i, …, gpo, chan, …, ndgl/gpo, …; with --model: contrastive, "
            "triplet, aoq or ndgl."
        ),
    ],
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    model: Annotated[
        str | None, typer.Option(help="HF CLIP or SigLIP, by name or folder, to train further.")
    ] = None,
    tune: Annotated[
        str, typer.Option(help="What of it: full, lora, or frozen (adapters behind its vectors).")
    ] = "full",
    written: Annotated[
        Path | None,
        typer.Option(help="Folder of `counterfoil write`: foils of the training split."),
    ] = None,
    teacher: Annotated[
        list[str] | None, typer.Option(help="Model that teaches ndgl; may be given many times.")
    ] = None,
    folder: Folder = None,
    settings: Settings = None,
    resume: Resume = False,
    minutes: Minutes = None,
) -> None:
    """Train one model with its own loss, or taught by others, and measure it."""
    from counterfoil.recipes import own, tuned
    from counterfoil.recipes.run import execute
    from counterfoil.recipes.settings import apply

    if model is None and (written or tune != "full"):
        raise ValueError(
            "--tune and --written say how a pretrained model is trained further; name it with "
            "--model, or leave them out"
        )
    where = source(data, features, images, decisions)
    corpus = where.open()
    if model is None:
        found = own.recipe(what, pixels=corpus.features is None, teachers=teacher or ())
    else:
        way, foils = cast("tuned.Way", tune), str(written) if written else None  # Host checks it
        host = tuned.Host(model=model, way=way, written=foils)
        seen = corpus.pictures is not None
        found = tuned.recipe(what, host, teachers=teacher or (), pictures=seen)
    found = apply(found, settings or ())
    place = folder or Path("runs") / found.name
    if not execute(found, where, place, resume=resume, minutes=minutes):
        raise typer.Exit(STOPPED)
