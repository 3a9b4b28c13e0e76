"""What judged pairs give: lists with few true pairs, and narrower bounds on mAP@R.

``python -m benchmarks.judged guarantee --bed runs/bed --judgements flickr8k/annotations/ --scenes
runs/world`` measures how often a filter with a guarantee keeps more true pairs than promised. On
Flickr8k the pairs that people judged are halved, and the other half tells; on scenes everything is
known. ``queue`` counts on scenes the verdicts that halve the bounds of mAP@R, by the order in which
pairs are judged. Beds are those of `benchmarks.truths`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.truths.arms import Cost, first_round
from benchmarks.truths.bed import GUIDE, Bed, StoredData
from benchmarks.truths.world import World
from counterfoil.core.io import write_json
from counterfoil.core.types import Pairs
from counterfoil.data.corrections import read_verdicts
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.bounds import FIRST, UNJUDGED, FirstPlaces, bounds, narrowing
from counterfoil.negatives.guarantee import (
    NOUNS,
    GuaranteeConfig,
    Measure,
    Verdicts,
    _measures,
    calibrate,
    nearest_of_lists,
    pairs_at,
)
from counterfoil.negatives.mining import mine_hard_negatives
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.scoring.encode import Side

Numbers = npt.NDArray[np.float64]
Marks = npt.NDArray[np.bool_]
SEEDS = range(5)  # of the miner
ON_SCENES = range(2)
DRAWS = 200  # samples or splits of each
PROMISES = (0.05, 0.1)
KEPT = {"flickr8k": (50, 10), "scenes": (100, 20)}
SAMPLES = (200, 800)
ORDERS = ("bounds", "place", "score", "random")
QUEUE_SEEDS = range(1, 4)  # of the model; seed 0 and dev chose the chance that a pair is true
IMAGES = 80  # with all their captions
_MEANS = ("found", "broken", "judged", "base")
STEP = 0.05  # of the pairs that may be judged, judged together
GRID = np.arange(1, 101) / 100


@final
@dataclass(frozen=True)
class Listed:
    """The listed pairs of one side.

    Attributes:
        measure: (N,) by a measure.
        query: (N,) groups that are split as a whole: images, with all their captions.
        judged: (n,) places of the pairs whose truth is known.
        true: (n,) their truth.
    """

    measure: Numbers
    query: npt.NDArray[np.int64]
    judged: npt.NDArray[np.int64]
    true: Marks

    @cached_property
    def grid(self) -> Numbers:
        """Thresholds, quantiles of all listed pairs."""
        return np.unique(np.quantile(self.measure, GRID, method="lower"))

    def calibrated(self, chosen: Marks, promise: float) -> float | None:
        """The threshold by some of the judged pairs."""
        measure = self.measure[self.judged[chosen]]
        if len(measure) < GuaranteeConfig(at_most_true=promise).needed():
            return None
        found = calibrate(
            *(measure, self.true[chosen], self.grid), at_most_true=promise, confidence=0.95
        )
        return None if found is None else found[0]


def listed(
    bed: StoredData, data: ImageTextDataset, seed: int, kept: tuple[int, int], by: Sequence[Measure]
) -> Iterator[tuple[str, str, Tensor, Pairs]]:
    """Side, measure by name, (N,) measures and pairs of the lists of a model."""
    model = first_round(bed, seed, Cost())  # type: ignore[arg-type]
    mined = mine_hard_negatives(model, data, texts_per_image=kept[0], images_per_text=kept[1])
    lists = mined.lists
    for name in by:
        if name == "meanings":
            measures = _by_meaning(bed, data, lists)
        else:
            plan = GuaranteeConfig(by=name)
            measures = _measures(lists, data, plan, [model.embed(data)])
        for side, rows, measure in zip(NOUNS, (lists.texts, lists.images), measures, strict=True):
            places = (rows.flatten() >= 0).nonzero().squeeze(1)
            yield side, name, measure.flatten()[places], pairs_at(side, rows, places)


def _by_meaning(
    bed: StoredData, data: ImageTextDataset, lists: HardNegativeLists
) -> tuple[Tensor, Tensor]:
    """Highest cosine of each listed text with a caption of its image, by the stored text tower."""
    every = torch.from_numpy(np.load(bed.folder / GUIDE)).float()
    place = {name: row for row, name in enumerate(bed.data.text_ids)}
    vectors = every[[place[name] for name in data.text_ids]]

    def cosine(left: Tensor, right: Tensor) -> Tensor:
        return (vectors[left] * vectors[right]).sum(1).double()

    return nearest_of_lists(cosine, lists, data.relation)


def _known(verdicts: Verdicts, pairs: Pairs) -> tuple[npt.NDArray[np.int64], Marks]:
    """Places of judged pairs, and their verdicts."""
    found = [verdicts.get(pair) for pair in zip(pairs.image.tolist(), pairs.text.tolist())]
    places = [place for place, verdict in enumerate(found) if verdict is not None]
    return np.array(places, dtype=np.int64), np.array([bool(found[place]) for place in places])


Chosen = Iterator[tuple[Marks, Marks]]  # judged pairs to calibrate on, and those that tell


def by_pairs(side: Listed, rng: np.random.Generator) -> Chosen:
    """Halves of the judged pairs, drawn pair by pair: the assumption holds."""
    for _ in range(DRAWS):
        half = rng.permutation(len(side.judged)) < len(side.judged) // 2
        yield half, ~half


def by_images(side: Listed, rng: np.random.Generator) -> Chosen:
    """Halves of the images with all their judged pairs: the assumption does not hold."""
    owner = side.query[side.judged]
    images = np.unique(owner)
    for _ in range(DRAWS):
        half = np.isin(owner, rng.permutation(images)[: len(images) // 2])
        yield half, ~half


def by_samples(side: Listed, rng: np.random.Generator, size: int) -> Chosen:
    """Samples of a size; all judged pairs tell, which are all listed ones."""
    every = np.ones(len(side.judged), dtype=bool)
    for _ in range(DRAWS):
        chosen = np.zeros(len(side.judged), dtype=bool)
        chosen[rng.choice(len(side.judged), min(size, len(side.judged)), replace=False)] = True
        yield chosen, every


def outcome(side: Listed, promise: float, draws: Chosen) -> dict[str, float]:
    """Over draws: judged pairs, share of draws with a threshold and with a broken promise.

    "broken" is a share of all draws, as the promise is; "kept" and "true" are means over draws with
    a threshold, of the listed pairs and of the share among those that tell.
    """
    judged, kept, true, broken = [], [], [], 0
    for chosen, tells in draws:
        judged.append(int(chosen.sum()))
        threshold = side.calibrated(chosen, promise)
        if threshold is None:
            continue
        below = tells & (side.measure[side.judged] <= threshold)
        share = float(side.true[below].mean()) if below.any() else 0.0
        broken += share > promise
        true.append(share)
        kept.append(float((side.measure <= threshold).mean()))
    return {
        "judged": float(np.mean(judged)),
        "found": len(kept) / len(judged),
        "broken": broken / len(judged),
        "kept": float(np.mean(kept)) if kept else 0.0,
        "true": float(np.mean(true)) if true else 0.0,
    }


def _line(data: str, drawn: str, side: str, by: str, promise: float, seed: int) -> dict[str, Any]:
    return {
        "data": data,
        "drawn": drawn,
        "side": side,
        "by": by,
        "promise": promise,
        "seed": seed,
    }


def on_flickr8k(bed: Bed) -> Iterator[dict[str, Any]]:
    """Outcomes on the judged pairs of Flickr8k's test split."""
    data = bed.splits["test"]
    verdicts, _ = read_verdicts(bed.judgements, data)
    for seed in SEEDS:
        by: tuple[Measure, ...] = ("margin", "captions", "meanings")
        for side, name, measure, pairs in listed(bed, data, seed, KEPT["flickr8k"], by):
            places, true = _known(verdicts, pairs)
            owner = pairs.image if side == "image" else data.text_to_image[pairs.text]
            here = Listed(measure.double().numpy(), owner.numpy(), places, true)
            rng = np.random.default_rng(seed)
            for promise in PROMISES:
                for drawn, draws in (
                    ("half the pairs", by_pairs(here, rng)),
                    ("half the images", by_images(here, rng)),
                ):
                    found = outcome(here, promise, draws) | {"base": float(true.mean())}
                    yield _line("flickr8k", drawn, side, name, promise, seed) | found


def on_scenes(world: World) -> Iterator[dict[str, Any]]:
    """Outcomes on the training split of scenes, where all pairs are known."""
    data = world.train
    for seed in ON_SCENES:
        for side, name, measure, pairs in listed(
            world, data, seed, KEPT["scenes"], ("margin", "captions")
        ):
            true = world.true[pairs.image, pairs.text].numpy()
            places = np.arange(len(true))
            here = Listed(measure.double().numpy(), pairs.image.numpy(), places, true)
            rng = np.random.default_rng(seed)
            for promise in PROMISES[:1]:
                for size in SAMPLES:
                    found = outcome(here, promise, by_samples(here, rng, size))
                    found |= {"base": float(true.mean())}
                    yield _line("scenes", f"{size} pairs", side, name, promise, seed) | found


@final
class Queue:
    """Bounds of mAP@R of a model on scenes, whose captions' own pairs are known at first.

    Args:
        scores: (I, T).
        owners: (T,) image of each text.
        true: (I, T) bool.
    """

    def __init__(self, scores: Tensor, owners: Tensor, true: Tensor) -> None:
        self.scores, self.true, self.shape = scores, true, scores.shape
        self.own = owners == torch.arange(len(scores)).unsqueeze(1)
        own, none = Pairs(*self.own.nonzero(as_tuple=True)), torch.zeros(0, dtype=torch.long)
        sides: tuple[tuple[Side, Tensor], ...] = (("image", scores), ("text", scores.T))
        self.places = []
        for side, rows in sides:
            first = rows.topk(min(FIRST, rows.shape[1]), 1).indices
            self.places.append(FirstPlaces.of(side, first, own, Pairs(none, none), self.shape[1]))
        self.open = torch.zeros(self.shape, dtype=torch.bool)
        for places, table in zip(self.places, (self.open, self.open.T)):
            query, place = (places.verdicts == UNJUDGED).nonzero(as_tuple=True)
            table[query, places.answers[query, place]] = True

    def width(self) -> float:
        """Of the bounds, mean of both directions, in points."""
        ends = [bounds(each.verdicts, each.true).map_at_r for each in self.places]
        return sum(100 * float((high - low).mean()) for low, high in ends) / 2

    def worth(self, order: str, seed: int) -> Tensor:
        """(I, T), which pairs come first by an order."""
        if order == "random":
            return torch.rand(self.shape, generator=torch.Generator().manual_seed(seed)).double()
        if order == "score":  # as an audit ranks suspects: above the positive of either side
            lowest = self.scores.masked_fill(~self.own, torch.inf).amin(1, keepdim=True)
            mine = self.scores.masked_fill(~self.own, -torch.inf).amax(0)
            return torch.maximum(self.scores - lowest, self.scores - mine).double()
        worth = torch.full(self.shape, 0.0 if order == "bounds" else -1e9, dtype=torch.float64)
        for places, table in zip(self.places, (worth, worth.T)):
            query = torch.arange(len(places.answers)).unsqueeze(1).expand_as(places.answers)
            if order == "bounds":
                table[query, places.answers] += narrowing(places) / len(places.answers)
            else:
                place = torch.arange(places.answers.shape[1]).expand_as(query)
                table[query, places.answers] = torch.maximum(
                    table[query, places.answers], -place.double()
                )
        return worth

    def judge(self, pairs: Tensor) -> None:
        """Enter verdicts on (n, 2) pairs."""
        judged = torch.zeros(self.shape, dtype=torch.bool)
        judged[pairs[:, 0], pairs[:, 1]] = True
        self.open &= ~judged
        for side, turned in enumerate((lambda one: one, lambda one: one.T)):
            places = self.places[side]
            query = torch.arange(len(places.answers)).unsqueeze(1)
            here = turned(judged)[query, places.answers] & (places.verdicts == UNJUDGED)
            verdicts = turned(self.true)[query, places.answers].to(torch.int8)
            verdicts = torch.where(here, verdicts, places.verdicts)
            more = turned(judged & self.true).sum(1)
            self.places[side] = FirstPlaces(verdicts, places.answers, places.true + more)


def verdicts_to_halve(queue: Queue, order: str, seed: int) -> dict[str, Any]:
    """Pairs judged until the bounds are half as wide, between steps by a straight line."""
    pairs = int(queue.open.sum())
    step, widths = max(1, int(STEP * pairs)), [queue.width()]
    while widths[-1] > widths[0] / 2:
        worth = queue.worth(order, seed).masked_fill(~queue.open, -torch.inf).flatten()
        chosen = worth.topk(min(step, int(queue.open.sum()))).indices
        queue.judge(torch.stack([chosen // queue.shape[1], chosen % queue.shape[1]], 1))
        widths.append(queue.width())
    last = (widths[-2] - widths[0] / 2) / (widths[-2] - widths[-1])
    return {"pairs": pairs, "verdicts": step * (len(widths) - 2 + last), "width": widths[0]}


def on_queue(world: World) -> Iterator[dict[str, Any]]:
    """Verdicts that halve the bounds on test, by order and seed."""
    data = world.splits["test"]
    images = torch.arange(IMAGES)
    texts = torch.isin(data.text_to_image, images).nonzero().squeeze(1)
    decide = world.truths["test"].i2t.true
    assert callable(decide)
    owners = data.text_to_image[texts]
    true = decide(images, texts) | (owners == images.unsqueeze(1))
    for seed in QUEUE_SEEDS:
        embedded = first_round(world, seed, Cost()).embed(data)  # type: ignore[arg-type]
        with torch.inference_mode():
            scores = embedded.model.score_matrix(
                embedded.images.rows(images), embedded.texts.rows(texts)
            )
        for order in ORDERS:
            queue = Queue(scores.clone(), owners, true)
            yield {"order": order, "seed": seed} | verdicts_to_halve(queue, order, seed)


def guarantee_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Outcomes as Markdown, means over seeds."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for line in lines:
        keys = ("data", "drawn", "side", "by", "promise")
        groups.setdefault(tuple(line[key] for key in keys), []).append(line)
    rows = [
        "| data | judged | lists | true of them | by | at most | threshold found | promise broken "
        "| kept | true of the kept |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (data, drawn, side, by, promise), some in groups.items():
        mean = {key: sum(one[key] for one in some) / len(some) for key in _MEANS}
        cells = [f"{100 * mean[key]:.1f} %" for key in ("found", "broken")]
        with_one = [one for one in some if one["found"]]
        for key in ("kept", "true"):  # means over draws with a threshold
            weight = sum(one["found"] for one in with_one)
            total = sum(one[key] * one["found"] for one in with_one)
            cells.append(f"{100 * total / weight:.1f} %" if weight else "")
        rows.append(
            f"| {data} | {drawn} ({mean['judged']:,.0f}) | {NOUNS[side]} "
            f"| {100 * mean['base']:.1f} % | {by} | {100 * promise:g} % | {' | '.join(cells)} |"
        )
    return "\n".join(rows)


def queue_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Verdicts that halve the bounds, by order, as Markdown."""
    rows = ["| order | verdicts, by seed | mean | of all pairs |", "|---|---|---|---|"]
    for order in ORDERS:
        some = [line for line in lines if line["order"] == order]
        mean = sum(line["verdicts"] for line in some) / len(some)
        every = ", ".join(f"{line['verdicts']:,.0f}" for line in some)
        rows.append(f"| {order} | {every} | {mean:,.0f} | {100 * mean / some[0]['pairs']:.0f} % |")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judged", description=__doc__)
    parser.add_argument("what", choices=("guarantee", "queue"))
    parser.add_argument("--bed", type=Path, help="as benchmarks.truths bed wrote it")
    parser.add_argument("--judgements", type=Path, help="Flickr8k's annotations")
    parser.add_argument("--scenes", type=Path, help="as benchmarks.truths world wrote it")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args(arguments)
    lines: list[dict[str, Any]] = []
    if given.bed:
        lines += on_flickr8k(Bed(given.bed, given.judgements))
    if given.what == "queue":
        lines += on_queue(World(given.scenes))
    elif given.scenes:
        lines += on_scenes(World(given.scenes))
    write_json(given.output, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
