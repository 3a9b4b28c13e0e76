"""``counterfoil analyse WHAT``: what is printed and drawn, first of all the analyses of AOQ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli import analyse_negatives, analyse_runs, analyse_scores, analyse_written
from counterfoil.cli.options import (
    Count,
    Data,
    Decisions,
    Features,
    Images,
    Models,
    OneModel,
    Page,
    Query,
    Seed,
    Split,
    example,
    source,
)
from counterfoil.cli.unread import refuse_without

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Draw what negatives, training and retrieval look like: a table, a page and JSON.",
)
app.add_typer(analyse_scores.app)
app.add_typer(analyse_runs.app)
app.add_typer(analyse_negatives.app)
app.add_typer(analyse_written.app)


@app.command(
    "online-rank",
    epilog=example(
        "counterfoil analyse online-rank runs/demo/online --data scenes --out rank.html"
    ),
)
def online_rank(
    model: OneModel,
    out: Page,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "train",
    batch: Annotated[
        list[int] | None,
        typer.Option(min=2, help="Captions in a batch; many times; default 32 to 1,024."),
    ] = None,
    anchors: Annotated[int, typer.Option(min=2, help="How many anchor captions.")] = 200,
    draws: Annotated[int, typer.Option(min=1, help="Batches for each anchor and size.")] = 20,
    top: Annotated[int, typer.Option(min=1, help="So many captions are the hardest.")] = 100,
    seed: Seed = 0,
) -> None:
    """Rank the hardest negatives of random batches in a whole split, for several batch sizes."""
    from counterfoil.recipes.analyses import online_rank as analysis

    where = source(data, features, images, decisions)
    analysis.online_rank(
        model, where, out, split=split, batches=batch or (), anchors=anchors, draws=draws,
        top=top, seed=seed,
    )  # fmt: skip


@app.command(
    epilog=example(
        "counterfoil analyse negatives runs/demo/online --data scenes --lists runs/demo/lists "
        "--out negatives.html"
    )
)
def negatives(
    model: OneModel,
    out: Page,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "train",
    lists: Annotated[
        Path | None, typer.Option(help="Folder of mined lists; default the model's own hardest.")
    ] = None,
    anchors: Annotated[int, typer.Option(min=1, help="How many images.")] = 6,
    batch: Annotated[int, typer.Option(min=2, help="Captions in a batch.")] = 128,
    top: Annotated[int, typer.Option(min=1, help="Draw from so many hardest captions.")] = 300,
    shown: Annotated[int, typer.Option(min=1, help="Negatives of each kind.")] = 3,
    seed: Seed = 0,
) -> None:
    """Set online and offline negatives of some anchors side by side."""
    from counterfoil.recipes.analyses import examples as analysis

    where = source(data, features, images, decisions)
    analysis.examples(
        model, where, out, split=split, lists=lists, anchors=anchors, batch=batch, top=top,
        shown=shown, seed=seed,
    )  # fmt: skip


@app.command(
    "cross-rank",
    epilog=example(
        "counterfoil analyse cross-rank runs/demo/online runs/demo/adaptive --data scenes "
        "--out cross.html"
    ),
)
def cross_rank(
    models: Models,
    out: Page,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "test",
) -> None:
    """Count true pairs by their rank among wrong texts and wrong images alike."""
    from counterfoil.recipes.analyses import cross_rank as analysis

    where = source(data, features, images, decisions)
    analysis.cross_rank(models, where, out, split=split)


@app.command(
    "side-by-side",
    epilog=example(
        "counterfoil analyse side-by-side runs/demo/online runs/demo/adaptive --data scenes "
        "--out sides.html"
    ),
)
def side_by_side(
    context: typer.Context,
    models: Models,
    out: Page,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "test",
    query: Query = None,
    count: Count = 4,
) -> None:
    """Show what two models retrieve for the queries on which they differ most."""
    refuse_without(context, "query", ("count",), alone=True)
    from counterfoil.recipes.analyses import side_by_side as analysis

    where = source(data, features, images, decisions)
    analysis.side_by_side(models, where, out, split=split, queries=query or (), count=count)
