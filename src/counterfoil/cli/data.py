"""``counterfoil data check`` and ``counterfoil features``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    CONVERSION,
    Corrections,
    DataArgument,
    Images,
    data_options,
    example,
    open_images,
    refuse,
)

app = typer.Typer(no_args_is_help=True, help="Check a data set before training on it.")
features_app = typer.Typer(rich_markup_mode="markdown")


@app.command("check", epilog=example("counterfoil data check my-photos/"))
@data_options
def check(
    data: DataArgument,
    quick: Annotated[bool, typer.Option(help="Do not open every image.")] = False,
) -> None:
    """Describe a data set; exit with code 2 and the reasons if it cannot be trained on."""
    from counterfoil.core.console import console, output
    from counterfoil.data.checks import check_dataset

    findings = check_dataset(open_images(data.source()), quick=quick)
    console().print(findings)
    for error in findings.unreadable:
        output(f"unreadable: {error}")
    if findings.errors:
        raise typer.Exit(2)


@app.command("convert", epilog=example("counterfoil data convert my-photos/ --output shards/"))
@data_options
def convert(
    data: DataArgument,
    output_folder: Annotated[Path, typer.Option("--output", help="New folder of the shards.")],
    size: Annotated[int, typer.Option(min=1, help="Pictures of a shard.")] = 1000,
) -> None:
    """Write a data set with its captions and splits as WebDataset shards."""
    from counterfoil.core.console import output
    from counterfoil.data.checks import counted
    from counterfoil.data.readers.webdataset import write_webdataset

    dataset = data.source().open()
    shards = write_webdataset(dataset, output_folder, size=size)
    pictures = counted(len(dataset), "picture")
    output(f"{output_folder}: {pictures} in {counted(shards, 'shard')}")


@features_app.command(
    rich_help_panel=CONVERSION,
    epilog=example(
        "counterfoil features my-photos/ features/ --model google/vit-base-patch16-224",
        "counterfoil features my-photos/ regions/ --model PekingU/rtdetr_r50vd --regions 36",
        "counterfoil features trainval_resnet101_faster_rcnn_genome_36.tsv regions/",
        "counterfoil features img_db/flickr30k/ regions/",
    ),
)
def features(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(help="Data set, as `--data` takes; without --model, features to convert."),
    ],
    folder: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Folder of the features.")],
    model: Annotated[
        str | None, typer.Option(help="HF vision model or detector, its folder, or `timm:NAME`.")
    ] = None,
    images: Images = None,
    corrections: Corrections = None,
    batch: Annotated[int, typer.Option(min=1, help="Images in a batch.")] = 32,
    grid: Annotated[int | None, typer.Option(min=1, help="Average to GRID x GRID cells.")] = None,
    regions: Annotated[
        int | None,
        typer.Option(
            min=1, help="Most confident regions of a detector of DETR's kind; 36 is usual."
        ),
    ] = None,
) -> None:
    """Extract patch, grid or region features of all images; run it again to continue.

    Without --model, convert region features that exist: a .tsv of bottom-up attention or a folder
    of its parts, an img_db of UNITER, a precomp folder.
    """
    from counterfoil.core import distributed
    from counterfoil.core.console import output
    from counterfoil.core.io import ensure_writable_folder
    from counterfoil.data.extract import convert_features, extract_features

    if model is None:
        refuse(context, ("images", "corrections", "batch", "grid", "regions"), "with --model")
    if regions is not None:
        refuse(context, ("batch", "grid"), "without --regions")
    ensure_writable_folder(folder)
    if model is None:
        table = convert_features(Path(data), folder)
    else:
        dataset = DataArgument(data, images=images, corrections=corrections).source().open()
        table = extract_features(
            dataset,
            model,
            folder,
            grid=grid,
            regions=regions,
            batch=batch,
            device=distributed.device(),
        )
    output(f"{len(table.features):,} images: {folder}")
