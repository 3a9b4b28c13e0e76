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
from benchmarks.truths.replacing import Replaced
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.losses.ndgl import MarginDistillationLoss, listwise_settings
from counterfoil.model import Model
from counterfoil.negatives.filters import FilterConfig
from counterfoil.negatives.mining import (
    HardNegatives,
    mine_hard_negatives,
    rerank_proposals,
    with_true_scores,
)
from counterfoil.negatives.sampling import SamplingConfig
from counterfoil.negatives.sources import NegativeSource
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.training.mined import Mined, MinedTeacher

SEEDS = range(22, 30)  # confirm; 2 to 21 are those of whose truth
POINT = {"rate": 3e-3, "temperature": 0.05}  # of the bases, chosen on their grids by whose truth
MINED, FIVE = "mined, no filter", "five captions as positives"
HARDER, SHARED = "hardness weight", "five captions, shared target"
AMBIGUOUS = "mined, drawn by ambiguity"
MEAN = "mined, below the mean positive"
KEPT, REPLACED = "mined, one kept", "mined, replaced when learnt"
FOUR, TAUGHT = "four mined pairs", "four mined pairs, a re-ranker teaches"
SCORED = (50, 10)  # lists that the re-ranker scores


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
def _lists(
    bed: Bed, seed: int, filters: FilterConfig, lengths: tuple[int, int] | None = None
) -> HardNegatives:
    texts, images = lengths or LISTS
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
    source = Mined(lists, sampling=sampling or SamplingConfig())
    return _on_lists(bed, info_nce_with_drawn(point), point, seed, cost, source)


def _on_lists(
    bed: Bed,
    loss: Loss | WeightedSum,
    point: Point,
    seed: int,
    cost: Cost,
    source: NegativeSource,
    count: int = 1,
) -> Model:
    """Round two from round one, with `count` texts and images of each anchor from a source."""
    model, before = _first(bed, seed)
    cost.steps += before.steps
    cost.pairs += before.pairs
    return fit(
        bed,
        loss,
        seed,
        cost,
        rate=point["rate"],
        epochs=EPOCHS // 2,
        sources=[source],
        start=copy.deepcopy(model),
        drawn=count,
    )


_DRAWN = SamplingConfig(count=4, resample=False)


def _four(bed: Bed, point: Point, seed: int, cost: Cost) -> Model:
    source = Mined(_lists(bed, seed, FilterConfig(), SCORED), sampling=_DRAWN)
    return _on_lists(bed, info_nce_with_drawn(point), point, seed, cost, source, _DRAWN.count)


def _replaced(bed: Bed, point: Point, seed: int, cost: Cost) -> Model:
    """Round two with one mined text and image of each anchor, kept or replaced."""
    texts, images = (int(point["first"] * length) for length in LISTS)
    lists = _lists(bed, seed, FilterConfig())
    source = Replaced(lists, every=int(point.get("every", 0)), start=(texts, images))
    loss = info_nce_with_drawn({"temperature": POINT["temperature"], **point})
    return _on_lists(bed, loss, point, seed, cost, source)


@lru_cache(maxsize=1)
def _scored(bed: Bed, seed: int) -> HardNegativeLists:
    """The same lists by the mean score of the re-ranker and of the model that listed them."""
    found, owner = _lists(bed, seed, FilterConfig(), SCORED), bed.train.text_to_image
    members = [bed.reranked, _first(bed, seed)[0].embed(bed.train)]
    lengths = {"texts_per_image": SCORED[0], "images_per_text": SCORED[1]}
    return with_true_scores(
        rerank_proposals(found.lists, members, owner, **lengths), members, owner
    )


def _taught(bed: Bed, point: Point, seed: int, cost: Cost) -> Model:
    """InfoNCE of the batch, and the re-ranker's distribution over what `_four` has as negatives."""
    settings = listwise_settings(
        temperature=point["temperature"], teacher_temperature=point["teacher"]
    )
    terms: dict[str, tuple[float, Loss]] = {
        "own": (1.0, InfoNCELoss(temperature=POINT["temperature"], reduction="mean")),
        "lists": (1.0, MarginDistillationLoss(**settings)),
    }
    source = MinedTeacher(_scored(bed, seed), sampling=_DRAWN)
    return _on_lists(bed, WeightedSum(terms=terms), point, seed, cost, source, _DRAWN.count)


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
RATES = (1e-3, 3e-3)
FIRST = (0.0, 0.1, 0.5)  # as a share of a list
STUDIES: Mapping[str, tuple[Mapping[str, Arm], ...]] = {
    "methods": GROUPS,
    "replacing": (
        {BASE: GROUPS[0][BASE]},
        {
            MINED: GROUPS[1][MINED],
            REPLACED: Arm(REPLACED, grid(first=FIRST, rate=RATES, every=(5, 15)), _replaced),
        },
        {KEPT: Arm(KEPT, grid(first=FIRST, rate=RATES, temperature=(0.05, 0.08)), _replaced)},
    ),
    "listwise": (
        {BASE: GROUPS[0][BASE]},
        {
            FOUR: Arm(FOUR, ARMS[MINED].grid, _four),
            TAUGHT: Arm(
                TAUGHT,
                grid(rate=RATES, temperature=(0.05, 0.1, 0.2), teacher=(0.1, 0.3)),
                _taught,
            ),
        },
    ),
}
ARM = {name: arm for study in STUDIES.values() for group in study for name, arm in group.items()}


def run(
    bed: Bed,
    folder: Path,
    claims: Sequence[Mapping[str, str]],
    minutes: float | None,
    *,
    study: str = "methods",
    explored: bool = False,
) -> bool:
    """Explore, declare and confirm what is missing, group after group; False where it stopped."""
    end = None if minutes is None else time.monotonic() + 60 * minutes
    folder.mkdir(parents=True, exist_ok=True)
    for phase, arm, point, seed in _todo(folder, claims, STUDIES[study], explored=explored):
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
    folder: Path,
    claims: Sequence[Mapping[str, str]],
    groups: Sequence[Mapping[str, Arm]],
    *,
    explored: bool,
) -> Iterator[tuple[str, str, Point, int]]:
    for number, group in enumerate(groups, 1):
        grids = {name: arm.grid for name, arm in group.items()}
        plain = [claim for claim in claims if claim["arm"] in group]
        name = f"declared-{number}.json"
        yield from todo(folder, grids, plain, SEEDS, explored=explored, name=name, closed=False)
