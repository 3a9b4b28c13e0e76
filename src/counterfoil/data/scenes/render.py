"""Pictures of scenes, at any size.

Shapes are painted large without smoothing and then averaged down: edges are soft, and a scene looks
the same at 64 and at 512 pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache

from PIL import Image, ImageChops, ImageDraw

from counterfoil.data.scenes.world import Scene, Thing

Colour = tuple[int, int, int]
Point = tuple[float, float]

PALETTE: dict[str, Colour] = {
    "red": (214, 48, 49),
    "orange": (245, 137, 32),
    "yellow": (250, 205, 40),
    "green": (46, 160, 82),
    "blue": (42, 111, 219),
    "purple": (126, 66, 170),
    "pink": (247, 131, 178),
    "black": (38, 40, 46),
}
GROUNDS: tuple[tuple[Colour, Colour], ...] = (
    ((255, 252, 245), (246, 240, 226)),
    ((247, 251, 255), (226, 236, 246)),
    ((249, 253, 247), (229, 241, 227)),
    ((253, 249, 255), (237, 230, 245)),
    ((255, 250, 246), (250, 233, 222)),
    ((252, 252, 252), (235, 236, 239)),
)
LIGHT: Colour = (255, 253, 247)


def draw(scene: Scene, size: int) -> Image.Image:
    """The picture of a scene, `size` pixels a side, in RGB."""
    if size < 1:
        raise ValueError(f"a picture cannot have {size} pixels a side; give 1 or more")
    zoom = 4 if size <= 128 else 3
    canvas = _ground(scene.ground, size * zoom).copy()
    for thing in scene.things:
        _paint(canvas, thing)
    return canvas.reduce(zoom)


@lru_cache(maxsize=32)
def _ground(number: int, side: int) -> Image.Image:
    """A soft gradient from the upper left to the lower right."""
    light, dark = GROUNDS[number]
    ramp = Image.linear_gradient("L").resize((side, side))
    slope = Image.blend(ramp, ramp.transpose(Image.Transpose.ROTATE_90), 0.4)
    return Image.composite(
        Image.new("RGB", (side, side), dark), Image.new("RGB", (side, side), light), slope
    )


def _paint(canvas: Image.Image, thing: Thing) -> None:
    unit = canvas.width / 1000
    reach = int(thing.radius * 1.3 * unit) + 2
    side, radius = 2 * reach, thing.radius * unit
    left, top = round(thing.x * unit) - reach, round(thing.y * unit) - reach
    mask = _mask(thing, side, radius)
    shadow = mask.point([value // 8 for value in range(256)])
    drop = round(0.07 * radius)
    canvas.paste((60, 50, 70), (left + drop, top + drop), shadow)
    red, green, blue = (round(channel * 0.8) for channel in PALETTE[thing.colour])
    canvas.paste((red, green, blue), (left, top), mask)  # the rim
    inner = _mask(thing, side, radius - max(0.085 * radius, 1.2))
    canvas.paste(PALETTE[thing.colour], (left, top), inner)
    if thing.pattern != "plain":
        light = ImageChops.multiply(inner, _PATTERNS[thing.pattern](side, radius))
        canvas.paste(LIGHT, (left, top), light)


def _blank(side: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    mask = Image.new("L", (side, side), 0)
    return mask, ImageDraw.Draw(mask)


def _mask(thing: Thing, side: int, radius: float) -> Image.Image:
    """The area of a thing, white on black."""
    mask, pen = _blank(side)
    middle = side / 2
    if thing.shape in ("circle", "moon"):
        _ellipse(pen, middle, middle, radius, fill=255)
        if thing.shape == "moon":  # a circle without a bite
            _ellipse(pen, middle + 0.52 * radius, middle - 0.24 * radius, 0.78 * radius, fill=0)
        return mask
    cos, sin = math.cos(math.radians(thing.turn)), math.sin(math.radians(thing.turn))
    points = [(x * radius, y * radius) for x, y in _CORNERS[thing.shape]]
    pen.polygon(
        [(middle + x * cos - y * sin, middle + x * sin + y * cos) for x, y in points], fill=255
    )
    return mask


def _ellipse(pen: ImageDraw.ImageDraw, x: float, y: float, radius: float, *, fill: int) -> None:
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)


def _star() -> Iterator[Point]:
    for corner in range(10):
        reach = 0.56 if corner % 2 else 1.15
        angle = math.pi * (corner / 5 - 0.5)
        yield reach * math.cos(angle), reach * math.sin(angle) + 0.06


def _heart() -> Iterator[Point]:
    for step in range(48):
        t = 2 * math.pi * step / 48
        x = 16 * math.sin(t) ** 3
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        yield x / 15.5, (-y - 2.5) / 15.5


_ARM = 0.38  # half the width of a cross's arm
_CROSS = [(_ARM, -1), (_ARM, -_ARM), (1, -_ARM), (1, _ARM), (_ARM, _ARM), (_ARM, 1)]
_CORNERS: dict[str, list[Point]] = {  # in units of the radius
    "square": [(-0.84, -0.84), (0.84, -0.84), (0.84, 0.84), (-0.84, 0.84)],
    "diamond": [(0, -1.1), (0.78, 0), (0, 1.1), (-0.78, 0)],
    "triangle": [(0, -1.08), (1.026, 0.7776), (-1.026, 0.7776)],
    "star": list(_star()),
    "heart": list(_heart()),
    "cross": [*_CROSS, *((-x, -y) for x, y in _CROSS)],
}


def _stripes(side: int, radius: float) -> Image.Image:
    mask, pen = _blank(side)
    period = 0.62 * radius
    for step in range(-8, 9):
        start = side / 2 + step * period
        low, high, width = start - side / 2, start + side / 2, 0.44 * period
        pen.polygon([(low, side), (low + width, side), (high + width, 0), (high, 0)], fill=255)
    return mask


def _dots(side: int, radius: float) -> Image.Image:
    mask, pen = _blank(side)
    period, dot = 0.56 * radius, 0.17 * radius
    for row in range(-4, 5):
        for column in range(-4, 5):
            x = side / 2 + (column + 0.5 * (row % 2)) * period
            y = side / 2 + row * period * 0.87
            _ellipse(pen, x, y, dot, fill=255)
    return mask


def _checks(side: int, radius: float) -> Image.Image:
    mask, pen = _blank(side)
    cell = 0.4 * radius
    for row in range(-4, 4):
        for column in range(-4, 4):
            if (row + column) % 2:
                x, y = side / 2 + column * cell, side / 2 + row * cell
                pen.rectangle((x, y, x + cell - 1, y + cell - 1), fill=255)
    return mask


_PATTERNS: dict[str, Callable[[int, float], Image.Image]] = {
    "striped": _stripes,
    "dotted": _dots,
    "checked": _checks,
}
