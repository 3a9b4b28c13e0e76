"""Methods of 2024 to 2026 on the bed of *whose truth*: options of a loss, a draw, a filter.

Each is tuned as every other arm there, twelve points on seeds 0 and 1, and confirmed on seeds that
no arm has seen. Arms of mined pairs share their first round and its lists, seed by seed.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.truths.arms import (
    ARMS,
    BASE,
    EPOCHS,
    LISTS,
    Arm,
    Cost,
    Point,
    first_round,
    fit,
    grid,
    info_nce_with_drawn,
)
from benchmarks.truths.bed import SPLITS, Bed
from benchmarks.truths.ledger import todo, write_line
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.model import Model
from counterfoil.negatives.filters import FilterConfig
from counterfoil.negatives.mining import HardNegatives, mine_hard_negatives
from counterfoil.negatives.sampling import SamplingConfig
from counterfoil.training.mined import Mined

SEEDS = range(22, 30)  # confirm; 2 to 21 are those of whose truth
POINT = {"rate": 3e-3, "temperature": 0.05}  # of the bases, chosen on their grids by whose truth
MINED, FIVE = "mined, no filter", "five captions as positives"
HARDER, SHARED = "hardness weight", "five captions, shared target"
AMBIGUOUS = "mined, drawn by ambiguity"
MEAN = "mined, below the mean positive"


def _harder(bed: Bed, point: Point, seed: int, cost: Cost) -> Model:
    loss = InfoNCELoss(
        temperature=point["temperature"], hardness=point["hardness"], reduction="mean"
    )
    return fit(bed, loss, seed, cost, rate=point["rate"])


class SharedTargetInfoNCE(nn.Module):
    """InfoNCE in which the true captions of an image compete with each other, too.

    The softmax is over all pairs of a row, and its target is spread over the true ones, as in
    beta-CAL (beta-CLIP). There a row is an image as one of its captions sees it, whose target is 1
    for that caption and beta for the others, scaled to a sum of 1. Where an image has one vector,
    the rows of its captions have the same scores, their targets add up to 1 for each caption, and
    beta cancels out.
    """

    def __init__(self, *, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, scores: Tensor, positives: Tensor, mask: Tensor) -> Tensor:
        """Mean over the true pairs of both directions."""
        logits = (scores / self.temperature).masked_fill(~mask & ~positives, -torch.inf)
        sides = [logits.log_softmax(side)[positives].mean() for side in (0, 1)]
        return -torch.stack(sides).mean()


def _shared(bed: Bed, point: Point, seed: int, cost: Cost) -> Model:
    loss = SharedTargetInfoNCE(temperature=point["temperature"])
    return fit(bed, loss, seed, cost, rate=point["rate"], batch=128, all_captions=True)


@lru_cache(maxsize=1)
def _first(bed: Bed, seed: int) -> tuple[Model, Cost]:
    """The model of round one of a seed, and what it cost."""
    cost = Cost()
    return first_round(bed, seed, cost), cost


@lru_cache(maxsize=4)
def _lists(bed: Bed, seed: int, filters: FilterConfig) -> HardNegatives:
    texts, images = LISTS
    model, _ = _first(bed, seed)
    return mine_hard_negatives(
        model, bed.train, texts_per_image=texts, images_per_text=images, filters=filters
    )


def _second(
    bed: Bed,
    point: Point,
    seed: int,
    cost: Cost,
    filters: FilterConfig | None = None,
    sampling: SamplingConfig | None = None,
) -> Model:
    """Round two from round one, with a mined text and a mined image of each anchor."""
    lists = _lists(bed, seed, filters or FilterConfig())
    model, before = _first(bed, seed)
    cost.steps += before.steps
    cost.pairs += before.pairs
    return fit(
        bed,
        info_nce_with_drawn(point),
        seed,
        cost,
        rate=point["rate"],
        epochs=EPOCHS // 2,
        sources=[Mined(lists, sampling=sampling or SamplingConfig())],
        start=copy.deepcopy(model),
        drawn=1,
    )


def _ambiguous(bed: Bed, point: Point, seed: int, cost: Cost) -> Model:
    plan = SamplingConfig(ambiguity=point["ambiguity"], centre=point["centre"])
    return _second(bed, point, seed, cost, sampling=plan)


def _mean(bed: Bed, point: Point, seed: int, cost: Cost) -> Model:
    filters = FilterConfig(below_positive=point["below"], positive="mean")
    return _second(bed, point, seed, cost, filters)


_BELOW_MEAN = Arm(
    MEAN, grid(below=(-0.1, 0.0, 0.1), rate=(1e-3, 3e-3), temperature=(0.05, 0.08)), _mean
)
GROUPS: tuple[Mapping[str, Arm], ...] = tuple(
    {arm.name: arm for arm in group}
    for group in (
        (
            replace(ARMS[BASE], grid=(POINT,)),
            Arm(
                HARDER,
                grid(rate=(1e-3, 3e-3), temperature=(0.05, 0.08, 0.12), hardness=(3.0, 9.0)),
                _harder,
            ),
        ),
        (
            Arm(MINED, (POINT,), _second),
            Arm(
                AMBIGUOUS,
                grid(
                    centre=(-1.0, 0.0, 1.0),
                    ambiguity=(0.5,),
                    rate=(1e-3, 3e-3),
                    temperature=(0.05, 0.08),
                ),
                _ambiguous,
            ),
        ),
        (
            replace(ARMS[FIVE], grid=(POINT,)),
            Arm(SHARED, ARMS[FIVE].grid, _shared),
        ),
        (_BELOW_MEAN,),
    )
)
ARM = {name: arm for group in GROUPS for name, arm in group.items()}


def run(
    bed: Bed,
    folder: Path,
    claims: Sequence[Mapping[str, str]],
    minutes: float | None,
    *,
    explored: bool = False,
) -> bool:
    """Explore, declare and confirm what is missing, group after group; False where it stopped."""
    end = None if minutes is None else time.monotonic() + 60 * minutes
    folder.mkdir(parents=True, exist_ok=True)
    for phase, arm, point, seed in _todo(folder, claims, explored=explored):
        if end is not None and time.monotonic() > end:
            return False
        cost, start = Cost(), time.process_time()
        model = ARM[arm].train(bed, point, seed, cost)
        found = bed.measure(model, splits=SPLITS if phase == "confirm" else SPLITS[:1])
        seconds = time.process_time() - start
        write_line(folder, bed, (phase, arm, point, seed), found, cost, seconds)
        print(f"{phase}: {arm}, seed {seed}, {dict(point)}", flush=True)
    return not explored


def _todo(
    folder: Path, claims: Sequence[Mapping[str, str]], *, explored: bool
) -> Iterator[tuple[str, str, Point, int]]:
    for number, group in enumerate(GROUPS, 1):
        grids = {name: arm.grid for name, arm in group.items()}
        plain = [claim for claim in claims if claim["arm"] in group]
        name = f"declared-{number}.json"
        yield from todo(folder, grids, plain, SEEDS, explored=explored, name=name, closed=False)
