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
from torch.nn.functional import normalize

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

Box = tuple[int, int, int, int]


def region_features(scenes: Sequence[Scene]) -> Features:
    """(N, 12, 128) float32 features of scenes, with boxes and numbers of real regions."""
    raw = np.zeros((len(scenes), REGIONS, CLASSES + PLACES), np.float32)
    noise = np.zeros((len(scenes), REGIONS, WIDTH), np.float32)
    boxes = np.zeros((len(scenes), REGIONS, 4), np.float32)
    lengths = np.zeros(len(scenes), np.int64)
    for row, scene in enumerate(scenes):
        dice = Dice(f"regions of {scene.id}")
        found = _regions(scene, dice)
        real = lengths[row] = len(found)
        boxes[row, :real] = np.array([box for _, box in found]) / 1000
        for region, (thing, box) in enumerate(found):
            raw[row, region, _taken_for(thing, dice)] = 1
            raw[row, region, CLASSES:] = _place(box)
        rng = torch.Generator().manual_seed(dice.below(2**53))
        noise[row, :real] = NOISE * torch.randn(int(real), WIDTH, generator=rng).numpy()
    values = np.maximum(raw @ _mixture() + noise, 0)  # pooled features are never negative
    return Features.of(values, lengths=lengths, boxes=boxes, where="region features of scenes")


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


def _place(box: Box) -> tuple[float, float, float, float]:
    """Where the middle of a box is, and how far from the picture's middle lines."""
    x, y = (box[0] + box[2]) / 1000 - 1, (box[1] + box[3]) / 1000 - 1
    return x, y, abs(x) - 0.5, abs(y) - 0.5


@lru_cache(maxsize=1)
def _mixture() -> npt.NDArray[np.float32]:
    rng = torch.Generator().manual_seed(20_190_615)
    rows = torch.randn(CLASSES + PLACES, WIDTH, generator=rng)
    mixed: npt.NDArray[np.float32] = (normalize(rows, dim=1) * (0.25 * math.sqrt(WIDTH))).numpy()
    return mixed
