"""``counterfoil sweep``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterfoil.cli.options import (
    STOPPED,
    Data,
    Decisions,
    Features,
    Images,
    Minutes,
    Resume,
    Seed,
    Settings,
    Smoke,
    example,
    refuse,
    refuse_without,
)

if TYPE_CHECKING:
    from counterfoil.recipes.grid_search import GridSearch


app = typer.Typer(rich_markup_mode="markdown")

What = Annotated[
    str | None, typer.Argument(help="Recipe, `.py` file or `sweeps/…`; none lists the last.")
]
Over = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE,VALUE",
        help="stage.key=value,value, many times; KEY+KEY=… for keys that are kept equal.",
    ),
]
Compared = Annotated[
    str | None, typer.Option(help="Training compared on dev; default the last one.")
]
Place = Annotated[
    Path | None, typer.Option("--folder", help="Where results go; default `runs/sweeps/RECIPE`.")
]
Draw = Annotated[int | None, typer.Option(min=0, help="So many points of the grid; 0 for all.")]
Seeds = Annotated[str, typer.Option(help="Every point so often, 0,1,2: added to its own seeds.")]
Test = Annotated[bool, typer.Option(help="Measure the best point on test.")]
Dry = Annotated[bool, typer.Option(help="Only show the points and count the stages.")]

UNREAD_DRY = (
    "data",
    "features",
    "images",
    "decisions",
    "folder",
    "resume",
    "minutes",
    "test_best",
)


@app.command(
    epilog=example(
        "counterfoil sweep vsepp-scenes --over online.rate=2e-4,5e-4 --over *.batch=64,128 "
        "--seeds 0,1",
        "counterfoil sweep sweeps/tags-dc-scenes --dry",
        "counterfoil sweep sweeps/tags-dc-scenes --minutes 60 --resume --test-best",
    )
)
def sweep(
    context: typer.Context,
    recipe: What = None,
    over: Over = None,
    stage: Compared = None,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    decisions: Decisions = None,
    folder: Place = None,
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
    """Train a recipe at many settings and rank them on dev; what they share is run once."""
    from counterfoil.pipelines.run import DataSource
    from counterfoil.recipes import grid_search
    from counterfoil.recipes.grid_search import run_grid, show_grid

    _check(context)
    if recipe is None:
        _list(grid_search.grids())
        return
    grid = grid_search.requested(
        recipe,
        over or (),
        stage=stage,
        settings=settings or (),
        draw=draw,
        seed=seed,
        seeds=seeds,
        smoke=smoke,
    )
    if not grid.draw:
        refuse(context, ("seed",), "with --draw")
    source = DataSource(data or grid.recipe.data, features, images, decisions)
    place = folder or grid.folder
    if dry:
        show_grid(grid)
    elif not run_grid(grid, source, place, resume=resume, minutes=minutes, test=test_best):
        raise typer.Exit(STOPPED)


def _list(grids: Iterable[GridSearch]) -> None:
    from counterfoil.pipelines.plan import console
    from counterfoil.report.page import TableBlock
    from counterfoil.report.tables import terminal_table

    rows = tuple((one.name, f"{one.size:,}", str(one.draw or one.size), one.about) for one in grids)
    console.print(terminal_table(TableBlock("", ("sweep", "grid", "points", "about"), rows)))


def _check(context: typer.Context) -> None:
    """Refuse options that have no effect when grids are listed, or shown and not run."""
    refuse_without(context, "recipe", tuple(context.params), argument=True)
    refuse_without(context, "dry", UNREAD_DRY, alone=True)
