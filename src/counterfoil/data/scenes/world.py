"""Scenes: their random layout by name, their relations, and features of a simulated detector."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from typing import Any, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch

from counterfoil.data.features import FeatureArray

T = TypeVar("T")


@final
class Dice:
    """Random choices seeded by a string, the same on every platform and in every version of Python.

    Only `random.Random.random` is used: the one method whose sequence Python promises to keep.
    """

    def __init__(self, name: str) -> None:
        self._random = random.Random(name).random

    def below(self, count: int) -> int:
        """A whole number from 0 to ``count - 1``."""
        return int(self._random() * count)

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability

    def pick(self, choices: Sequence[T]) -> T:
        """A random choice, uniformly."""
        return choices[self.below(len(choices))]

    def usual(self, choices: Sequence[T]) -> T:
        """The first choice in two cases of three, else any."""
        return choices[0] if self.chance(0.66) else self.pick(choices)

    def shuffled(self, choices: Sequence[T]) -> list[T]:
        """All choices in random order."""
        remaining = list(choices)
        return [remaining.pop(self.below(len(remaining))) for _ in range(len(remaining))]


# Contents of a scene, and the exact meaning of relations.
#
# All measures are whole thousandths of the picture's side, so that no rounding affects truth.
# y grows downwards.
#
#     left of, right of   the centres are at least 120 apart in x
#     above, below        the centres are at least 120 apart in y
#     next to             at most 60 lie between the two things' rims, as circles of their radius
#
# A thing can be both left of and above another. No relation is ambiguous: centres that are not 120
# apart along an axis are at most 80 apart, and rims more than 60 apart are at least 100 apart.


SHAPES = ("circle", "square", "triangle", "diamond", "star", "heart", "cross", "moon")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "black")
SIZES = ("small", "big")
PATTERNS = ("plain", "striped", "dotted", "checked")
KINDS = {"size": SIZES, "pattern": PATTERNS, "colour": COLOURS, "shape": SHAPES}
RELATIONS = ("left of", "right of", "above", "below", "next to")
OPPOSITE = {
    "left of": "right of",
    "right of": "left of",
    "above": "below",
    "below": "above",
    "next to": "next to",
}

APART = 120
HARDLY_APART = 80
CLOSE = 60
NOT_CLOSE = 100


@final
@dataclass(frozen=True, slots=True)
class Thing:
    """One coloured shape of a scene, in pixels."""

    shape: str  # one of `SHAPES`
    colour: str  # one of `COLOURS`
    size: str  # one of `SIZES`
    pattern: str  # one of `PATTERNS`
    x: int  # centre, from the left
    y: int  # centre, from the top
    radius: int  # of the circle that it fills
    turn: int = 0  # rotation in degrees, of the picture only

    @property
    def look(self) -> tuple[str, str, str, str]:
        """Size, pattern, colour and shape."""
        return self.size, self.pattern, self.colour, self.shape

    def __str__(self) -> str:
        return f"{' '.join(self.look)} at ({self.x}, {self.y})"


@final
@dataclass(frozen=True, slots=True)
class Scene:
    """Two to four things on a pale ground."""

    id: str  # name of the scene, see `counterfoil.data.scenes.scene`
    things: tuple[Thing, ...]  # back to front; they never overlap
    ground: int = 0  # index of the background, of the picture only

    def __str__(self) -> str:
        return "\n  ".join([self.id, *map(str, self.things)])


def relates(relation: str, one: Thing, other: Thing) -> bool:
    """Return True if one thing stands in a relation to another."""
    right, down = other.x - one.x, other.y - one.y
    if relation == "next to":
        return within(one, other, CLOSE)
    distance = {"left of": right, "right of": -right, "above": down, "below": -down}[relation]
    return distance >= APART


def within(one: Thing, other: Thing, gap: int) -> bool:
    """Return True if at most `gap` lies between the rims of two things."""
    reach = one.radius + other.radius + gap
    return (one.x - other.x) ** 2 + (one.y - other.y) ** 2 <= reach**2


def meaning(scene: Scene) -> tuple[object, ...]:
    """Everything that captions can claim about a scene, as a hashable value."""
    things = sorted(scene.things, key=lambda thing: thing.look)
    looks = tuple(thing.look for thing in things)
    orders = [tuple(things)] if len(set(looks)) == len(looks) else permutations(things)
    relations = (
        tuple(relates(r, a, b) for a in order for b in order for r in RELATIONS if a is not b)
        for order in orders
        if tuple(thing.look for thing in order) == looks
    )
    return looks, min(relations)


# Layout of a scene from its name.
#
# Scenes come in families of three. The first is random; the others repeat it with one or two
# changes: a colour, a pattern, a size, a shape, a place, or two things that exchange places. So
# every scene has hard negatives, which are seldom in one small batch and which mining finds.


FAMILY = 3
GROUNDS = 6
VERSION = "1"  # of the world and its looks: part of every random choice and of cached pixels
EDGE = 30  # nothing is nearer to the picture's edge
AIR = 20  # least space between two rims
RADII = {"small": (98, 108), "big": (164, 180)}
HOW_MANY = (2, 3, 3, 3, 4, 4)

Things = tuple[Thing, ...]


@lru_cache(maxsize=65_536)
def lay_out(seed: int, split: str, number: int) -> Scene:
    """The scene of a seed, a split and a number."""
    name = f"scene-{seed}-{split}-{number:05d}"
    dice = Dice(f"{VERSION}/{name}")
    things = _first(seed, split, number // FAMILY)
    if number % FAMILY:
        things = _changed(things, dice)
    return Scene(name, things, dice.below(GROUNDS))


@lru_cache(maxsize=8_192)
def _first(seed: int, split: str, family: int) -> Things:
    dice = Dice(f"{VERSION}/family-{seed}-{split}-{family}")
    while True:
        looks: list[Thing] = []
        for _ in range(dice.pick(HOW_MANY)):
            looks.append(_thing(looks, dice))
        if things := placed(looks, dice):
            return things


def _thing(others: list[Thing], dice: Dice) -> Thing:
    """A thing without a place; it often shares attributes with an earlier one."""
    size = dice.pick(SIZES)
    pattern = "plain" if dice.chance(0.2) else dice.pick(PATTERNS)
    shape, colour, radius = dice.pick(SHAPES), dice.pick(COLOURS), dice.between(*RADII[size])
    new = Thing(shape, colour, size, pattern, 0, 0, radius, turn=dice.between(-10, 10))
    if not others or dice.chance(0.4):
        return new
    like = dice.pick(others)
    match dice.below(4):
        case 0:
            return replace(new, shape=like.shape)
        case 1:
            return replace(new, colour=like.colour)
        case 2:
            return replace(new, shape=like.shape, colour=like.colour)
    return replace(new, size=like.size, pattern=like.pattern, radius=like.radius)


def placed(looks: list[Thing], dice: Dice) -> Things | None:
    """The things at random places; None if there is no room."""
    there: list[Thing] = []
    for look in looks:
        for _ in range(60):
            thing = somewhere(look, there, dice)
            if is_clear(thing, there):
                there.append(thing)
                break
        else:
            return None
    return tuple(there)


def somewhere(look: Thing, placed: Sequence[Thing], dice: Dice) -> Thing:
    """The thing at a random place, which may not be clear of those that are placed."""
    low, high = EDGE + look.radius, 1000 - EDGE - look.radius
    if placed and dice.chance(0.3):  # beside another, or few things would be next to each other
        other = dice.pick(placed)
        reach = other.radius + look.radius + AIR + 20
        x, y = dice.pick([(reach, 0), (-reach, 0), (0, reach), (0, -reach)])
        x, y = other.x + x + dice.between(-15, 15), other.y + y + dice.between(-15, 15)
        return replace(look, x=min(max(x, low), high), y=min(max(y, low), high))
    return replace(look, x=dice.between(low, high), y=dice.between(low, high))


def is_clear(thing: Thing, others: Sequence[Thing]) -> bool:
    """Return True if a thing is inside the picture and its relations to others are clear."""
    low, high = EDGE + thing.radius, 1000 - EDGE - thing.radius
    inside = low <= thing.x <= high and low <= thing.y <= high
    return inside and not any(
        within(thing, other, AIR)
        or (within(thing, other, NOT_CLOSE) and not within(thing, other, CLOSE))
        or HARDLY_APART < abs(thing.x - other.x) < APART
        or HARDLY_APART < abs(thing.y - other.y) < APART
        for other in others
    )


def _changed(things: Things, dice: Dice) -> Things:
    """The things with one or two changes, all of them slightly moved."""
    while True:
        after = list(things)
        for _ in range(dice.pick((1, 1, 2))):
            _change(after, dice)
        for _ in range(8):
            if moved := _nudged(after, dice):
                return moved


def _nudged(things: list[Thing], dice: Dice) -> Things | None:
    placed: list[Thing] = []
    for thing in things:
        x, y = thing.x + dice.between(-18, 18), thing.y + dice.between(-18, 18)
        thing = replace(thing, x=x, y=y, turn=dice.between(-10, 10))
        if not is_clear(thing, placed):
            return None
        placed.append(thing)
    return tuple(placed)


def _change(things: list[Thing], dice: Dice) -> None:
    """Change an attribute or the place of a thing, or exchange the places of two, in place."""
    kind = dice.pick(("colour", "pattern", "shape", "size", "place", "swap", "swap"))
    if kind == "swap":
        a, b = dice.shuffled(range(len(things)))[:2]
        one, other = things[a], things[b]
        things[a] = replace(one, x=other.x, y=other.y)
        things[b] = replace(other, x=one.x, y=one.y)
        return
    at = dice.below(len(things))
    thing = things[at]
    if kind == "place":
        things[at] = somewhere(thing, things[:at] + things[at + 1 :], dice)
        return
    values = [value for value in KINDS[kind] if value != getattr(thing, kind)]
    new: dict[str, Any] = {kind: dice.pick(values)}
    if kind == "size":
        new["radius"] = dice.between(*RADII[new["size"]])
    things[at] = replace(thing, **new)


# Region features of a simulated object detector.
#
# Every thing is detected once or twice, rarely not at all; some regions show background only. The
# vector of a region is a fixed linear mixture of its detected classes and its place, plus noise.
# Some classes are wrong.


REGIONS = 12
WIDTH = 128
CLASSES = sum(map(len, KINDS.values()))

NOISE = 0.35
MISTAKEN = 0.04
MISSED = 0.02

# Noise and mixture are rounded to multiples of 1 / 4096. Mathematics libraries differ by some 1e-15
# before, so a value changes its multiple only where it lies that close to a boundary: one in 1e11,
# while a data set has about a million values.
_GRID = 4096

Box = tuple[int, int, int, int]


def region_features(scenes: Sequence[Scene]) -> FeatureArray:
    """(N, 12, 128) float32 features of scenes, with boxes and numbers of real regions.

    They are bit for bit the same on every CPU. A float32 product depends on the order in which a
    BLAS kernel adds, and rounding its result would not help: among a million values some lie next
    to the boundary of any grid. So the product is taken of whole numbers (see `_GRID`), which
    float64 adds without error in any order, and its division rounds as IEEE 754 prescribes.
    """
    raw = np.zeros((len(scenes), REGIONS, CLASSES + 4))  # classes and place, in thousandths
    noise = np.zeros((len(scenes), REGIONS, WIDTH))  # in steps of the grid
    boxes = np.zeros((len(scenes), REGIONS, 4), np.float32)
    lengths = np.zeros(len(scenes), np.int64)
    for row, scene in enumerate(scenes):
        dice = Dice(f"regions of {scene.id}")
        regions = _regions(scene, dice)
        real = lengths[row] = len(regions)
        boxes[row, :real] = np.array([box for _, box in regions]) / 1000
        for region, (thing, box) in enumerate(regions):
            raw[row, region, _detected_classes(thing, dice)] = 1000
            # middle of the box and its distance from the middle lines of the picture
            x, y = box[0] + box[2] - 1000, box[1] + box[3] - 1000
            raw[row, region, CLASSES:] = x, y, abs(x) - 500, abs(y) - 500
        rng = torch.Generator().manual_seed(dice.below(2**53))
        noise[row, :real] = np.rint(NOISE * _normal(int(real), WIDTH, rng) * _GRID)
    exact = raw @ _mixture() + 1000 * noise  # whole numbers below 2**26
    values = np.maximum(exact / (1000 * _GRID), 0)  # pooled features are never negative
    where = "region features of scenes"
    return FeatureArray.of(values.astype(np.float32), lengths=lengths, boxes=boxes, where=where)


def _regions(scene: Scene, dice: Dice) -> list[tuple[Thing | None, Box]]:
    """Detected regions in random order: things with their boxes, and background."""
    regions: list[tuple[Thing | None, Box]] = []
    for thing in scene.things:
        times = 0 if dice.chance(MISSED) else dice.pick((1, 1, 2))
        regions += [(thing, _around(thing, dice)) for _ in range(times)]
    for _ in range(dice.between(1, 3)):
        x, y, side = dice.below(700), dice.below(700), dice.between(150, 300)
        regions.append((None, (x, y, x + side, y + side)))
    return dice.shuffled(regions)


def _around(thing: Thing, dice: Dice) -> Box:
    left, top, right, bottom = (dice.between(-20, 20) for _ in range(4))
    r = thing.radius
    return (
        max(0, thing.x - r + left),
        max(0, thing.y - r + top),
        min(1000, thing.x + r + right),
        min(1000, thing.y + r + bottom),
    )


def _detected_classes(thing: Thing | None, dice: Dice) -> list[int]:
    """Classes that the detector assigns to a thing, one of each kind; none for background."""
    if thing is None:
        return []
    classes, before = [], 0
    for kind, value in zip(KINDS.values(), thing.look):
        detected = dice.pick(kind) if dice.chance(MISTAKEN) else value
        classes.append(before + kind.index(detected))
        before += len(kind)
    return classes


@lru_cache(maxsize=1)
def _mixture() -> npt.NDArray[np.float64]:
    """(classes + 4, 128) rows of one length, in steps of the grid."""
    rows = _normal(CLASSES + 4, WIDTH, torch.Generator().manual_seed(20_190_615))
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
