"""``counterfoil data``: check a data set, write it as shards, or write foils of scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    CaptionColumn,
    DataName,
    ImageColumn,
    Split,
    data_source,
    verb,
)
from counterfoil.core.console import console, output

app = typer.Typer(name="data", no_args_is_help=True, help="Check a data set before training on it.")


@verb(app, "counterfoil data check my-photos/")
def check(
    data: DataName,
    caption_column: CaptionColumn = None,
    image_column: ImageColumn = None,
    quick: Annotated[bool, typer.Option(help="Do not open every image.")] = False,
) -> None:
    """Describe a data set; exit with code 2 and the reasons if it cannot be trained on.

    Pictures without captions are whole, too: they are for `counterfoil index`.
    """
    from counterfoil.data.checks import check_dataset

    source = data_source(data, caption_column=caption_column, image_column=image_column)
    findings = check_dataset(source.open(), quick=quick)
    console().print(findings)
    for error in () if findings.nowhere else findings.unreadable:  # an error says it once
        output(f"unreadable: {error}")
    if findings.errors:
        raise typer.Exit(2)


@verb(app, "counterfoil data convert my-photos/ --output shards/")
def convert(
    data: DataName,
    output_folder: Annotated[Path, typer.Option("--output", help="New folder of the shards.")],
    caption_column: CaptionColumn = None,
    image_column: ImageColumn = None,
) -> None:
    """Write a data set with its captions and splits as WebDataset shards."""
    from counterfoil.data.checks import counted
    from counterfoil.data.readers.webdataset import write_webdataset

    source = data_source(data, caption_column=caption_column, image_column=image_column)
    dataset = source.open()
    shards = write_webdataset(dataset, output_folder)
    pictures = counted(len(dataset), "picture")
    output(f"{output_folder}: {pictures} in {counted(shards, 'shard')}")


@verb(app, "counterfoil data foils scenes:images=1500 --output foils/")
def foils(
    data: DataName,
    output_folder: Annotated[Path, typer.Option("--output", help="New folder of the foils.")],
    split: Split = "test",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice of foils.")] = 0,
    most: Annotated[
        int | None,
        typer.Option(min=1, help="Foils of a caption, of random kinds; default one of each kind."),
    ] = None,
) -> None:
    """Write foils of rendered scenes, each with a picture of which it is true and its caption not.

    `counterfoil foils` measures both directions on them.
    """
    from counterfoil.data.checks import counted
    from counterfoil.evaluation.foils.shown import write_shown_foils

    dataset = data_source(data).split(split)
    written, left_out = write_shown_foils(dataset, output_folder, seed=seed, most=most)
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(written.items()))
    output(f"{output_folder}: {counted(written.total(), 'foil')} with their pictures ({kinds})")
    if left_out:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(left_out.items()))
        output(f"left out, since no picture shows them alone: {left_out.total():,} ({kinds})")
