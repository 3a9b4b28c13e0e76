"""``counterfoil advice``: what to train by default, and why."""

from __future__ import annotations

import typer

from counterfoil.cli.options import (
    CaptionColumn,
    Data,
    ImageColumn,
    data_source,
    refuse_without,
    verb,
)
from counterfoil.core.console import output

app = typer.Typer(rich_markup_mode="markdown")


@verb(
    app,
    "counterfoil advice",
    "counterfoil advice --data my-photos/",
)
def advice(
    context: typer.Context,
    data: Data = None,
    caption_column: CaptionColumn = None,
    image_column: ImageColumn = None,
) -> None:
    """Say in ten lines what to train by default, and why; with `--data`, on these data."""
    refuse_without(context, "data", ("caption_column", "image_column"))
    from counterfoil.recipes.advice import advise_training
    from counterfoil.recipes.clip import train_size

    if data is None:
        lines = advise_training()
    else:
        source = data_source(data, caption_column=caption_column, image_column=image_column)
        dataset = source.open()
        dataset.check_captions("to train on")
        captions, photos = train_size(dataset)
        lines = advise_training(source.typed, photos, captions)
    for line in lines:
        output(line)
