"""``counterfoil analyse``: what the scores and embeddings of models look like (NDGL's figures)."""

from __future__ import annotations

from typing import Annotated

import typer

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

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    epilog=example(
        "counterfoil analyse margins runs/ndgl/gpo-scenes/teacher-1 runs/ndgl/gpo-scenes/student "
        "--data scenes --out margins.html"
    )
)
def margins(
    models: Models,
    out: Page,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "test",
) -> None:
    """Draw how far true counterparts score above the hardest wrong ones."""
    from counterfoil.recipes.analyses import margins as analysis

    analysis.margin_distributions(
        models, source(data, features, images, decisions), out, split=split
    )


@app.command(
    epilog=example("counterfoil analyse quantiles runs/demo/online --data scenes --out q.html")
)
def quantiles(
    model: OneModel,
    out: Page,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "test",
    top: Annotated[int, typer.Option(min=1, help="Negatives of a query.")] = 30,
    level: Annotated[float, typer.Option(help="Similarity below which shares are counted.")] = 0.5,
) -> None:
    """Draw how similar the hardest negatives are, to the query and to each other."""
    from counterfoil.recipes.analyses import quantiles as analysis

    where = source(data, features, images, decisions)
    analysis.quantiles(model, where, out, split=split, top=top, level=level)


@app.command(
    "map",
    epilog=example("counterfoil analyse map runs/demo/online --data scenes --out map.html"),
)
def neighbourhood_map(
    context: typer.Context,
    model: OneModel,
    out: Page,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "test",
    query: Query = None,
    count: Count = 1,
    negatives: Annotated[int, typer.Option(min=1, help="Wrong counterparts on each map.")] = 100,
    method: Annotated[str, typer.Option(help="`tsne` or `pca`.")] = "tsne",
    seed: Seed = 0,
) -> None:
    """Draw embeddings of queries, their true counterparts and their nearest wrong ones."""
    refuse_without(context, "query", ("count", "seed"), alone=True)
    from counterfoil.recipes.analyses import maps as analysis

    where = source(data, features, images, decisions)
    analysis.maps(
        model, where, out, split=split, queries=query or (), count=count, negatives=negatives,
        method=method, seed=seed,
    )  # fmt: skip
