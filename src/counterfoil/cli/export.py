"""``counterfoil export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import Data, Decisions, Features, Images, Split, example, source

app = typer.Typer()


@app.command(
    epilog=example(
        "counterfoil export runs/demo/lists --to sentence-transformers --data scenes --folder out/",
        "counterfoil export written/ --to trec --data scenes --folder out/",
    )
)
def export(
    store: Annotated[Path, typer.Argument(help="Folder of mined or written negatives.")],
    to: Annotated[
        str,
        typer.Option(help="sentence-transformers, flagembedding, tevatron, open-clip or trec."),
    ],
    folder: Annotated[Path, typer.Option(help="Where it goes; must not exist yet.")],
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    split: Split = "train",
    most: Annotated[int, typer.Option(min=1, help="Negatives of a query, at most.")] = 8,
) -> None:
    """Write negatives as another trainer reads them."""
    from counterfoil.export.negatives import check_export, export_negatives
    from counterfoil.recipes.show import say

    check_export(store, to, folder)
    corpus = source(data, features, images, decisions).split(split)
    for line in export_negatives(store, to, folder, corpus, most=most):
        say(line)
    say(str(folder))
