"""Pictures that keep their shape, as ViLT reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, final, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from counterfoil.data.images import Array, ImageTransform, ResizeSquare, rgb

LONGEST = 1333 / 800  # times the shortest side: a picture of COCO
_HEAD = 4  # bytes before the pixels of a stored picture: height and width, two each


@final
@dataclass(frozen=True, slots=True)
class ResizeKeepAspect:
    """The shortest side brought to a length, and both sides cut to multiples of a number.

    A picture that would be longer than 1333 / 800 of that is made smaller. Stored as a row of
    bytes: height, width, pixels, and room for the largest picture there can be.

    Attributes:
        size: the shortest side in pixels.
        divisor: what both sides are multiples of.

    Raises:
        ValueError: a divisor below 1, or larger than the size.
    """

    size: int
    divisor: int

    def __post_init__(self) -> None:
        if not 1 <= self.divisor <= self.size:
            raise ValueError(
                f"divisor={self.divisor} does not go with size={self.size}; give a number from 1 "
                "to the size, such as 32"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Bytes of a picture."""
        return (_HEAD + 3 * self._whole(self.size) * self._whole(LONGEST * self.size),)

    @property
    def key(self) -> str:
        """Size and divisor."""
        return f"shaped {self.size} {self.divisor}"

    def sides(self, width: int, height: int) -> tuple[int, int]:
        """Width and height that a picture of this width and height gets."""
        scale, longest = self.size / min(width, height), int(LONGEST * self.size)
        wide, high = scale * width, scale * height
        if max(wide, high) > longest:
            less = longest / max(wide, high)
            wide, high = less * wide, less * high
        return self._whole(int(wide + 0.5)), self._whole(int(high + 0.5))

    def seen(self, picture: Image.Image) -> Array:
        """(3, height, width) uint8."""
        picture = rgb(picture)
        sides = self.sides(*picture.size)
        if picture.size != sides:
            picture = picture.resize(sides, Image.Resampling.BICUBIC)
        return np.array(picture, dtype=np.uint8).transpose(2, 0, 1)

    def drawn(self, picture: Image.Image) -> Array:
        """The row of bytes of a picture."""
        values = self.seen(picture)
        row = np.zeros(self.shape, np.uint8)
        row[:_HEAD] = np.array(values.shape[1:], np.uint16).view(np.uint8)
        row[_HEAD : _HEAD + values.size] = values.ravel()
        return row

    @staticmethod
    def opened(row: Array) -> Array:
        """(3, height, width) uint8 of a row of bytes."""
        height, width = (int(side) for side in row[:_HEAD].copy().view(np.uint16))
        return row[_HEAD : _HEAD + 3 * height * width].reshape(3, height, width)

    def gathered(self, pictures: Sequence[Array]) -> tuple[Tensor, Tensor]:
        """Pictures in one room, at its top left, and which of its cells they fill.

        Args:
            pictures: N of (3, height, width) uint8.

        Returns:
            (N, 3, H, W) uint8, zero elsewhere, and (N, cells) bool, row after row of squares of
            `divisor` pixels.
        """
        high, wide = (max(one.shape[side] for one in pictures) for side in (1, 2))
        room = torch.zeros(len(pictures), 3, high, wide, dtype=torch.uint8)
        mask = torch.zeros(
            len(pictures), high // self.divisor, wide // self.divisor, dtype=torch.bool
        )
        for place, one in enumerate(pictures):
            height, width = one.shape[1:]
            room[place, :, :height, :width] = torch.from_numpy(one.copy())
            mask[place, : height // self.divisor, : width // self.divisor] = True
        return room, mask.flatten(1)

    def _whole(self, side: float) -> int:
        return max(1, int(side) // self.divisor) * self.divisor


# Pictures cut and scaled as the model they are for was trained on them.


Fit = Literal["shortest", "longest", "squash"]
Filter = Literal["bicubic", "bilinear"]
_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


@final
@dataclass(frozen=True, slots=True)
class ResizeCrop:
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


def transform_from_name(size: int, *, crop: bool, divisor: int, frame: str) -> ImageTransform:
    """How a `PixelProcessor` of these settings makes arrays of pictures.

    Raises:
        ValueError: no such frame.
    """
    if divisor:
        return ResizeKeepAspect(size, divisor)
    if not frame:
        return ResizeSquare(size, crop)
    fit, _, scaled = frame.partition(" ")
    return ResizeCrop(size, cast("Fit", fit), cast("Filter", scaled))


def _margin(side: int, size: int) -> int:
    """What is cut off before the middle; below 0 what is missing there."""
    return round((side - size) / 2) if side >= size else -((size - side) // 2)
