"""``counterfoil mine``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    STOPPED,
    Data,
    Decisions,
    Features,
    Images,
    Minutes,
    Split,
    example,
    source,
)
from counterfoil.cli.unread import refuse_without

Filter = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        help="Leave out what may be true, as key=value, many times: captions or pictures this "
        "near; scores lowest, highest, below_positive or below_share of the true pair's; what a "
        "guide finds true (guided); skip the hardest.",
    ),
]

HardImages = Annotated[
    int, typer.Option("--images-per-text", min=1, help="Hardest images kept for each text.")
]
Guide = Annotated[list[str] | None, typer.Option(help="A model that judges too.")]
Propose = Annotated[
    list[str] | None, typer.Option(help="A quick model that chooses the pairs to look at.")
]
Proposals = Annotated[int, typer.Option(min=1, help="It chooses so many times what is kept.")]

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    epilog=example(
        "counterfoil mine runs/demo/online --data scenes --out lists/ --texts 300 "
        "--images-per-text 60",
        "counterfoil mine runs/scan/online --data flickr8k/ --out lists/ --filter captions=0.8 "
        "--filter guided=0 --guide runs/vsrn/online --minutes 60 --resume",
    )
)
def mine(
    context: typer.Context,
    model: Annotated[list[str], typer.Argument(help="Model folder, HF name, or `vectors`.")],
    out: Annotated[Path, typer.Option(help="Folder of the lists; must not exist yet.")],
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "train",
    texts: Annotated[int, typer.Option(min=1, help="Hardest texts kept for each image.")] = 300,
    hard_images: HardImages = 60,
    filters: Filter = None,
    guide: Guide = None,
    propose: Propose = None,
    proposals: Proposals = 4,
    precision: Annotated[str, typer.Option(help="fp32; bf16 scores what counts again.")] = "fp32",
    resume: Annotated[bool, typer.Option(help="Go on where it was stopped.")] = False,
    minutes: Minutes = None,
) -> None:
    """List the hardest negatives of every image and every caption, both ways, exactly."""
    from counterfoil.recipes.mining import asked
    from counterfoil.recipes.verbs import mine_with

    refuse_without(context, "propose", ("proposals",))
    where = source(data, features, images, decisions)
    stage = asked(
        model,
        split,
        texts=texts,
        images=hard_images,
        filters=filters or (),
        guides=guide or (),
        proposing=propose or (),
        proposals=proposals,
        precision=precision,
    )
    if not mine_with(stage, where, out, resume=resume, minutes=minutes):
        raise typer.Exit(STOPPED)
