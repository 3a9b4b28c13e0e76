"""Pixels of images: files in a folder, or pictures drawn on demand."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps
from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.console import progress
from counterfoil.core.io import atomic_write, read_array
from counterfoil.data.tokenizers import cache_folder

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
LARGEST = 64_000_000  # pixels; more than this is taken for a decompression bomb


class Pictures(ABC):
    """N pictures, opened one by one."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def open(self, row: int) -> Image.Image:
        """The picture of a row, in RGB.

        Raises:
            ValueError: it is missing or cannot be read.
        """

    @abstractmethod
    def place(self, row: int) -> str:
        """Where the picture is, for messages and links."""

    @abstractmethod
    def subset(self, rows: Tensor) -> Pictures:
        """The pictures of these rows, in this order."""


@final
class PictureFiles(Pictures):
    """Picture files, one a row."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def open(self, row: int) -> Image.Image:
        return open_picture(self.paths[row])

    def place(self, row: int) -> str:
        return str(self.paths[row])

    def subset(self, rows: Tensor) -> PictureFiles:
        return PictureFiles([self.paths[row] for row in rows.tolist()])


@final
class DrawnPictures(Pictures):
    """Pictures drawn when they are asked for.

    Args:
        draw: draws the picture of an original row.
        rows: original row of each picture.
        name: what they are called, as in "scenes".
    """

    def __init__(self, draw: Callable[[int], Image.Image], rows: Sequence[int], name: str) -> None:
        self.draw, self.rows, self.name = draw, list(rows), name

    def __len__(self) -> int:
        return len(self.rows)

    def open(self, row: int) -> Image.Image:
        return self.draw(self.rows[row])

    def place(self, row: int) -> str:
        return f"{self.name}/{self.rows[row]}"

    def subset(self, rows: Tensor) -> DrawnPictures:
        return DrawnPictures(self.draw, [self.rows[row] for row in rows.tolist()], self.name)


def is_picture_name(path: Path) -> bool:
    """Whether a file has the ending of a picture."""
    return path.suffix.lower() in ENDINGS and not path.name.startswith(".")


def rgb(picture: Image.Image) -> Image.Image:
    """A picture in RGB, upright as its camera says, on white where it is transparent."""
    picture = ImageOps.exif_transpose(picture)
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    return picture.convert("RGB")


def open_picture(path: Path) -> Image.Image:
    """A picture file in RGB, fully decoded.

    Raises:
        ValueError: it is missing, truncated, too large, or no picture.
    """
    try:
        with Image.open(path) as picture:
            if picture.width * picture.height > LARGEST:
                raise ValueError(
                    f"{path} has {picture.width} x {picture.height} pixels; "
                    f"at most {LARGEST:,} are read"
                )
            return rgb(picture)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; an image is needed there") from None
    except (OSError, SyntaxError, Image.DecompressionBombError, Warning) as error:
        raise ValueError(f"{path} cannot be read as a picture: {error}") from error


# Pictures as arrays of one size, decoded once.


Array = npt.NDArray[Any]


class ImageTransform(Protocol):
    """How a picture becomes an array; hashable."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of every array, of uint8."""
        ...

    @property
    def key(self) -> str:
        """Tells it from other forms on disk."""
        ...

    def drawn(self, picture: Image.Image) -> Array:
        """The array of a picture."""
        ...

    def __hash__(self) -> int:
        """Equal forms are one."""
        ...


@final
@dataclass(frozen=True, slots=True)
class ResizeSquare:
    """(3, size, size), squeezed to a square, or the middle square of it."""

    size: int
    crop: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height, width."""
        return 3, self.size, self.size

    @property
    def key(self) -> str:
        """Size and crop."""
        return f"{self.size} {self.crop}"

    def drawn(self, picture: Image.Image) -> Array:
        """The array of a picture."""
        return load_pixels(picture, self.size, crop=self.crop)


def load_pixels(picture: Image.Image, size: int, *, crop: bool = False) -> Array:
    """(3, size, size) uint8; squeezed to a square, or the middle square of it."""
    picture = rgb(picture)
    if crop:
        side = min(picture.size)
        left, top = (picture.width - side) // 2, (picture.height - side) // 2
        picture = picture.crop((left, top, left + side, top + side))
    if picture.size != (size, size):
        picture = picture.resize((size, size), Image.Resampling.BICUBIC)
    return np.array(picture, dtype=np.uint8).transpose(2, 0, 1)


def pack_pixels(pictures: Pictures, size: int, *, crop: bool = False) -> Array:
    """(N, 3, size, size) uint8 memory map of all pictures, made on first use and kept."""
    return cached_pixels(pictures, ResizeSquare(size, crop))


def cached_pixels(pictures: Pictures, form: ImageTransform) -> Array:
    """(N, *form.shape) uint8 memory map of all pictures, made on first use and kept."""
    return _open(pixel_cache_path(pictures, form.key), pictures, form)


@lru_cache(maxsize=8)
def _open(path: Path, pictures: Pictures, form: ImageTransform) -> Array:
    if not path.exists() and distributed.rank() == 0:
        with (
            atomic_write(path) as temporary,
            progress("pictures decoded", len(pictures)) as done,
        ):
            shape = (len(pictures), *form.shape)
            out = np.lib.format.open_memmap(temporary, "w+", np.uint8, shape)
            for row in range(len(pictures)):
                out[row] = form.drawn(pictures.open(row))
                done(1)
            out.flush()
            del out
    distributed.barrier()
    return read_array(path, "packed pictures")


def unscaled_pixels(pictures: Pictures, row: int) -> str:
    """Tells a picture from others, and from what it was before its file changed."""
    place = pictures.place(row)
    if not isinstance(pictures, PictureFiles):
        return place
    status = Path(place).stat() if Path(place).exists() else None
    return f"{place}{status and (status.st_size, status.st_mtime_ns)}"


@lru_cache(maxsize=64)
def pixel_cache_path(pictures: Pictures, key: str, what: str = "pixels") -> Path:
    """Where something is kept that was made of these pictures; other pictures, another place.

    Args:
        pictures: all of them, as they are now.
        key: tells how they are made into it.
        what: folder of the cache.
    """
    digest = hashlib.sha256(key.encode())
    for row in range(len(pictures)):
        digest.update(unscaled_pixels(pictures, row).encode())
    return cache_folder() / what / f"{digest.hexdigest()[:24]}.npy"
