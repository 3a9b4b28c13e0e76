"""Pictures as arrays of one size, decoded once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt
from PIL import Image

from counterfoil import world
from counterfoil.core.console import progress
from counterfoil.corpus.pictures import PictureFiles, Pictures, rgb
from counterfoil.corpus.tokens import cache
from counterfoil.files import read_array, replacing

Array = npt.NDArray[Any]


class Form(Protocol):
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
class Square:
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
        return pixels(picture, self.size, crop=self.crop)


def pixels(picture: Image.Image, size: int, *, crop: bool = False) -> Array:
    """(3, size, size) uint8; squeezed to a square, or the middle square of it."""
    picture = rgb(picture)
    if crop:
        side = min(picture.size)
        left, top = (picture.width - side) // 2, (picture.height - side) // 2
        picture = picture.crop((left, top, left + side, top + side))
    if picture.size != (size, size):
        picture = picture.resize((size, size), Image.Resampling.BICUBIC)
    return np.array(picture, dtype=np.uint8).transpose(2, 0, 1)


def packed(pictures: Pictures, size: int, *, crop: bool = False) -> Array:
    """(N, 3, size, size) uint8 memory map of all pictures, made on first use and kept."""
    return kept(pictures, Square(size, crop))


def kept(pictures: Pictures, form: Form) -> Array:
    """(N, *form.shape) uint8 memory map of all pictures, made on first use and kept."""
    return _open(kept_at(pictures, form.key), pictures, form)


@lru_cache(maxsize=8)
def _open(path: Path, pictures: Pictures, form: Form) -> Array:
    if not path.exists() and world.rank() == 0:
        with (
            replacing(path) as temporary,
            progress("pictures decoded", len(pictures)) as done,
        ):
            shape = (len(pictures), *form.shape)
            out = np.lib.format.open_memmap(temporary, "w+", np.uint8, shape)
            for row in range(len(pictures)):
                out[row] = form.drawn(pictures.open(row))
                done(1)
            out.flush()
            del out
    world.wait()
    return read_array(path, "packed pictures")


def as_it_is(pictures: Pictures, row: int) -> str:
    """Tells a picture from others, and from what it was before its file changed."""
    place = pictures.place(row)
    if not isinstance(pictures, PictureFiles):
        return place
    status = Path(place).stat() if Path(place).exists() else None
    return f"{place}{status and (status.st_size, status.st_mtime_ns)}"


@lru_cache(maxsize=64)
def kept_at(pictures: Pictures, key: str, what: str = "pixels") -> Path:
    """Where something is kept that was made of these pictures; other pictures, another place.

    Args:
        pictures: all of them, as they are now.
        key: tells how they are made into it.
        what: folder of the cache.
    """
    digest = hashlib.sha256(key.encode())
    for row in range(len(pictures)):
        digest.update(as_it_is(pictures, row).encode())
    return cache() / what / f"{digest.hexdigest()[:24]}.npy"
