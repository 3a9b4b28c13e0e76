"""``counterfoil data check`` and ``counterfoil features``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    CONVERSION,
    Corrections,
    DataArgument,
    DataName,
    Images,
    data_options,
    example,
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
    from counterfoil.core.console import console
    from counterfoil.data.checks import check_dataset

    findings = check_dataset(data.source().open(), quick=quick)
    console().print(findings)
    if findings.errors:
        raise typer.Exit(2)


@features_app.command(
    rich_help_panel=CONVERSION,
    epilog=example("counterfoil features my-photos/ features/ --model google/vit-base-patch16-224"),
)
def features(
    data: DataName,
    folder: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Folder of the features.")],
    model: Annotated[str, typer.Option(help="HF vision model, its folder, or `timm:NAME`.")],
    images: Images = None,
    corrections: Corrections = None,
    batch: Annotated[int, typer.Option(min=1, help="Images in a batch.")] = 32,
    grid: Annotated[int | None, typer.Option(min=1, help="Average to GRID x GRID cells.")] = None,
) -> None:
    """Extract patch or grid features of all images; run it again to continue."""
    from counterfoil.core import distributed
    from counterfoil.core.console import output
    from counterfoil.core.io import ensure_writable_folder
    from counterfoil.data.extract import extract_features

    ensure_writable_folder(folder)
    dataset = DataArgument(data, images=images, corrections=corrections).source().open()
    table = extract_features(
        dataset, model, folder, grid=grid, batch=batch, device=distributed.device()
    )
    output(f"{len(table.features):,} images: {folder}")
