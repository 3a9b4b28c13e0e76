"""What an object detector might have made of a scene: a few noisy regions a picture.

Every thing is found once or twice, now and then not at all; some regions show nothing but ground.
A region's vector mixes, by one fixed matrix, what the detector took the thing for with where it
stands, under noise. Some details are mistaken outright.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from counterfoil.corpus.regions import Features
from counterfoil.corpus.scenes.dice import Dice
from counterfoil.corpus.scenes.world import COLOURS, PATTERNS, SHAPES, SIZES, Scene, Thing

REGIONS = 12
WIDTH = 128
KINDS = (SIZES, PATTERNS, COLOURS, SHAPES)
CLASSES = sum(map(len, KINDS))
PLACES = 4
NOISE = 0.35
MISTAKEN = 0.04
MISSED = 0.02

# Noise and mixture are rounded to multiples of 1 / 4096. Mathematics libraries differ by some 1e-15
# before, so a value changes its multiple only where it lies that close to a boundary: one in 1e11,
# while a data set has about a million values.
_GRID = 4096

Box = tuple[int, int, int, int]


def region_features(scenes: Sequence[Scene]) -> Features:
    """(N, 12, 128) float32 features of scenes, with boxes and numbers of real regions.

    They are bit for bit the same on every CPU. A float32 product depends on the order in which a
    BLAS kernel adds, and rounding its result would not help: among a million values some lie next
    to the boundary of any grid. So the product is taken of whole numbers (see `_GRID`), which
    float64 adds without error in any order, and its division rounds as IEEE 754 prescribes.
    """
    raw = np.zeros((len(scenes), REGIONS, CLASSES + PLACES))  # in thousandths
    noise = np.zeros((len(scenes), REGIONS, WIDTH))  # in steps of the grid
    boxes = np.zeros((len(scenes), REGIONS, 4), np.float32)
    lengths = np.zeros(len(scenes), np.int64)
    for row, scene in enumerate(scenes):
        dice = Dice(f"regions of {scene.id}")
        found = _regions(scene, dice)
        real = lengths[row] = len(found)
        boxes[row, :real] = np.array([box for _, box in found]) / 1000
        for region, (thing, box) in enumerate(found):
            raw[row, region, _taken_for(thing, dice)] = 1000
            raw[row, region, CLASSES:] = _place(box)
        rng = torch.Generator().manual_seed(dice.below(2**53))
        noise[row, :real] = np.rint(NOISE * _normal(int(real), WIDTH, rng) * _GRID)
    exact = raw @ _mixture() + 1000 * noise  # whole numbers below 2**26
    values = np.maximum(exact / (1000 * _GRID), 0)  # pooled features are never negative
    where = "region features of scenes"
    return Features.of(values.astype(np.float32), lengths=lengths, boxes=boxes, where=where)


def _regions(scene: Scene, dice: Dice) -> list[tuple[Thing | None, Box]]:
    """What was found, in random order: things with their boxes, and bits of ground."""
    found: list[tuple[Thing | None, Box]] = []
    for thing in scene.things:
        times = 0 if dice.chance(MISSED) else dice.pick((1, 1, 2))
        found += [(thing, _around(thing, dice)) for _ in range(times)]
    for _ in range(dice.between(1, 3)):
        x, y, side = dice.below(700), dice.below(700), dice.between(150, 300)
        found.append((None, (x, y, x + side, y + side)))
    return dice.shuffled(found)


def _around(thing: Thing, dice: Dice) -> Box:
    left, top, right, bottom = (dice.between(-20, 20) for _ in range(4))
    r = thing.radius
    return (
        max(0, thing.x - r + left),
        max(0, thing.y - r + top),
        min(1000, thing.x + r + right),
        min(1000, thing.y + r + bottom),
    )


def _taken_for(thing: Thing | None, dice: Dice) -> list[int]:
    """What the detector took a thing for: one class of each kind; nothing for ground."""
    if thing is None:
        return []
    classes, before = [], 0
    for kind, value in zip(KINDS, thing.look):
        taken = dice.pick(kind) if dice.chance(MISTAKEN) else value
        classes.append(before + kind.index(taken))
        before += len(kind)
    return classes


def _place(box: Box) -> tuple[int, int, int, int]:
    """Middle of a box and its distance from the picture's middle lines, in thousandths."""
    x, y = box[0] + box[2] - 1000, box[1] + box[3] - 1000
    return x, y, abs(x) - 500, abs(y) - 500


@lru_cache(maxsize=1)
def _mixture() -> npt.NDArray[np.float64]:
    """(classes + places, 128) rows of one length, in steps of the grid."""
    rows = _normal(CLASSES + PLACES, WIDTH, torch.Generator().manual_seed(20_190_615))
    lengths = np.sqrt((rows**2).sum(1, keepdims=True))
    scaled: npt.NDArray[np.float64] = rows / lengths * (0.25 * math.sqrt(WIDTH)) * _GRID
    return np.rint(scaled)


def _normal(rows: int, width: int, rng: torch.Generator) -> npt.NDArray[np.float64]:
    """Normal draws: what `torch.randn` gives, in float64.

    `torch.randn` takes logarithms and cosines in float32, with other last bits on a CPU without
    AVX2. The uniform draws below it are whole multiples of 2**-24 everywhere; the Box-Muller
    transform of them, eight pairs out of sixteen draws, is made here in float64.
    """
    uniform = torch.rand(rows * width, generator=rng).numpy().astype(np.float64).reshape(-1, 2, 8)
    radius, angle = np.sqrt(-2 * np.log(1 - uniform[:, 0])), 2 * math.pi * uniform[:, 1]
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    return pairs.reshape(rows, width)
