"""From the name of a scene to the scene.

Scenes come in families of three. The first member is drawn freely; each of the others repeats it
with one or two details changed: a colour, a pattern, a size, a shape, a place, or two things that
change places. So every scene has neighbours that only careful reading tells apart, which a small
batch seldom holds together and mining finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from counterfoil.corpus.scenes.dice import Dice
from counterfoil.corpus.scenes.world import (
    APART,
    CLOSE,
    COLOURS,
    HARDLY_APART,
    NOT_CLOSE,
    PATTERNS,
    SHAPES,
    SIZES,
    Scene,
    Thing,
    within,
)

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
        if things := _placed(looks, dice):
            return things


def _thing(others: list[Thing], dice: Dice) -> Thing:
    """A thing without a place; often it shares something with one that is there already."""
    size = dice.pick(SIZES)
    pattern = "plain" if dice.chance(0.2) else dice.pick(PATTERNS)
    new = Thing(dice.pick(SHAPES), dice.pick(COLOURS), size, pattern, 0, 0, _radius(size, dice))
    new = replace(new, turn=dice.between(-10, 10))
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


def _radius(size: str, dice: Dice) -> int:
    return dice.between(*RADII[size])


def _placed(looks: list[Thing], dice: Dice) -> Things | None:
    """These things at random places; None where there was no room."""
    placed: list[Thing] = []
    for look in looks:
        for _ in range(60):
            thing = _somewhere(look, placed, dice)
            if _clear(thing, placed):
                placed.append(thing)
                break
        else:
            return None
    return tuple(placed)


def _somewhere(look: Thing, placed: list[Thing], dice: Dice) -> Thing:
    low, high = EDGE + look.radius, 1000 - EDGE - look.radius
    if placed and dice.chance(0.3):  # beside another, or one would rarely be next to one
        other = dice.pick(placed)
        reach = other.radius + look.radius + AIR + 20
        x, y = dice.pick([(reach, 0), (-reach, 0), (0, reach), (0, -reach)])
        x, y = other.x + x + dice.between(-15, 15), other.y + y + dice.between(-15, 15)
        return replace(look, x=min(max(x, low), high), y=min(max(y, low), high))
    return replace(look, x=dice.between(low, high), y=dice.between(low, high))


def _clear(thing: Thing, others: list[Thing]) -> bool:
    """Whether a thing overlaps no other, is inside, and stands in no doubtful relation."""
    low, high = EDGE + thing.radius, 1000 - EDGE - thing.radius
    if not (low <= thing.x <= high and low <= thing.y <= high):
        return False
    return not any(_doubtful(thing, other) for other in others)


def _doubtful(one: Thing, other: Thing) -> bool:
    if within(one, other, AIR):
        return True
    if not within(one, other, CLOSE) and within(one, other, NOT_CLOSE):
        return True
    across, down = abs(one.x - other.x), abs(one.y - other.y)
    return HARDLY_APART < across < APART or HARDLY_APART < down < APART


def _changed(things: Things, dice: Dice) -> Things:
    """A relative: one or two details differ, and everything has moved a little."""
    while True:
        after = list(things)
        for _ in range(dice.pick((1, 1, 2))):
            dice.pick(_CHANGES)(after, dice)
        for _ in range(8):
            if moved := _nudged(after, dice):
                return moved


def _nudged(things: list[Thing], dice: Dice) -> Things | None:
    placed: list[Thing] = []
    for thing in things:
        x, y = thing.x + dice.between(-18, 18), thing.y + dice.between(-18, 18)
        thing = replace(thing, x=x, y=y, turn=dice.between(-10, 10))
        if not _clear(thing, placed):
            return None
        placed.append(thing)
    return tuple(placed)


def _recolour(things: list[Thing], dice: Dice) -> None:
    at = dice.below(len(things))
    things[at] = replace(things[at], colour=dice.pick(_without(COLOURS, things[at].colour)))


def _repattern(things: list[Thing], dice: Dice) -> None:
    at = dice.below(len(things))
    things[at] = replace(things[at], pattern=dice.pick(_without(PATTERNS, things[at].pattern)))


def _reshape(things: list[Thing], dice: Dice) -> None:
    at = dice.below(len(things))
    things[at] = replace(things[at], shape=dice.pick(_without(SHAPES, things[at].shape)))


def _resize(things: list[Thing], dice: Dice) -> None:
    at = dice.below(len(things))
    size = dice.pick(_without(SIZES, things[at].size))
    things[at] = replace(things[at], size=size, radius=_radius(size, dice))


def _move(things: list[Thing], dice: Dice) -> None:
    at = dice.below(len(things))
    things[at] = _somewhere(things[at], things[:at] + things[at + 1 :], dice)


def _swap(things: list[Thing], dice: Dice) -> None:
    a, b = dice.shuffled(range(len(things)))[:2]
    one, other = things[a], things[b]
    things[a] = replace(one, x=other.x, y=other.y)
    things[b] = replace(other, x=one.x, y=one.y)


def _without(choices: tuple[str, ...], value: str) -> tuple[str, ...]:
    return tuple(choice for choice in choices if choice != value)


_CHANGES: tuple[Callable[[list[Thing], Dice], None], ...] = (
    _recolour,
    _repattern,
    _reshape,
    _resize,
    _move,
    _swap,
    _swap,
)
