"""``counterfoil papers graph``: lists from a denotation graph of captions."""

from __future__ import annotations

from typing import Annotated

import typer

from counterfoil.cli.options import (
    Data,
    NewFolder,
    Phrases,
    Seed,
    Split,
    check_new_folder,
    data_source,
    phrase_parser,
    verb,
)
from counterfoil.core.console import output

app = typer.Typer()


@verb(
    app,
    "counterfoil papers graph --data scenes --output lists/ --texts-per-image 100",
)
def graph(
    folder: NewFolder,
    data: Data = None,
    split: Split = "train",
    texts: Annotated[
        int,
        typer.Option("--texts-per-image", min=1, help="Texts listed for each image, at most."),
    ] = 100,
    hard_images: Annotated[
        int, typer.Option("--images-per-text", min=1, help="Images listed for each text, at most.")
    ] = 20,
    phrases: Phrases = "rules",
    seed: Seed = 0,
) -> None:
    """List wrong captions and images that share an expression with the true ones, by no model."""
    from counterfoil.papers.compared.graph import graph_negatives

    check_new_folder(folder)
    parser = phrase_parser(phrases).build()
    dataset = data_source(data).split(split)
    negatives = graph_negatives(
        dataset, texts_per_image=texts, images_per_text=hard_images, parser=parser, seed=seed
    )
    negatives.save(folder)
    negatives.store.check_filled()
    for line in negatives.store.manifest.summary():
        output(line)
    filters = "; ".join(negatives.store.manifest.filters)
    output(f"{negatives.lists.describe()}, {filters}: {folder}")
