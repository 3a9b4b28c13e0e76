"""Verbs about recipes and their runs: run, demo, plan and report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    RECIPES,
    STOPPED,
    Data,
    Device,
    Minutes,
    RecipeCommand,
    Resume,
    RunFolder,
    Settings,
    Smoke,
    data_source,
    named_recipe,
    refuse_without,
    say_convergence,
    tell_model,
    verb,
)
from counterfoil.core.console import output

app = typer.Typer(rich_markup_mode="markdown")


@verb(
    app,
    "counterfoil run demo",
    "counterfoil run aoq --model vsepp --like flickr8k --data flickr8k/:features=regions/ "
    "--set online.epochs=5 --resume",
    panel=RECIPES,
    cls=RecipeCommand,
)
def run(
    context: typer.Context,
    recipe: Annotated[
        str, typer.Argument(help="Name, before its options, or `.py` file; `plan` lists them.")
    ],
    data: Data = None,
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

    pipeline = apply_overrides(named_recipe(context, recipe), settings or ())
    if smoke:
        pipeline = catalogue.smoke_recipe(pipeline)
    source = data_source(data, pipeline.data)
    folder = folder or Path("runs") / pipeline.name
    if not run_pipeline(pipeline, source, folder, resume=resume, minutes=minutes):
        raise typer.Exit(STOPPED)
    tell_model(folder, source)
    if not smoke:  # which is cut short on purpose
        say_convergence(context, folder, pipeline)


@verb(
    app,
    "counterfoil demo",
    "counterfoil demo --output runs/demo --resume",
)
def demo(folder: RunFolder = None, resume: Resume = False) -> None:
    """Show in two minutes what hard negatives change, on pictures rendered here."""
    import torch

    from counterfoil.core.console import briefly
    from counterfoil.pipelines.run import DataSource, run_pipeline
    from counterfoil.recipes import catalogue

    # Products of this size gain nothing from a second thread, and the threads of the loop and of
    # the batches that are read ahead take each other's cores: 123 s a training instead of 40.
    torch.set_num_threads(1)
    recipe = catalogue.find_recipe("demo")
    folder = folder or Path("runs") / recipe.name
    with briefly():
        done = run_pipeline(recipe, DataSource(recipe.data), folder, resume=resume)
    if not done:
        raise typer.Exit(STOPPED)


@verb(
    app,
    "counterfoil plan demo",
    "counterfoil plan aoq --model scan-t2i --like flickr30k",
    panel=RECIPES,
    cls=RecipeCommand,
)
def plan(
    context: typer.Context,
    recipe: Annotated[
        str | None,
        typer.Argument(help="Name or `.py` file; without one, list all and their options."),
    ] = None,
    settings: Settings = None,
) -> None:
    """Show the stages of a recipe, or with `--help` its options; without one, list the recipes."""
    from counterfoil.pipelines.overrides import apply_overrides
    from counterfoil.pipelines.plan import print_plan

    refuse_without(context, "recipe", ("settings",), argument=True)
    if recipe is None:
        from counterfoil.recipes import catalogue

        catalogue.print_catalogue()
    else:
        print_plan(apply_overrides(named_recipe(context, recipe), settings or ()))


@verb(
    app,
    "counterfoil report runs/mine --data my-photos/ --output report.html",
    "counterfoil report runs/a/test-online runs/b/test-online --foils a.json --foils b.json",
    "counterfoil report runs/mine other-model/ --data my-photos/ --output report.html",
)
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs, of single evaluations, or, with --data, of models to evaluate."
        ),
    ],
    data: Data = None,
    foils: Annotated[
        list[Path] | None,
        typer.Option(help="JSON file that `counterfoil foils --json` wrote; repeatable."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="HTML page to write; its numbers go beside it. Default `comparison.html` in the "
            "first folder, or beside it if it is a model.",
        ),
    ] = None,
) -> None:
    """Compare finished runs on one page: tests, curves, hardness, foils, cost, examples."""
    source = data_source(data) if data else None
    from counterfoil.analysis.runs import report as compare
    from counterfoil.model import is_model_folder
    from counterfoil.pipelines.run import stage_records
    from counterfoil.report.analysis import check_page_path

    if page is None:
        # nothing is written into a model's folder
        inside = runs[0].is_dir() and (not is_model_folder(runs[0]) or stage_records(runs[0]))
        page = (runs[0] if inside else runs[0].parent) / "comparison.html"
    check_page_path(page)
    analysis = compare(runs, source=source, foils=foils or ())
    analysis.publish(page, shown=1)
    if apart := analysis.numbers["apart"]:
        names = ", ".join(apart)
        output(f"not compared, as they were measured on other data, or otherwise: {names}")
