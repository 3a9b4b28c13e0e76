"""What there is in a scene, and what exactly the relations between two things mean.

All measures are whole thousandths of the picture's side, so that truth never hangs on rounding.
y grows downwards.

    left of, right of   the centres are at least 120 apart in x
    above, below        the centres are at least 120 apart in y
    next to             at most 60 lie between the two things' rims, as circles of their radius

A thing can be both left of and above another. No scene leaves the eye in doubt: centres that are
not 120 apart along an axis are at most 80 apart, and rims more than 60 apart are at least 100
apart.

>>> low = Thing("circle", "red", "big", "plain", x=300, y=800, radius=160)
>>> high = Thing("star", "blue", "small", "striped", x=700, y=200, radius=95)
>>> [relation for relation in RELATIONS if relates(relation, low, high)]
['left of', 'below']
>>> print(Scene("an example", (low, high)))
an example
  big plain red circle at (300, 800)
  small striped blue star at (700, 200)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import final

SHAPES = ("circle", "square", "triangle", "diamond", "star", "heart", "cross", "moon")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "black")
SIZES = ("small", "big")
PATTERNS = ("plain", "striped", "dotted", "checked")
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
    """One coloured shape.

    Attributes:
        shape: one of `SHAPES`.
        colour: one of `COLOURS`.
        size: one of `SIZES`.
        pattern: one of `PATTERNS`.
        x: centre, from the left.
        y: centre, from the top.
        radius: of the circle that it fills.
        turn: degrees it is turned by; a matter of looks alone.
    """

    shape: str
    colour: str
    size: str
    pattern: str
    x: int
    y: int
    radius: int
    turn: int = 0

    @property
    def look(self) -> tuple[str, str, str, str]:
        """Size, pattern, colour and shape."""
        return self.size, self.pattern, self.colour, self.shape

    def __str__(self) -> str:
        return f"{' '.join(self.look)} at ({self.x}, {self.y})"


@final
@dataclass(frozen=True, slots=True)
class Scene:
    """Two to four things on a pale ground.

    Attributes:
        id: name of the scene, see `counterfoil.corpus.scenes.scene`.
        things: back to front; they never overlap.
        ground: which of the grounds it is painted on; a matter of looks alone.
    """

    id: str
    things: tuple[Thing, ...]
    ground: int = 0

    def __str__(self) -> str:
        return "\n  ".join([self.id, *map(str, self.things)])


def relates(relation: str, one: Thing, other: Thing) -> bool:
    """Whether one thing stands in a relation to another."""
    match relation:
        case "left of":
            return other.x - one.x >= APART
        case "right of":
            return one.x - other.x >= APART
        case "above":
            return other.y - one.y >= APART
        case "below":
            return one.y - other.y >= APART
        case "next to":
            return within(one, other, CLOSE)
    raise AssertionError(relation)


def within(one: Thing, other: Thing, gap: int) -> bool:
    """Whether at most `gap` lies between the rims of two things."""
    reach = one.radius + other.radius + gap
    return (one.x - other.x) ** 2 + (one.y - other.y) ** 2 <= reach**2


def meaning(scene: Scene) -> tuple[object, ...]:
    """Everything that words can say of a scene; two scenes with equal meaning are told alike."""
    things = sorted(scene.things, key=lambda thing: thing.look)
    looks = tuple(thing.look for thing in things)
    orders = [tuple(things)] if len(set(looks)) == len(looks) else permutations(things)
    told = (
        tuple(relates(r, a, b) for a in order for b in order for r in RELATIONS if a is not b)
        for order in orders
        if tuple(thing.look for thing in order) == looks
    )
    return looks, min(told)
