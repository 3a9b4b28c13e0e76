"""``counterfoil data``: check a data set, or write it as shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import CaptionColumn, DataName, ImageColumn, data_source, verb
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
