"""Pictures of scenes, at any size.

Everything is painted large without smoothing and then averaged down, so that edges come out soft
and the same scene looks the same at 64 and at 512 pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
    """The picture of a scene, `size` pixels a side, in RGB.

    Raises:
        ValueError: the size is not positive.
    """
    if size < 1:
        raise ValueError(f"a picture of {size} pixels a side was asked for; give 1 or more")
    zoom = 4 if size <= 128 else 3
    canvas = _ground(scene.ground, size * zoom).copy()
    for thing in scene.things:
        _paint(canvas, thing)
    return canvas.reduce(zoom)


@lru_cache(maxsize=32)
def _ground(which: int, side: int) -> Image.Image:
    """A soft gradient from the upper left to the lower right."""
    light, dark = GROUNDS[which]
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
    outline = _SHAPES[thing.shape]
    mask = outline(side, radius, math.radians(thing.turn))
    shadow = mask.point([value // 8 for value in range(256)])
    drop = round(0.07 * radius)
    canvas.paste((60, 50, 70), (left + drop, top + drop), shadow)
    canvas.paste(_shade(PALETTE[thing.colour]), (left, top), mask)
    inner = outline(side, radius - max(0.085 * radius, 1.2), math.radians(thing.turn))
    canvas.paste(PALETTE[thing.colour], (left, top), inner)
    if thing.pattern != "plain":
        light = ImageChops.multiply(inner, _PATTERNS[thing.pattern](side, radius))
        canvas.paste(LIGHT, (left, top), light)


def _shade(colour: Colour) -> Colour:
    """The colour of a rim."""
    red, green, blue = (round(channel * 0.8) for channel in colour)
    return red, green, blue


def _blank(side: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    mask = Image.new("L", (side, side), 0)
    return mask, ImageDraw.Draw(mask)


def _polygon(side: int, points: list[Point], turn: float) -> Image.Image:
    mask, pen = _blank(side)
    cos, sin, middle = math.cos(turn), math.sin(turn), side / 2
    pen.polygon(
        [(middle + x * cos - y * sin, middle + x * sin + y * cos) for x, y in points], fill=255
    )
    return mask


def _disc(side: int, radius: float, turn: float) -> Image.Image:
    mask, pen = _blank(side)
    low, high = side / 2 - radius, side / 2 + radius
    pen.ellipse((low, low, high, high), fill=255)
    return mask


def _square(side: int, radius: float, turn: float) -> Image.Image:
    r = 0.84 * radius
    return _polygon(side, [(-r, -r), (r, -r), (r, r), (-r, r)], turn)


def _diamond(side: int, radius: float, turn: float) -> Image.Image:
    return _polygon(
        side, [(0, -1.1 * radius), (0.78 * radius, 0), (0, 1.1 * radius), (-0.78 * radius, 0)], turn
    )


def _triangle(side: int, radius: float, turn: float) -> Image.Image:
    r = 1.08 * radius
    return _polygon(side, [(0, -r), (0.95 * r, 0.72 * r), (-0.95 * r, 0.72 * r)], turn)


def _star(side: int, radius: float, turn: float) -> Image.Image:
    points: list[Point] = []
    for corner in range(10):
        reach = (1.15 if corner % 2 == 0 else 0.56) * radius
        angle = math.pi * (corner / 5 - 0.5)
        points.append((reach * math.cos(angle), reach * math.sin(angle) + 0.06 * radius))
    return _polygon(side, points, turn)


def _heart(side: int, radius: float, turn: float) -> Image.Image:
    points: list[Point] = []
    for step in range(48):
        t = 2 * math.pi * step / 48
        x = 16 * math.sin(t) ** 3
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((x * radius / 15.5, (-y - 2.5) * radius / 15.5))
    return _polygon(side, points, turn)


def _cross(side: int, radius: float, turn: float) -> Image.Image:
    r, arm = radius, 0.38 * radius
    corners = [(arm, -r), (arm, -arm), (r, -arm), (r, arm), (arm, arm), (arm, r)]
    return _polygon(side, corners + [(-x, -y) for x, y in corners], turn)


def _moon(side: int, radius: float, turn: float) -> Image.Image:
    mask = _disc(side, radius, 0)
    bite, x, y = 0.78 * radius, side / 2 + 0.52 * radius, side / 2 - 0.24 * radius
    ImageDraw.Draw(mask).ellipse((x - bite, y - bite, x + bite, y + bite), fill=0)
    return mask


def _stripes(side: int, radius: float) -> Image.Image:
    mask, pen = _blank(side)
    period = 0.62 * radius
    for step in range(-8, 9):
        start = side / 2 + step * period
        pen.polygon(
            [
                (start - side / 2, side),
                (start - side / 2 + 0.44 * period, side),
                (start + side / 2 + 0.44 * period, 0),
                (start + side / 2, 0),
            ],
            fill=255,
        )
    return mask


def _dots(side: int, radius: float) -> Image.Image:
    mask, pen = _blank(side)
    period, dot = 0.56 * radius, 0.17 * radius
    for row in range(-4, 5):
        for column in range(-4, 5):
            x = side / 2 + (column + 0.5 * (row % 2)) * period
            y = side / 2 + row * period * 0.87
            pen.ellipse((x - dot, y - dot, x + dot, y + dot), fill=255)
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


_SHAPES: dict[str, Callable[[int, float, float], Image.Image]] = {
    "circle": _disc,
    "square": _square,
    "triangle": _triangle,
    "diamond": _diamond,
    "star": _star,
    "heart": _heart,
    "cross": _cross,
    "moon": _moon,
}
_PATTERNS: dict[str, Callable[[int, float], Image.Image]] = {
    "striped": _stripes,
    "dotted": _dots,
    "checked": _checks,
}
