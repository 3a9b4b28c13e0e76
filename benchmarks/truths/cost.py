"""Equal cost, equal tuning: arms at four sizes of batch, each with the pairs that it encodes.

All models of an arm and a batch are trained at once, see `benchmarks.truths.stack`. What encodes
pairs counts: first rounds, drawn negatives, teachers, members.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

from torch import Tensor

from benchmarks.truths import stack
from benchmarks.truths.arms import (
    CCA,
    Cost,
    Point,
    adaptive_quintuplet,
    grid,
    info_nce,
    info_nce_with_drawn,
)
from benchmarks.truths.bed import SPLITS, Bed
from benchmarks.truths.ledger import (
    EXPLORED,
    chosen,
    declare,
    key,
    read_ledger,
    write_line,
)
from benchmarks.truths.stack import Teaching, Weights
from counterfoil.core.tensors import read_tensors, write_tensors
from counterfoil.losses.aoq import AdaptiveQuintuplet
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss, InfoNCEWithCandidatesLoss
from counterfoil.losses.ndgl import (
    HardNegativeRectificationLoss,
    MarginDistillationLoss,
    distillation_settings,
)
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.negatives.filters import FilterConfig
from counterfoil.negatives.mining import mine_hard_negatives
from counterfoil.negatives.sampling import OfflineNegativeSampler
from counterfoil.training.checkpoint import derive_seed

BATCHES = (8, 32, 128, 512)
SEEDS = range(2, 10)  # confirm
ROUND = 30_000  # pairs: each caption once
MEMBERS = 4
RATES, AGAIN = (1.0, 2.0), (0.33, 1.0)  # times `height`; of second rounds
LISTS = (100, 20)  # mined texts of an image, images of a text
SHORT, BASE, LONG = (f"InfoNCE, {pairs:,} pairs" for pairs in (ROUND, 2 * ROUND, 5 * ROUND))
MINED, FILTERED, QUINTUPLET = "mined", "mined, captions=0.5 filtered", "AdapOffQuin"
TRIPLET, NDGL = "hardest triplet", "NDGL of 2 teachers"
TAUGHT = {count: f"distilled from {count}" for count in (2, MEMBERS)}
SOUPS = {count: f"average of {count} weights" for count in (2, MEMBERS)}
ENSEMBLES = {count: f"ensemble of {count}" for count in (2, MEMBERS)}


def height(batch: int) -> float:
    """The learning rate that grids begin with: it grows with the root of the batch."""
    return float(f"{3e-3 * (batch / 512) ** 0.5:.2g}")


@final
@dataclass(frozen=True)
class CostArm:
    """One way to spend pairs on the model that is served.

    Attributes:
        loss: of a point.
        grid: settings beside the rate, two for every arm.
        anchors: captions that the model itself sees, in its last round.
        drawn: pairs encoded for each of them besides its own.
        filters: of mined lists, or None where there are none.
        teachers: how many members teach it.
        rates: times `height`.
    """

    loss: Callable[[Point], Loss | WeightedSum]
    grid: Sequence[Point]
    anchors: int = ROUND
    drawn: int = 0
    filters: FilterConfig | None = None
    teachers: int = 0
    rates: tuple[float, ...] = RATES

    @property
    def second(self) -> bool:
        """True if it goes on from the first member, with lists."""
        return self.filters is not None

    def cost(self, batch: int) -> Cost:
        """Steps and pairs, those of first rounds and teachers among them."""
        before = self.teachers + self.second
        steps = -(-self.anchors // batch) + before * -(-ROUND // batch)
        return Cost(steps, self.anchors * (1 + self.drawn) + before * ROUND)


@cache  # neighbours in a stack share a loss by identity
def _nce(temperature: float) -> InfoNCELoss:
    return info_nce({"temperature": temperature})


@cache
def _candidates(temperature: float) -> InfoNCEWithCandidatesLoss:
    return info_nce_with_drawn({"temperature": temperature})


@cache
def _triplet(margin: float) -> HardestTripletLoss:
    return HardestTripletLoss(margin=margin, reduction="mean")


@cache
def _quintuplet(offline: float) -> AdaptiveQuintuplet:
    return adaptive_quintuplet({"offline": offline})


@cache
def _ndgl(weight: float) -> WeightedSum:
    terms: dict[str, tuple[float, Loss]] = {
        "own": (1.0, _nce(0.05)),
        "mr": (weight, MarginDistillationLoss(reduction="mean")),
        "hnr": (0.5, HardNegativeRectificationLoss(reduction="mean")),
    }
    return WeightedSum(terms=terms)


@cache
def _soft(weight: float) -> WeightedSum:
    soft = MarginDistillationLoss(**distillation_settings(temperature=0.05))
    terms: dict[str, tuple[float, Loss]] = {
        "own": (1 - weight, _nce(0.05)),
        "soft": (weight, soft),
    }
    return WeightedSum(terms=terms)


_TEMPERATURES, _WEIGHTS = grid(temperature=(0.05, 0.08)), grid(weight=(0.3, 0.7))
_PLAIN = FilterConfig()
ARMS: Mapping[str, CostArm] = {
    SHORT: CostArm(lambda p: _nce(p["temperature"]), _TEMPERATURES),
    BASE: CostArm(lambda p: _nce(p["temperature"]), _TEMPERATURES, 2 * ROUND),
    TRIPLET: CostArm(lambda p: _triplet(p["margin"]), grid(margin=(0.2, 0.3)), 2 * ROUND),
    MINED: CostArm(
        lambda p: _candidates(p["temperature"]), _TEMPERATURES, ROUND // 2, 1, _PLAIN, rates=AGAIN
    ),
    FILTERED: CostArm(
        lambda p: _candidates(p["temperature"]),
        _TEMPERATURES,
        ROUND // 2,
        1,
        FilterConfig(captions=0.5),
        rates=AGAIN,
    ),
    QUINTUPLET: CostArm(
        lambda p: _quintuplet(p["offline"]),
        grid(offline=(0.1, 0.2)),
        ROUND // 3,
        2,
        _PLAIN,
        rates=AGAIN,
    ),
    NDGL: CostArm(lambda p: _ndgl(p["weight"]), grid(weight=(10.0, 100.0)), teachers=2),
    TAUGHT[2]: CostArm(lambda p: _soft(p["weight"]), _WEIGHTS, teachers=2),
    TAUGHT[4]: CostArm(lambda p: _soft(p["weight"]), _WEIGHTS, teachers=4),
    # takes the point of the base
    LONG: CostArm(lambda p: _nce(p["temperature"]), (), 5 * ROUND),
}
TUNED = tuple(name for name, arm in ARMS.items() if arm.grid)
JOINED = (*SOUPS.values(), *ENSEMBLES.values())  # of members, without a grid of their own
ROWS = (*TUNED, *JOINED, LONG)
_FIRST = (SHORT, BASE, MINED, FILTERED, QUINTUPLET, SOUPS[2], ENSEMBLES[2], TAUGHT[2])
STAGES = (  # sizes of batch and rows in turn, the dearest last
    ((512, 32, 128), _FIRST),
    ((8,), _FIRST[:3]),
    ((8,), _FIRST[3:]),
    (
        BATCHES[::-1],
        (TRIPLET, NDGL, TAUGHT[MEMBERS], SOUPS[MEMBERS], ENSEMBLES[MEMBERS], LONG),
    ),
)


def row(arm: str, batch: int) -> str:
    """The name of an arm at a batch, in ledgers."""
    return f"{arm}, batch {batch}"


def points_of(arm: str, batch: int) -> list[Point]:
    """The grid of an arm: its settings at each rate; of equal settings the rates are apart."""
    known = ARMS[arm]
    rates = [float(f"{height(batch) * factor:.2g}") for factor in known.rates]
    return [{**point, "rate": rate} for rate in rates for point in known.grid]


class Workshop:
    """Trains the stacks of one batch size, and keeps members and lists that arms share.

    Args:
        bed: the data.
        folder: of the run; members are kept in it.
        batch: captions of a batch.
        first: the point of members, that of `SHORT`.
    """

    def __init__(self, bed: Bed, folder: Path, batch: int, first: Point) -> None:
        self.bed, self.folder, self.batch, self.first = bed, folder, batch, first
        self._lists: dict[str, OfflineNegativeSampler] = {}

    def members(self, seeds: Sequence[int], count: int = MEMBERS) -> list[Weights]:
        """Stacks of first, second, … models of each seed, which share a start and no order."""
        return [self._member(tuple(seeds), number) for number in range(count)]

    def _member(self, seeds: tuple[int, ...], number: int) -> Weights:
        name = f"{self.batch}-{number}-{seeds[0]}-{seeds[-1]}.safetensors"
        path = self.folder / "members" / name
        if path.exists():
            return read_tensors(path, "weights of members")[0]
        made = train_arm(self, SHORT, [self.first] * len(seeds), seeds, order=f"member {number}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, dict(made), {})
        return made

    def lists(self, filters: FilterConfig) -> OfflineNegativeSampler:
        """What the first member of seed 0 mines, once for all seeds."""
        if repr(filters) not in self._lists:
            model = stack.models(self.bed, self._member(tuple(EXPLORED), 0))[0]
            found = mine_hard_negatives(
                model,
                self.bed.train,
                texts_per_image=LISTS[0],
                images_per_text=LISTS[1],
                filters=filters,
            )
            self._lists[repr(filters)] = OfflineNegativeSampler(
                lists=found.lists, relation=self.bed.train.relation
            )
        return self._lists[repr(filters)]

    @cache  # noqa: B019 - lives as long as the batch
    def teaching(self, seeds: tuple[int, ...], count: int) -> Teaching:
        """The teachers of each seed's student."""
        return stack.taught_by(self.bed, self.members(seeds, count))


def train_arm(
    shop: Workshop, name: str, points: Sequence[Point], seeds: Sequence[int], *, order: str = ""
) -> Weights:
    """Train an arm at one rate, a model for each point and seed; equal points stand together."""
    arm, (rate,) = ARMS[name], {point["rate"] for point in points}
    unique = tuple(dict.fromkeys(seeds))
    places = [unique.index(seed) for seed in seeds]
    if arm.second:
        start = {n: value[places] for n, value in shop.members(unique, 1)[0].items()}
    else:
        start = stack.fresh(seeds)
    teaching = None
    if arm.teachers:
        teaching = shop.teaching(unique, arm.teachers)
    return stack.train(
        shop.bed,
        start,
        [arm.loss(point) for point in points],
        [derive_seed(seed, order or name, 0) for seed in seeds],
        batch=shop.batch,
        anchors=arm.anchors,
        rate=rate,
        lists=shop.lists(arm.filters) if arm.filters is not None else None,
        teaching=teaching,
        taught=places,
    )


def explore(bed: Bed, folder: Path, batch: int, names: Sequence[str]) -> Iterator[str]:
    """Train grids on the explored seeds; gives the rows that were trained."""
    have = {line["key"] for line in read_ledger(folder)}
    for name in (name for name in names if name in TUNED):
        arm, grid_points = row(name, batch), points_of(name, batch)
        first: Point = {}
        if name != SHORT:
            first = chosen(read_ledger(folder))[row(SHORT, batch)]
        shop = _shop(bed, folder, batch, tuple(sorted(first.items())))
        for rate in dict.fromkeys(point["rate"] for point in grid_points):
            points = [point for point in grid_points if point["rate"] == rate]
            jobs = [(point, seed) for point in points for seed in EXPLORED]
            if all(key("explore", arm, *job) in have for job in jobs):
                continue
            begun = time.process_time()
            made = train_arm(shop, name, [p for p, _ in jobs], [s for _, s in jobs])
            seconds = (time.process_time() - begun) / len(jobs)
            for (point, seed), model in zip(jobs, stack.models(bed, made), strict=True):
                found = bed.measure(model, splits=SPLITS[:1])
                training = "explore", arm, point, seed
                write_line(folder, bed, training, found, ARMS[name].cost(batch), seconds)
            yield arm


def confirm(
    bed: Bed,
    folder: Path,
    batch: int,
    points: Mapping[str, Point],
    seeds: Sequence[int],
    names: Sequence[str],
) -> Iterator[str]:
    """Train arms at their points on the confirming seeds; gives the rows that were trained."""
    have = {line["key"] for line in read_ledger(folder)}
    first = points[row(SHORT, batch)]
    shop = _shop(bed, folder, batch, tuple(sorted(first.items())))
    for name in names:
        arm = row(name, batch)
        point = point_at(points, name, batch)
        if all(key("confirm", arm, point, seed) in have for seed in seeds):
            continue
        begun = time.process_time()
        made, cost = _made(shop, name, point, seeds)
        seconds = (time.process_time() - begun) / len(seeds)
        for place, seed in enumerate(seeds):
            models = [stack.models(bed, {n: v[[place]] for n, v in one.items()})[0] for one in made]
            training = "confirm", arm, point, seed
            write_line(folder, bed, training, bed.measure(*models), cost, seconds)
        yield arm


def point_at(points: Mapping[str, Point], name: str, batch: int) -> Point:
    """The declared point of a row: joined models have that of members, `LONG` that of `BASE`."""
    same = {LONG: BASE} | dict.fromkeys(JOINED, SHORT)
    return points[row(same.get(name, name), batch)]


def _made(
    shop: Workshop, name: str, point: Point, seeds: Sequence[int]
) -> tuple[list[Weights], Cost]:
    """The stacks whose scores are averaged, one but for ensembles, and the cost of each model."""
    for names, joins in ((SOUPS, lambda m: [stack.average(m)]), (ENSEMBLES, list)):
        for count, known in names.items():
            if name == known:
                cost = Cost(count * -(-ROUND // shop.batch), count * ROUND)
                return joins(shop.members(seeds, count)), cost
    cost = ARMS[name].cost(shop.batch)
    if name == SHORT:
        return shop.members(seeds, 1), cost
    return [train_arm(shop, name, [point] * len(seeds), seeds)], cost


@cache
def _shop(bed: Bed, folder: Path, batch: int, first: tuple[tuple[str, float], ...]) -> Workshop:
    return Workshop(bed, folder, batch, dict(first))


def closed_form(bed: Bed, folder: Path) -> Iterator[str]:
    """The row of the vectors as they are: adapters begin as the identity."""
    if key("confirm", CCA, {}, SEEDS[0]) in {line["key"] for line in read_ledger(folder)}:
        return
    points: Mapping[str, Tensor] = bed.measure(stack.models(bed, stack.fresh([0]))[0])
    write_line(folder, bed, ("confirm", CCA, {}, SEEDS[0]), points, Cost(), 0.0)
    yield CCA


def run(
    bed: Bed,
    folder: Path,
    claims: Sequence[Mapping[str, str]],
    minutes: float | None,
    *,
    explored: bool = False,
) -> bool:
    """Explore, declare and confirm what is missing; False where it stopped before the end.

    With `explored` it stops before the confirming seeds.
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes
    folder.mkdir(parents=True, exist_ok=True)

    def steps() -> Iterator[str]:
        points: dict[str, Point] = {}
        for stage, (batches, names) in enumerate(STAGES, 1):
            for batch in batches:
                yield from explore(bed, folder, batch, names)
                arms = [row(name, batch) for name in names if name in TUNED]
                file = f"declared-{stage}-{batch}.json"
                points |= declare(folder, arms, claims, SEEDS, file)
                if not explored:
                    yield from closed_form(bed, folder)
                    yield from confirm(bed, folder, batch, points, SEEDS, names)

    for done in steps():
        print(f"{time.strftime('%X')} trained: {done}", flush=True)
        if end is not None and time.monotonic() > end:
            return False
    return not explored
