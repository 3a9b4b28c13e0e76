"""Images of a data set: files or generated, and their pixels as cached arrays."""

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
LARGEST = 64_000_000  # pixels; a larger image is refused as a decompression bomb


class Pictures(ABC):
    """N images, opened one by one."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def open(self, row: int) -> Image.Image:
        """Open the image of a row, in RGB.

        Raises:
            ValueError: it is missing or cannot be read.
        """

    @abstractmethod
    def place(self, row: int) -> str:
        """Path or name of the image, for messages and links."""

    @abstractmethod
    def subset(self, rows: Tensor) -> Pictures:
        """The images of some rows, in the given order."""


@final
class PictureFiles(Pictures):
    """Image files, one for each row."""

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
    """Images that are drawn when opened.

    Args:
        draw: returns the image of an original row.
        rows: original row of each image.
        name: of the set, as in "scenes".
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
    """Whether a file has the extension of an image."""
    return path.suffix.lower() in ENDINGS and not path.name.startswith(".")


def rgb(picture: Image.Image) -> Image.Image:
    """Convert to RGB: rotated by its EXIF orientation, transparency on white."""
    picture = ImageOps.exif_transpose(picture)
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    return picture.convert("RGB")


def open_picture(path: Path) -> Image.Image:
    """Open an image file in RGB, fully decoded.

    Raises:
        ValueError: it is missing, truncated, too large, or no image.
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


# Pixels: arrays of one shape, decoded once and cached on disk.

Array = npt.NDArray[Any]


class ImageTransform(Protocol):
    """Converts an image to an array; hashable."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of every array; its dtype is uint8."""
        ...

    @property
    def key(self) -> str:
        """Name of the transform in the hash of cache files."""
        ...

    def __call__(self, picture: Image.Image) -> Array:
        """Convert an image."""
        ...

    def __hash__(self) -> int: ...


@final
@dataclass(frozen=True, slots=True)
class ResizeSquare:
    """(3, size, size): the whole image squeezed to a square, or its center crop."""

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

    def __call__(self, picture: Image.Image) -> Array:
        """Convert an image."""
        return load_pixels(picture, self.size, crop=self.crop)


def load_pixels(picture: Image.Image, size: int, *, crop: bool = False) -> Array:
    """(3, size, size) uint8: the whole image squeezed to a square, or its center crop."""
    picture = rgb(picture)
    if crop:
        side = min(picture.size)
        left, top = (picture.width - side) // 2, (picture.height - side) // 2
        picture = picture.crop((left, top, left + side, top + side))
    if picture.size != (size, size):
        picture = picture.resize((size, size), Image.Resampling.BICUBIC)
    return np.array(picture, dtype=np.uint8).transpose(2, 0, 1)


def pack_pixels(pictures: Pictures, size: int, *, crop: bool = False) -> Array:
    """(N, 3, size, size) uint8 memory map of all images, computed on first use and cached."""
    return cached_pixels(pictures, ResizeSquare(size, crop))


def cached_pixels(pictures: Pictures, transform: ImageTransform) -> Array:
    """(N, *transform.shape) uint8 memory map of all images, computed on first use and cached."""
    return _open_cache(pixel_cache_path(pictures, transform.key), pictures, transform)


@lru_cache(maxsize=8)
def _open_cache(path: Path, pictures: Pictures, transform: ImageTransform) -> Array:
    if not path.exists() and distributed.rank() == 0:
        with (
            atomic_write(path) as temporary,
            progress("pictures decoded", len(pictures)) as advance,
        ):
            shape = (len(pictures), *transform.shape)
            out = np.lib.format.open_memmap(temporary, "w+", np.uint8, shape)
            for row in range(len(pictures)):
                out[row] = transform(pictures.open(row))
                advance(1)
            out.flush()
            del out
    distributed.barrier()
    return read_array(path, "packed pictures")


def image_fingerprint(pictures: Pictures, row: int) -> str:
    """Place, size and modification time of an image: changes when its file changes."""
    place = pictures.place(row)
    if not isinstance(pictures, PictureFiles):
        return place
    status = Path(place).stat() if Path(place).exists() else None
    return f"{place}{status and (status.st_size, status.st_mtime_ns)}"


@lru_cache(maxsize=64)
def pixel_cache_path(pictures: Pictures, key: str, what: str = "pixels") -> Path:
    """Cache file of data computed from images; its name depends on the images and on `key`.

    Args:
        pictures: the images, as they are now.
        key: of the computation.
        what: folder of the cache.
    """
    digest = hashlib.sha256(key.encode())
    for row in range(len(pictures)):
        digest.update(image_fingerprint(pictures, row).encode())
    return cache_folder() / what / f"{digest.hexdigest()[:24]}.npy"
