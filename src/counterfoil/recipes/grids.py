"""Grids by name: the search that the numbers of TAGS and TAGS-DC came from (appendix A.1).

The appendix gives values for the temperature, four weights (that of IRTM is 1, those of doubting
and correcting words are equal) and the learning rate; Table 5 is what was chosen. It says neither
which figure chose, nor whether both steps were searched together. Here it is RSum on dev: of step 1
alone, "tags", or of step 2, "tags-dc", with temperature and weights the same in both steps.

Departs from the paper in: for `scenes` and Flickr8k, whose models are smaller, rates stay as the
recipe has them, and of the grid few points are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from counterfoil.pipelines.grid_search import NAMED, GridAxis, GridSearch
from counterfoil.recipes import catalogue, tags
from counterfoil.recipes.profiles import LARGE, Dataset
from counterfoil.recipes.settings import apply
from counterfoil.spec import unknown

HOST: tags.Host = "uniter"
DRAWN = 6  # points on the small sets
TEMPERATURES = ("1.0", "1.5")
MASKED = ("5e-2", "1e-1")
WRITTEN = ("1e-4", "5e-4", "1e-3")
WORDS = ("5e-4", "1e-3")
RATES = ("5e-5", "4e-5", "1e-5")


def grids() -> tuple[GridSearch, ...]:
    """Every grid that has a name."""
    return tuple(make(to) for to in catalogue.SETS for make in (first_step, both_steps))


def find(name: str) -> GridSearch:
    """The grid of this name.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    known = {grid.name: grid for grid in grids()}
    if name not in known:
        raise ValueError(unknown(name, list(known), "a sweep"))
    return known[name]


def requested(
    name: str,
    over: Sequence[str] = (),
    *,
    stage: str | None = None,
    settings: Sequence[str] = (),
    draw: int | None = None,
    seed: int = 0,
    seeds: str = "0",
    smoke: bool = False,
) -> GridSearch:
    """The grid that a user asks for, by its name or as a recipe and axes.

    Args:
        name: of a grid, of a recipe, or a Python file.
        over: axes, each as `GridAxis.parse` reads it.
        stage: training whose dev figure is compared; none for the last one.
        settings: changed at every point.
        draw: number of points to draw; 0 for the whole grid, none for the grid's own.
        seed: of the draw.
        seeds: repeats, whole numbers between commas.
        smoke: at most 20 training steps a stage.

    Raises:
        ValueError: nothing of this name, or nothing that can be varied so.
    """
    if name.startswith(NAMED):
        if over or stage:
            raise ValueError(
                f"{name} says what is varied and compared; --over and --stage go with a recipe"
            )
        grid = find(name)
        grid = replace(grid, draw=grid.draw if draw is None else draw)
    else:
        axes = tuple(GridAxis.parse(text) for text in over)
        recipe = catalogue.find(name)
        grid = GridSearch(
            name=recipe.name, recipe=recipe, axes=axes, stage=stage or "", draw=draw or 0
        )
    try:
        repeats = tuple(int(part) for part in seeds.split(","))
    except ValueError:
        raise ValueError(
            f"--seeds {seeds}: whole numbers between commas are needed, as in 0,1,2"
        ) from None
    recipe = apply(grid.recipe, settings)
    return replace(grid, recipe=recipe, seed=seed, seeds=repeats, smoke=smoke)


def first_step(dataset: Dataset) -> GridSearch:
    """Step 1."""
    return GridSearch(
        name=f"{NAMED}tags-{dataset}",
        recipe=tags.tags(HOST, dataset),
        axes=(*_rates(dataset, tags.STEP_1), *_steps("tags")),
        stage=tags.STEP_1,
        draw=0 if dataset in LARGE else DRAWN,
        about="TAGS, appendix A.1: step 1",
    )


def both_steps(dataset: Dataset) -> GridSearch:
    """Both steps."""
    weights = tuple(f"{tags.STEP_2}.objective.{term}.weight" for term in ("doubt", "correct"))
    return GridSearch(
        name=f"{NAMED}tags-dc-{dataset}",
        recipe=tags.tags_dc(HOST, dataset),
        axes=(
            *_rates(dataset, tags.STEP_1, tags.STEP_2),
            *_steps("*"),
            GridAxis(keys=weights, values=WORDS),
        ),
        stage=tags.STEP_2,
        draw=0 if dataset in LARGE else DRAWN,
        about="TAGS-DC, appendix A.1: both steps",
    )


def _steps(stage: str) -> tuple[GridAxis, ...]:
    """The axes that both steps have."""
    return (
        GridAxis(keys=(f"{stage}.proposer.tailored.temperature",), values=TEMPERATURES),
        GridAxis(keys=(f"{stage}.objective.masked.weight",), values=MASKED),
        GridAxis(keys=(f"{stage}.objective.written.weight",), values=WRITTEN),
    )


def _rates(dataset: Dataset, *stages: str) -> tuple[GridAxis, ...]:
    if dataset not in LARGE:
        return ()
    return tuple(GridAxis(keys=(f"{stage}.rate",), values=RATES) for stage in stages)
