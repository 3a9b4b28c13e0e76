"""``counterfoil run``, ``plan`` and ``demo``: run recipes and print their stages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    RECIPES,
    STOPPED,
    DataOptions,
    Device,
    Minutes,
    Resume,
    RunFolder,
    Settings,
    Smoke,
    data_options,
    example,
    refuse_without,
)

app = typer.Typer(rich_markup_mode="markdown")


@app.command(
    rich_help_panel=RECIPES,
    epilog=example(
        "counterfoil run demo",
        "counterfoil run aoq/vsepp-flickr8k --data flickr8k/ --features regions/ "
        "--set online.epochs=5 --resume",
    ),
)
@data_options
def run(
    recipe: Annotated[str, typer.Argument(help="Name or `.py` file; `counterfoil plan` lists.")],
    data: DataOptions,
    folder: RunFolder = None,
    settings: Settings = None,
    resume: Resume = False,
    device: Device = None,
    smoke: Smoke = False,
    minutes: Minutes = None,
) -> None:
    """Run a recipe, skipping stages that are done."""
    from counterfoil.pipelines.overrides import apply_overrides
    from counterfoil.pipelines.run import run_pipeline
    from counterfoil.recipes import catalogue

    pipeline = apply_overrides(catalogue.find_recipe(recipe), settings or ())
    if smoke:
        pipeline = catalogue.smoke_recipe(pipeline)
    source = data.source(pipeline.data)
    folder = folder or Path("runs") / pipeline.name
    if not run_pipeline(pipeline, source, folder, resume=resume, minutes=minutes):
        raise typer.Exit(STOPPED)


@app.command(epilog=example("counterfoil demo", "counterfoil demo --output runs/demo --resume"))
def demo(folder: RunFolder = None, resume: Resume = False) -> None:
    """Show in two minutes what hard negatives change, on pictures rendered here."""
    import torch

    from counterfoil.pipelines.run import DataSource, run_pipeline
    from counterfoil.recipes import catalogue

    # Products of this size gain nothing from a second thread, and the threads of the loop and of
    # the batches that are read ahead take each other's cores: 123 s a training instead of 40.
    torch.set_num_threads(1)
    recipe = catalogue.find_recipe("demo")
    folder = folder or Path("runs") / recipe.name
    if not run_pipeline(recipe, DataSource(recipe.data), folder, resume=resume):
        raise typer.Exit(STOPPED)


@app.command(
    rich_help_panel=RECIPES,
    epilog=example("counterfoil plan demo", "counterfoil plan aoq/scan-t2i-flickr8k"),
)
def plan(
    context: typer.Context,
    recipe: Annotated[
        str | None, typer.Argument(help="Name or `.py` file; without one, list all recipes.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Show the stages of a recipe; without one, list the recipes."""
    from counterfoil.pipelines.overrides import apply_overrides
    from counterfoil.pipelines.plan import print_plan
    from counterfoil.recipes import catalogue

    refuse_without(context, "recipe", ("settings",), argument=True)
    if recipe is None:
        catalogue.print_catalogue()
    else:
        print_plan(apply_overrides(catalogue.find_recipe(recipe), settings or ()))
