"""What judged pairs give: lists with few true pairs, and narrower bounds on mAP@R.

``python -m benchmarks.judged guarantee --bed runs/bed --judgements flickr8k/annotations/ --scenes
runs/world`` measures how often a filter with a guarantee keeps more true pairs than promised. On
Flickr8k the pairs that people judged are halved, and the other half tells; on scenes everything is
known. Beds are those of `benchmarks.truths`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
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
from counterfoil.negatives.diagnose import nearest_caption
from counterfoil.negatives.guarantee import (
    NOUNS,
    GuaranteeConfig,
    Measure,
    Verdicts,
    _measures,
    calibrate,
    pairs_at,
)
from counterfoil.negatives.mining import mine_hard_negatives

Numbers = npt.NDArray[np.float64]
Marks = npt.NDArray[np.bool_]
SEEDS = range(5)  # of the miner
DRAWS = 200  # samples or splits of each
PROMISES = (0.05, 0.1)
KEPT = {"flickr8k": (50, 10), "scenes": (100, 20)}
SAMPLES = (100, 200, 400, 800)
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
    bed: StoredData, data: ImageTextDataset, seed: int, kept: tuple[int, int], by: Sequence[str]
) -> Iterator[tuple[str, str, Tensor, Pairs]]:
    """Side, measure by name, (N,) measures and pairs of the lists of a model."""
    model = first_round(bed, seed, Cost())  # type: ignore[arg-type]
    mined = mine_hard_negatives(model, data, texts_per_image=kept[0], images_per_text=kept[1])
    lists = mined.lists
    for name in by:
        if name == "meanings":
            measures = _by_meaning(bed, data, lists.texts, lists.images)
        else:
            plan = GuaranteeConfig(by=_measure(name))
            measures = _measures(lists, data, plan, [model.embed(data)])
        for side, rows, measure in zip(NOUNS, (lists.texts, lists.images), measures, strict=True):
            places = (rows.flatten() >= 0).nonzero().squeeze(1)
            yield side, name, measure.flatten()[places], pairs_at(side, rows, places)


def _measure(name: str) -> Measure:
    assert name in ("margin", "score", "rank", "captions")
    return name


def _by_meaning(
    bed: StoredData, data: ImageTextDataset, texts: Tensor, images: Tensor
) -> list[Tensor]:
    """Highest cosine of each listed text with a caption of its image, by the stored text tower."""
    every = torch.from_numpy(np.load(bed.folder / GUIDE)).float()
    place = {name: row for row, name in enumerate(bed.data.text_ids)}
    vectors = every[[place[name] for name in data.text_ids]]

    def cosine(left: Tensor, right: Tensor) -> Tensor:
        return (vectors[left] * vectors[right]).sum(1).double()

    found = []
    for side, rows in zip(NOUNS, (texts, images)):
        pairs = pairs_at(side, rows, torch.arange(rows.numel()))
        shaped = Pairs(pairs.image.view(rows.shape), pairs.text.view(rows.shape))
        found.append(nearest_caption(cosine, data.relation, shaped, rows >= 0))
    return found


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


def by_images(side: Listed, rng: np.random.Generator, *, one: bool) -> Chosen:
    """Halves of the images with all their judged pairs, or one of each query that is left."""
    owner = side.query[side.judged]
    images = np.unique(owner)
    for _ in range(DRAWS):
        half = np.isin(owner, rng.permutation(images)[: len(images) // 2])
        chosen = half
        if one:
            order = rng.permutation(len(owner))
            order = order[half[order]]
            _, first = np.unique(owner[order], return_index=True)
            chosen = np.zeros(len(owner), dtype=bool)
            chosen[order[first]] = True
        yield chosen, ~half


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
        by = ("margin", "captions", "meanings")
        for side, name, measure, pairs in listed(bed, data, seed, KEPT["flickr8k"], by):
            places, true = _known(verdicts, pairs)
            owner = pairs.image if side == "image" else data.text_to_image[pairs.text]
            here = Listed(measure.double().numpy(), owner.numpy(), places, true)
            rng = np.random.default_rng(seed)
            for promise in PROMISES:
                for drawn, draws in (
                    ("half the pairs", by_pairs(here, rng)),
                    ("half the images", by_images(here, rng, one=False)),
                    ("half the images, one pair each", by_images(here, rng, one=True)),
                ):
                    found = outcome(here, promise, draws) | {"base": float(true.mean())}
                    yield _line("flickr8k", drawn, side, name, promise, seed) | found


def on_scenes(world: World) -> Iterator[dict[str, Any]]:
    """Outcomes on the training split of scenes, where all pairs are known."""
    data = world.train
    for seed in SEEDS:
        for side, name, measure, pairs in listed(
            world, data, seed, KEPT["scenes"], ("margin", "captions", "rank")
        ):
            true = world.true[pairs.image, pairs.text].numpy()
            places = np.arange(len(true))
            here = Listed(measure.double().numpy(), pairs.image.numpy(), places, true)
            rng = np.random.default_rng(seed)
            for promise in PROMISES:
                for size in SAMPLES:
                    found = outcome(here, promise, by_samples(here, rng, size))
                    found |= {"base": float(true.mean())}
                    yield _line("scenes", f"{size} pairs", side, name, promise, seed) | found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judged", description=__doc__)
    parser.add_argument("what", choices=("guarantee",))
    parser.add_argument("--bed", type=Path, help="as benchmarks.truths bed wrote it")
    parser.add_argument("--judgements", type=Path, help="Flickr8k's annotations")
    parser.add_argument("--scenes", type=Path, help="as benchmarks.truths world wrote it")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args(arguments)
    lines: list[dict[str, Any]] = []
    if given.bed:
        lines += on_flickr8k(Bed(given.bed, given.judgements))
    if given.scenes:
        lines += on_scenes(World(given.scenes))
    write_json(given.output, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
