"""``counterfoil sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterfoil.cli.options import (
    STOPPED,
    Data,
    Features,
    Images,
    Minutes,
    Resume,
    Seed,
    Settings,
    Smoke,
    example,
)

app = typer.Typer(rich_markup_mode="markdown")

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


@app.command(
    epilog=example(
        "counterfoil sweep vsepp-scenes --over online.rate=2e-4,5e-4 --over *.batch=64,128 "
        "--seeds 0,1",
        "counterfoil sweep sweeps/tags-dc-scenes --dry",
        "counterfoil sweep sweeps/tags-dc-scenes --minutes 60 --resume --test-best",
    )
)
def sweep(
    recipe: Annotated[
        str | None, typer.Argument(help="Recipe, `.py` file or `sweeps/…`; none lists the last.")
    ] = None,
    over: Over = None,
    stage: Compared = None,
    data: Data = None,
    features: Features = None,
    images: Images = None,
    folder: Place = None,
    settings: Settings = None,
    draw: Draw = None,
    seed: Seed = 0,
    seeds: Seeds = "0",
    resume: Resume = False,
    smoke: Smoke = False,
    minutes: Minutes = None,
    test_best: Annotated[bool, typer.Option(help="Measure the best point on test.")] = False,
    dry: Annotated[bool, typer.Option(help="Only show the points and count the stages.")] = False,
) -> None:
    """Train a recipe at many settings and rank them on dev; what they share is run once."""
    from counterfoil.recipes.run import Source
    from counterfoil.recipes.sweep import catalogue, shown
    from counterfoil.recipes.sweep.run import run

    if recipe is None:
        shown.listed(catalogue.sweeps())
        return
    asked = catalogue.asked(
        recipe, over or (), stage=stage, settings=settings or (), draw=draw, seed=seed,
        seeds=seeds, smoke=smoke,
    )  # fmt: skip
    if dry:
        shown.planned(asked)
        return
    source = Source(data or asked.recipe.data, features=features, images=images)
    if not run(
        asked, source, folder or asked.folder, resume=resume, minutes=minutes, test=test_best
    ):
        raise typer.Exit(STOPPED)
