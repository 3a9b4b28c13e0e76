"""A verb: ``counterfoil count DATA`` says how many captions an image has."""

from __future__ import annotations

import typer

from counterfoil.core.console import output
from counterfoil.data.readers import load_dataset

app = typer.Typer()


@app.command()
def count(data: str) -> None:
    """Say how many captions an image of a data set has, on average."""
    dataset = load_dataset(data)
    output(f"{len(dataset.texts) / len(dataset):.1f} captions an image")
