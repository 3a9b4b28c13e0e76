"""Lists of negatives where truth is complete: mined, exactly false at the same ranks, filtered.

All lists of a seed are of one model: the first round, which is trained and mined once for all arms.
There are two studies: of adapters on frozen vectors, and of towers that are trained.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from benchmarks.truths.arms import (
    Cost,
    Point,
    adaptive_quintuplet,
    closed_form,
    fit,
    grid,
    info_nce,
    info_nce_with_drawn,
)
from benchmarks.truths.ledger import todo, write_line
from benchmarks.truths.world import RegionWorld, World
from counterfoil.core.io import read_json, write_text
from counterfoil.losses.base import Loss
from counterfoil.model import Model
from counterfoil.negatives.filters import FilterConfig, NegativeFilters
from counterfoil.negatives.mining import mine_hard_negatives
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.training.mined import Mined

LONGER = 4  # times as long, in which the nearest false item is looked for
FILTERS = FilterConfig(captions=0.5)
MINED, FALSE, FILTERED = "mined", "exactly false, same ranks", "captions=0.5 filtered"
KINDS = (MINED, FALSE, FILTERED)
FACTS = "lists.json"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Mining:
    """A first round and the lists of its model.

    Attributes:
        model: to start round two from.
        cost: of the training.
        lists: by kind.
        facts: of the lists, by kind: see `facts_of`.
    """

    model: Model
    cost: Cost
    lists: Mapping[str, HardNegativeLists]
    facts: Mapping[str, Mapping[str, float]]


@final
@dataclass(frozen=True, eq=False)
class Study:
    """One table of lists: its bed, how its models are trained, and on which seeds.

    Attributes:
        name: of the table and its files.
        bed: what models are trained on.
        batch: captions of a step.
        lists: how many texts of an image are mined, and images of a text.
        first: epochs of the first round, which all lists come from.
        point: of the first round.
        arms: by name.
        seeds: that confirm.
    """

    name: str
    bed: type[World]
    batch: int
    lists: tuple[int, int]
    first: int
    point: Point
    arms: Mapping[str, ExactArm]
    seeds: range


@lru_cache(maxsize=1)
def first_round(study: Study, world: World, seed: int) -> Mining:
    """Train a first round by the usual loss and mine its model, for all arms of a seed."""
    cost, point = Cost(), study.point
    rate, batch = point["rate"], study.batch
    model = fit(world, info_nce(point), seed, cost, rate=rate, batch=batch, epochs=study.first)
    most = study.lists
    long = mine_hard_negatives(
        model,
        world.train,
        texts_per_image=LONGER * most[0],
        images_per_text=LONGER * most[1],
    ).lists
    filtered = _left(long, _filters(world).without(long), most)
    lists = {
        MINED: _first(long, most),
        FALSE: _same_ranks(long, world.true, most),
        FILTERED: filtered,
    }
    facts = {kind: facts_of(some, long, world.true) for kind, some in lists.items()}
    return Mining(model, cost, lists, facts)


@lru_cache(maxsize=1)
def _filters(world: World) -> NegativeFilters:
    """The filters, whose near captions are found once: they depend on no model."""
    return NegativeFilters(FILTERS, world.train)


def _left(
    long: HardNegativeLists, kept: HardNegativeLists, most: tuple[int, int]
) -> HardNegativeLists:
    """The hardest of each list that are kept, where others became -1; short where few are."""
    assert long.text_scores is not None
    assert long.image_scores is not None
    sides = []
    for rows, scores in ((kept.texts, long.text_scores), (kept.images, long.image_scores)):
        gone = rows < 0
        order = gone.byte().argsort(dim=1, stable=True)
        scored = scores.masked_fill(gone, -torch.inf)
        sides.append((rows.gather(1, order), scored.gather(1, order)))
    (texts, text_scores), (images, image_scores) = sides
    return _first(HardNegativeLists(texts, images, text_scores, image_scores), most)


def _first(long: HardNegativeLists, most: tuple[int, int]) -> HardNegativeLists:
    """The hardest of each list."""
    assert long.text_scores is not None
    assert long.image_scores is not None
    parts = (
        (long.texts, most[0]),
        (long.images, most[1]),
        (long.text_scores, most[0]),
        (long.image_scores, most[1]),
    )
    return HardNegativeLists(*(table[:, :count].contiguous() for table, count in parts))


def _same_ranks(long: HardNegativeLists, true: Tensor, most: tuple[int, int]) -> HardNegativeLists:
    """Lists in which every true item is replaced by the false one that is nearest in rank.

    The neighbour stands in the list already or not far behind its end, so that it may come twice:
    draws are uniform over a list, and the ranks that are drawn stay as they were.
    """
    assert long.text_scores is not None
    assert long.image_scores is not None
    found = []
    for rows, scores, table, count in (
        (long.texts, long.text_scores, true, most[0]),
        (long.images, long.image_scores, true.T, most[1]),
    ):
        places = nearest_false(_is_true(rows, table), rows >= 0)[:, :count]
        none = places < 0
        at = places.clamp(min=0)
        found.append((rows.gather(1, at).masked_fill(none, -1), scores.gather(1, at)))
        found[-1] = (found[-1][0], found[-1][1].masked_fill(none, -torch.inf))
    (texts, text_scores), (images, image_scores) = found
    return HardNegativeLists(texts, images, text_scores, image_scores)


def nearest_false(true: Tensor, listed: Tensor) -> Tensor:
    """(Q, k) long, for each place the nearest place of a false item, the harder of two; -1: none.

    >>> true = torch.tensor([[True, False, True, True, False]])
    >>> nearest_false(true, torch.ones_like(true))
    tensor([[1, 1, 1, 4, 4]])
    """
    place = torch.arange(true.shape[1]).expand_as(true)
    false, far = listed & ~true, 2 * true.shape[1]
    before = place.masked_fill(~false, -far).cummax(1).values
    after = place.masked_fill(~false, far).flip(1).cummin(1).values.flip(1)
    nearest = torch.where(place - before <= after - place, before, after)
    return nearest.masked_fill(~false.any(1, keepdim=True), -1)


def _is_true(rows: Tensor, true: Tensor) -> Tensor:
    """(Q, k) bool for lists (Q, k) by a table (Q, R)."""
    return true.gather(1, rows.clamp(min=0).long()) & (rows >= 0)


def facts_of(lists: HardNegativeLists, long: HardNegativeLists, true: Tensor) -> dict[str, float]:
    """Share of true pairs in percent, mean rank in the long lists and mean score, by direction."""
    found: dict[str, float] = {}
    for name, rows, scores, reference, table in (
        ("texts", lists.texts, lists.text_scores, long.text_scores, true),
        ("images", lists.images, lists.image_scores, long.image_scores, true.T),
    ):
        assert scores is not None
        assert reference is not None
        listed = rows >= 0
        # negated, ascending: the place of a score is the number of higher ones
        ranks = 1 + torch.searchsorted(-reference.float(), -scores.float())
        found |= {
            f"{name} true": round(100 * _is_true(rows, table)[listed].double().mean().item(), 3),
            f"{name} rank": round(ranks[listed].double().mean().item(), 3),
            f"{name} score": round(scores[listed].double().mean().item(), 5),
            f"{name} empty": int((~listed.any(1)).sum()),
        }
    return found


@final
@dataclass(frozen=True)
class ExactArm:
    """One kind of lists, or none, under one loss.

    Attributes:
        name: in tables.
        loss: of a point.
        grid: points to try.
        epochs: of its own round, the second where it has lists.
        kind: of the lists; None for one round of plain batches.
        drawn: pairs encoded for each anchor besides its own.
    """

    name: str
    loss: Callable[[Point], Loss]
    grid: Sequence[Point]
    epochs: int
    kind: str | None = None
    drawn: int = 0

    def train(self, study: Study, world: World, point: Point, seed: int, cost: Cost) -> Model:
        """Train it; `cost` grows by all that was encoded."""
        rate, batch, epochs = point["rate"], study.batch, self.epochs
        loss = self.loss(point)
        if self.kind is None:
            return fit(world, loss, seed, cost, rate=rate, batch=batch, epochs=epochs)
        mining = first_round(study, world, seed)
        cost.steps += mining.cost.steps
        cost.pairs += mining.cost.pairs
        return fit(
            world,
            loss,
            seed,
            cost,
            rate=rate,
            batch=batch,
            epochs=epochs,
            sources=[Mined(mining.lists[self.kind])],
            start=copy.deepcopy(mining.model),
            drawn=self.drawn,
        )


BASE = "InfoNCE"
AOQ_MINED, AOQ_FALSE = "AdapOffQuin, mined", "AdapOffQuin, exactly false"


def _by_name(*arms: ExactArm) -> Mapping[str, ExactArm]:
    return {arm.name: arm for arm in arms}


_GRID = grid(rate=(3e-3,), temperature=(0.05, 0.08, 0.12))
ADAPTERS = Study(
    "exact",
    World,
    batch=512,
    lists=(100, 20),
    first=1,
    point={"rate": 3e-3, "temperature": 0.05},
    arms=_by_name(
        ExactArm(BASE, info_nce, _GRID, 3),
        *(ExactArm(kind, info_nce_with_drawn, _GRID, 1, kind, 1) for kind in KINDS),
    ),
    seeds=range(2, 10),
)
_FRESH = (
    {"rate": 1e-2, "temperature": 0.07},
    {"rate": 1e-2, "temperature": 0.1},
    {"rate": 2e-2, "temperature": 0.1},
)
_LATER = (
    {"rate": 1e-2, "temperature": 0.07},
    {"rate": 1e-2, "temperature": 0.1},
    {"rate": 5e-3, "temperature": 0.1},
)
_MARGINS = (
    {"rate": 1e-2, "offline": 0.0},
    {"rate": 5e-3, "offline": 0.0},
    {"rate": 5e-3, "offline": 0.1},
)
TOWERS = Study(
    "towers",
    RegionWorld,
    batch=128,
    lists=(100, 20),
    first=1,
    point={"rate": 2e-2, "temperature": 0.1},
    arms=_by_name(
        ExactArm(BASE, info_nce, _FRESH, 5),
        *(ExactArm(kind, info_nce_with_drawn, _LATER, 2, kind, 1) for kind in KINDS),
        ExactArm(AOQ_MINED, adaptive_quintuplet, _MARGINS, 1, MINED, 2),
        ExactArm(AOQ_FALSE, adaptive_quintuplet, _MARGINS, 1, FALSE, 2),
    ),
    seeds=range(2, 10),
)
STUDIES = {study.name: study for study in (ADAPTERS, TOWERS)}


def run(
    study: Study,
    bed: Path,
    folder: Path,
    claims: Sequence[Mapping[str, Any]],
    minutes: float | None,
    *,
    explored: bool,
) -> bool:
    """Train what is missing; False where the time was up, or with `explored` where it is enough."""
    end = None if minutes is None else time.monotonic() + 60 * minutes
    folder.mkdir(parents=True, exist_ok=True)
    world = study.bed(bed)
    grids = {name: arm.grid for name, arm in study.arms.items()}
    for phase, name, point, seed in todo(folder, grids, claims, study.seeds, explored=explored):
        if end is not None and time.monotonic() > end:
            return False
        cost, start = Cost(), time.process_time()
        arm = study.arms.get(name)
        if arm is None:
            model, on = closed_form(World(bed)), World(bed)
        else:
            model, on = arm.train(study, world, point, seed, cost), world
        seconds = time.process_time() - start
        measured = on.measure(model) if phase == "confirm" else on.dev_rsum(model)
        write_line(folder, on, (phase, name, point, seed), measured, cost, seconds)
        if arm is not None and arm.kind is not None:
            write_facts(folder, seed, first_round(study, world, seed).facts)
        print(f"{phase}: {name}, seed {seed}, {dict(point)}", flush=True)
    return not explored


def write_facts(folder: Path, seed: int, facts: Mapping[str, Mapping[str, float]]) -> None:
    """Keep what the lists of a seed are like."""
    found = read_facts(folder) | {str(seed): facts}
    write_text(folder / FACTS, f"{json.dumps(found, sort_keys=True)}\n")


def read_facts(folder: Path) -> dict[str, Any]:
    """What the lists are like, by seed and kind."""
    path = folder / FACTS
    return dict(read_json(path, "facts of lists")) if path.exists() else {}
