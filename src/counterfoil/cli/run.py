"""Verbs about recipes and their runs: run, demo, plan, sweep and report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli.options import (
    RECIPES,
    RESEARCH,
    STOPPED,
    DataOptions,
    Device,
    Minutes,
    Resume,
    RunFolder,
    Seed,
    Settings,
    Smoke,
    print_tables,
    refuse,
    refuse_without,
    verb,
)
from counterfoil.core.console import output

if TYPE_CHECKING:
    from collections.abc import Iterable

    from counterfoil.papers.grid_search import GridSearch

RecipeOrSweep = Annotated[
    str | None, typer.Argument(help="Recipe, `.py` file or `sweeps/…`; without one, list sweeps.")
]
Over = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE,VALUE",
        help="stage.key=value,value; repeatable; KEY+KEY=… for keys with equal values.",
    ),
]
Compared = Annotated[
    str | None, typer.Option(help="Training stage to compare on dev; default the last.")
]
Folder = Annotated[
    Path | None, typer.Option("--output", help="Folder; default `runs/sweeps/RECIPE`.")
]
Draw = Annotated[
    int | None, typer.Option(min=0, help="Random points of the grid to run; 0 for all.")
]
Seeds = Annotated[
    str, typer.Option(help="Repeat every point with seeds, as 0,1,2; added to its own seed.")
]
Test = Annotated[bool, typer.Option(help="Evaluate the best point on test.")]
Dry = Annotated[bool, typer.Option(help="Only show the points and the number of stages.")]

# options that --dry does not read
RUN_OPTIONS = (
    "data",
    "features",
    "images",
    "corrections",
    "folder",
    "resume",
    "minutes",
    "test_best",
)

app = typer.Typer(rich_markup_mode="markdown")


@verb(
    app,
    "counterfoil run demo",
    "counterfoil run aoq/vsepp-flickr8k --data flickr8k/ --features regions/ "
    "--set online.epochs=5 --resume",
    panel=RECIPES,
)
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
    from counterfoil.papers import catalogue
    from counterfoil.pipelines.overrides import apply_overrides
    from counterfoil.pipelines.run import run_pipeline

    pipeline = apply_overrides(catalogue.find_recipe(recipe), settings or ())
    if smoke:
        pipeline = catalogue.smoke_recipe(pipeline)
    source = data.source(pipeline.data)
    folder = folder or Path("runs") / pipeline.name
    if not run_pipeline(pipeline, source, folder, resume=resume, minutes=minutes):
        raise typer.Exit(STOPPED)


@verb(
    app,
    "counterfoil demo",
    "counterfoil demo --output runs/demo --resume",
)
def demo(folder: RunFolder = None, resume: Resume = False) -> None:
    """Show in two minutes what hard negatives change, on pictures rendered here."""
    import torch

    from counterfoil.papers import catalogue
    from counterfoil.pipelines.run import DataSource, run_pipeline

    # Products of this size gain nothing from a second thread, and the threads of the loop and of
    # the batches that are read ahead take each other's cores: 123 s a training instead of 40.
    torch.set_num_threads(1)
    recipe = catalogue.find_recipe("demo")
    folder = folder or Path("runs") / recipe.name
    if not run_pipeline(recipe, DataSource(recipe.data), folder, resume=resume):
        raise typer.Exit(STOPPED)


@verb(
    app,
    "counterfoil plan demo",
    "counterfoil plan aoq/scan-t2i-flickr8k",
    panel=RECIPES,
)
def plan(
    context: typer.Context,
    recipe: Annotated[
        str | None, typer.Argument(help="Name or `.py` file; without one, list all recipes.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Show the stages of a recipe; without one, list the recipes."""
    from counterfoil.papers import catalogue
    from counterfoil.pipelines.overrides import apply_overrides
    from counterfoil.pipelines.plan import print_plan

    refuse_without(context, "recipe", ("settings",), argument=True)
    if recipe is None:
        catalogue.print_catalogue()
    else:
        print_plan(apply_overrides(catalogue.find_recipe(recipe), settings or ()))


@verb(
    app,
    "counterfoil report runs/mine --data my-photos/ --output report.html",
    "counterfoil report runs/a/test-online runs/b/test-online --foils a.json --foils b.json",
    "counterfoil report runs/mine/best other-model/ --data my-photos/ --output report.html",
    panel=RESEARCH,
)
def report(
    context: typer.Context,
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs, of single evaluations, or, with --data, of models to evaluate."
        ),
    ],
    data: DataOptions,
    foils: Annotated[
        list[Path] | None,
        typer.Option(help="JSON file that `counterfoil foils --json` wrote; repeatable."),
    ] = None,
    page: Annotated[
        Path, typer.Option("--output", help="HTML page to write; its numbers go beside it.")
    ] = Path("report.html"),
) -> None:
    """Compare finished runs on one page: tests, curves, hardness, foils, cost, examples."""
    source = data.optional_source(context)
    from counterfoil.analysis.runs import report as compare
    from counterfoil.pipelines.publishing import check_page_path

    check_page_path(page)
    analysis = compare(runs, source=source, foils=foils or ())
    analysis.publish(page)
    if apart := analysis.numbers["apart"]:
        names = ", ".join(apart)
        output(f"not compared, as they were measured on other data or by another protocol: {names}")


@verb(
    app,
    "counterfoil sweep vsepp-scenes --over online.rate=2e-4,5e-4 --over *.batch=64,128 --seeds 0,1",
    "counterfoil sweep sweeps/tags-dc-scenes --dry",
    "counterfoil sweep sweeps/tags-dc-scenes --minutes 60 --resume --test-best",
    panel=RESEARCH,
)
def sweep(
    context: typer.Context,
    data: DataOptions,
    recipe: RecipeOrSweep = None,
    over: Over = None,
    stage: Compared = None,
    folder: Folder = None,
    settings: Settings = None,
    draw: Draw = None,
    seed: Seed = 0,
    seeds: Seeds = "0",
    resume: Resume = False,
    smoke: Smoke = False,
    minutes: Minutes = None,
    test_best: Test = False,
    dry: Dry = False,
) -> None:
    """Search hyper-parameters: train a recipe with many settings, rank them on dev."""
    from dataclasses import replace

    from counterfoil.papers import grid_search
    from counterfoil.papers.catalogue import smoke_recipe
    from counterfoil.pipelines.overrides import apply_overrides

    refuse_without(context, "recipe", tuple(context.params), argument=True)
    refuse_without(context, "dry", RUN_OPTIONS, alone=True)
    if recipe is None:
        _list(grid_search.named_grids().values())
        return
    grid = grid_search.find_grid(recipe, over or (), stage or "")
    changed = apply_overrides(grid.recipe, settings or ())
    grid = replace(
        grid,
        recipe=smoke_recipe(changed) if smoke else changed,
        draw=grid.draw if draw is None else draw,
        seed=seed,
        seeds=_numbers(seeds),
    )
    if not grid.draw:
        refuse(context, ("seed",), "with --draw")
    source = data.source(grid.recipe.data)
    if dry:
        grid_search.show_grid(grid)
        return
    folder = folder or Path("runs") / "sweeps" / grid.name.removeprefix(grid_search.PREFIX)
    if not grid_search.run_grid(
        grid, source, folder, resume=resume, minutes=minutes, test=test_best
    ):
        raise typer.Exit(STOPPED)


def _numbers(seeds: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, seeds.split(",")))
    except ValueError:
        raise ValueError(
            f"--seeds {seeds}: whole numbers between commas are needed, as in 0,1,2"
        ) from None


def _list(grids: Iterable[GridSearch]) -> None:
    from counterfoil.report.page import TableBlock

    rows = tuple(
        (grid.name, f"{grid.size:,}", str(grid.draw or grid.size), grid.about) for grid in grids
    )
    print_tables([TableBlock("", ("sweep", "grid", "points", "about"), rows)])
