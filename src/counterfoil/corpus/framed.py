"""Pictures cut and scaled as the model they are for was trained on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, final, get_args

import numpy as np
from PIL import Image

from counterfoil.corpus.pictures import rgb
from counterfoil.corpus.pixels import Array, Form, Square
from counterfoil.corpus.shaped import Shaped

Fit = Literal["shortest", "longest", "squash"]
Filter = Literal["bicubic", "bilinear"]
_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


@final
@dataclass(frozen=True, slots=True)
class Framed:
    """(3, size, size): scaled first and cut afterwards, as torchvision does.

    Attributes:
        size: side in pixels.
        fit: the shortest side is brought to the size and what is over is cut off; or the longest
            is, and what is missing is black; or the picture is squeezed.
        filter: how it is scaled.

    Raises:
        ValueError: no such fit or filter.
    """

    size: int
    fit: Fit
    filter: Filter

    def __post_init__(self) -> None:
        for name, known in ((self.fit, get_args(Fit)), (self.filter, get_args(Filter))):
            if name not in known:
                raise ValueError(
                    f"pictures cannot be prepared by {name!r}; use {', '.join(known[:-1])} or "
                    f"{known[-1]}"
                )

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height, width."""
        return 3, self.size, self.size

    @property
    def key(self) -> str:
        """Size, fit and filter."""
        return f"framed {self.size} {self.fit} {self.filter}"

    def drawn(self, picture: Image.Image) -> Array:
        """The array of a picture."""
        picture = rgb(picture)
        sides = self._sides(*picture.size)
        if picture.size != sides:
            picture = picture.resize(sides, _FILTERS[self.filter])
        left, top = (_margin(side, self.size) for side in picture.size)
        picture = picture.crop((left, top, left + self.size, top + self.size))  # black outside
        return np.array(picture, dtype=np.uint8).transpose(2, 0, 1)

    def _sides(self, width: int, height: int) -> tuple[int, int]:
        if self.fit == "squash":
            return self.size, self.size
        if self.fit == "shortest":
            short = min(width, height)
            return int(self.size * width / short), int(self.size * height / short)
        long = max(width, height) / self.size
        return max(1, round(width / long)), max(1, round(height / long))


def form_of(size: int, *, crop: bool, divisor: int, frame: str) -> Form:
    """How a `PixelEye` of these settings makes arrays of pictures.

    Raises:
        ValueError: no such frame.
    """
    if divisor:
        return Shaped(size, divisor)
    if not frame:
        return Square(size, crop)
    fit, _, scaled = frame.partition(" ")
    return Framed(size, cast("Fit", fit), cast("Filter", scaled))


def _margin(side: int, size: int) -> int:
    """What is cut off before the middle; below 0 what is missing there."""
    return round((side - size) / 2) if side >= size else -((size - side) // 2)
