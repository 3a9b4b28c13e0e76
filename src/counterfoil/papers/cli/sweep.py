"""``counterfoil sweep``: a recipe with many settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli.options import (
    RESEARCH,
    STOPPED,
    DataOptions,
    Minutes,
    Resume,
    Seed,
    Settings,
    Smoke,
    print_tables,
    refuse,
    refuse_without,
    verb,
)

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
    from counterfoil.pipelines.overrides import apply_overrides
    from counterfoil.recipes.catalogue import smoke_recipe

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
