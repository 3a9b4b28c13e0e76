"""``counterfoil train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    refuse_without,
    source,
)

app = typer.Typer(rich_markup_mode="markdown")


What = Annotated[
    str,
    typer.Argument(
        help="vsepp, scan-t2i, …, gpo, chan, …, ndgl/gpo, …; with --model: contrastive, triplet, "
        "aoq, ndgl or negclip."
    ),
]
Pretrained = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="CLIP or SigLIP to train further, name or folder; open_clip:NAME, timm:IMAGE+TEXT.",
    ),
]
Tune = Annotated[
    str, typer.Option(help="What of it: full, lora, or frozen (adapters behind its vectors).")
]
Written = Annotated[
    Path | None, typer.Option(help="Folder of `counterfoil write`: foils of the training split.")
]
Other = Annotated[
    str | None,
    typer.Option(help="Other data, to measure what --model has forgotten there; as --data."),
]
Teacher = Annotated[
    list[str] | None, typer.Option(help="Model that teaches ndgl; may be given many times.")
]


@app.command(
    epilog=example(
        "counterfoil train vsepp --data my-photos/ --folder runs/mine",
        "counterfoil train ndgl/gpo --data my-photos/ --teacher runs/a/online --teacher runs/b",
        "counterfoil train aoq --model openai/clip-vit-base-patch32 --tune frozen "
        "--data my-photos/ --folder runs/clip",
    ),
)
def train(
    context: typer.Context,
    what: What,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    model: Pretrained = None,
    tune: Tune = "full",
    written: Written = None,
    teacher: Teacher = None,
    other: Other = None,
    folder: Folder = None,
    settings: Settings = None,
    resume: Resume = False,
    minutes: Minutes = None,
) -> None:
    """Train one model with its own loss, or taught by others, and measure it."""
    from counterfoil.pipelines.overrides import apply_overrides
    from counterfoil.pipelines.run import run_pipeline
    from counterfoil.recipes import clip

    refuse_without(context, "model", ("tune", "written"))
    where = source(data, features, images, decisions)
    found = clip.parse_model_name(
        what,
        where.open(),
        model=model,
        way=tune,
        written=written,
        teachers=teacher or (),
        other=other,
    )
    found = apply_overrides(found, settings or ())
    place = folder or Path("runs") / found.name
    if not run_pipeline(found, where, place, resume=resume, minutes=minutes):
        raise typer.Exit(STOPPED)
