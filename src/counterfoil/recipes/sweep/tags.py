"""The grid that the numbers of TAGS and TAGS-DC were chosen from (their appendix A.1).

The appendix gives values for the temperature, four weights (that of IRTM is 1, those of doubting
and correcting words are equal) and the learning rate; Table 5 is what was chosen. It says neither
which figure chose, nor whether both steps were searched together. Here it is RSum on dev: of step 1
alone, "tags", or of step 2, "tags-dc", with temperature and weights the same in both steps.

Departs from the paper in: for `scenes` and Flickr8k, whose models are smaller, rates stay as the
recipe has them, and of the grid few points are drawn.
"""

from __future__ import annotations

from counterfoil.recipes import tags
from counterfoil.recipes.profiles import LARGE, Dataset
from counterfoil.recipes.sweep.grid import Axis, Sweep

HOST: tags.Host = "uniter"
DRAWN = 6  # points on the small sets
TEMPERATURES = ("1.0", "1.5")
MASKED = ("5e-2", "1e-1")
WRITTEN = ("1e-4", "5e-4", "1e-3")
WORDS = ("5e-4", "1e-3")
RATES = ("5e-5", "4e-5", "1e-5")


def first(dataset: Dataset) -> Sweep:
    """Step 1."""
    return Sweep(
        name=f"sweeps/tags-{dataset}",
        recipe=tags.tags(HOST, dataset),
        axes=(*_rates(dataset, tags.STEP_1), *_steps("tags")),
        stage=tags.STEP_1,
        draw=_drawn(dataset),
        about="TAGS, appendix A.1: step 1",
    )


def second(dataset: Dataset) -> Sweep:
    """Both steps."""
    weights = tuple(f"{tags.STEP_2}.objective.{term}.weight" for term in ("doubt", "correct"))
    return Sweep(
        name=f"sweeps/tags-dc-{dataset}",
        recipe=tags.tags_dc(HOST, dataset),
        axes=(
            *_rates(dataset, tags.STEP_1, tags.STEP_2),
            *_steps("*"),
            Axis(keys=weights, values=WORDS),
        ),
        stage=tags.STEP_2,
        draw=_drawn(dataset),
        about="TAGS-DC, appendix A.1: both steps",
    )


def _steps(stage: str) -> tuple[Axis, ...]:
    """What both steps have."""
    return (
        Axis(keys=(f"{stage}.proposer.tailored.temperature",), values=TEMPERATURES),
        Axis(keys=(f"{stage}.objective.masked.weight",), values=MASKED),
        Axis(keys=(f"{stage}.objective.written.weight",), values=WRITTEN),
    )


def _rates(dataset: Dataset, *stages: str) -> tuple[Axis, ...]:
    if dataset not in LARGE:
        return ()
    return tuple(Axis(keys=(f"{stage}.rate",), values=RATES) for stage in stages)


def _drawn(dataset: Dataset) -> int:
    return 0 if dataset in LARGE else DRAWN
