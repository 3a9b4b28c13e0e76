"""Image transforms that match the preprocessing of pretrained models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, final, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from counterfoil.data.images import Array, ImageTransform, ResizeSquare, rgb

LONGEST = 1333 / 800  # longest side over shortest, as in detectors trained on COCO
_HEADER = 4  # bytes before the pixels of a stored image: height and width, two each


@final
@dataclass(frozen=True, slots=True)
class ResizeKeepAspect:
    """Resize the shortest side to a length, keeping the aspect ratio, as ViLT does.

    Both sides are cut to multiples of a number. An image whose longest side would exceed 1333 / 800
    of the shortest is made smaller. Stored as a row of bytes: height, width, pixels, and padding to
    the largest possible image, so that images of all shapes fit one memory map.

    Attributes:
        size: shortest side in pixels.
        divisor: both sides are multiples of it.

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
        """Bytes of an image."""
        return (_HEADER + 3 * self._multiple(self.size) * self._multiple(LONGEST * self.size),)

    @property
    def key(self) -> str:
        """Size and divisor."""
        return f"shaped {self.size} {self.divisor}"

    def sides(self, width: int, height: int) -> tuple[int, int]:
        """Resized width and height of an image of this width and height."""
        scale, longest = self.size / min(width, height), int(LONGEST * self.size)
        wide, high = scale * width, scale * height
        if max(wide, high) > longest:
            shrink = longest / max(wide, high)
            wide, high = shrink * wide, shrink * high
        return self._multiple(int(wide + 0.5)), self._multiple(int(high + 0.5))

    def resize(self, picture: Image.Image) -> Array:
        """(3, height, width) uint8 pixels of an image."""
        picture = rgb(picture)
        sides = self.sides(*picture.size)
        if picture.size != sides:
            picture = picture.resize(sides, Image.Resampling.BICUBIC)
        return np.array(picture, dtype=np.uint8).transpose(2, 0, 1)

    def __call__(self, picture: Image.Image) -> Array:
        """Convert an image to a row of bytes."""
        values = self.resize(picture)
        row = np.zeros(self.shape, np.uint8)
        row[:_HEADER] = np.array(values.shape[1:], np.uint16).view(np.uint8)
        row[_HEADER : _HEADER + values.size] = values.ravel()
        return row

    @staticmethod
    def unpack(row: Array) -> Array:
        """(3, height, width) uint8 pixels from a row of bytes."""
        height, width = (int(side) for side in row[:_HEADER].copy().view(np.uint16))
        return row[_HEADER : _HEADER + 3 * height * width].reshape(3, height, width)

    def pad(self, pictures: Sequence[Array]) -> tuple[Tensor, Tensor]:
        """Pad images at the right and the bottom to the largest, with a mask of their patches.

        Args:
            pictures: N arrays (3, height, width) of uint8.

        Returns:
            (N, 3, H, W) uint8, and (N, patches) bool, row by row of squares of `divisor` pixels.
        """
        high, wide = (max(one.shape[side] for one in pictures) for side in (1, 2))
        padded = torch.zeros(len(pictures), 3, high, wide, dtype=torch.uint8)
        mask = torch.zeros(
            len(pictures), high // self.divisor, wide // self.divisor, dtype=torch.bool
        )
        for place, one in enumerate(pictures):
            height, width = one.shape[1:]
            padded[place, :, :height, :width] = torch.from_numpy(one.copy())
            mask[place, : height // self.divisor, : width // self.divisor] = True
        return padded, mask.flatten(1)

    def _multiple(self, side: float) -> int:
        """The largest multiple of `divisor` up to a length, at least one."""
        return max(1, int(side) // self.divisor) * self.divisor


Fit = Literal["shortest", "longest", "squash"]
Filter = Literal["bicubic", "bilinear"]
_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


@final
@dataclass(frozen=True, slots=True)
class ResizeCrop:
    """(3, size, size): resize, then center crop or pad, as torchvision and open_clip do.

    Attributes:
        size: side in pixels.
        fit: "shortest" resizes the shortest side and crops the rest, "longest" resizes the longest
            side and pads with black, "squash" ignores the aspect ratio.
        filter: of the resampling.

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

    def __call__(self, picture: Image.Image) -> Array:
        """Convert an image."""
        picture = rgb(picture)
        sides = self._sides(*picture.size)
        if picture.size != sides:
            picture = picture.resize(sides, _FILTERS[self.filter])
        left, top = (_margin(side, self.size) for side in picture.size)
        picture = picture.crop(
            (left, top, left + self.size, top + self.size)
        )  # PIL fills with black outside the image
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
    """The transform of a `PixelProcessor` with these settings.

    Raises:
        ValueError: there is no such frame.
    """
    if divisor:
        return ResizeKeepAspect(size, divisor)
    if not frame:
        return ResizeSquare(size, crop)
    fit, _, filter_name = frame.partition(" ")
    return ResizeCrop(size, cast("Fit", fit), cast("Filter", filter_name))


def _margin(side: int, size: int) -> int:
    """Pixels to crop on the left or top; negative for padding."""
    return round((side - size) / 2) if side >= size else -((size - side) // 2)
