"""Pixels of images: files in a folder, or pictures drawn on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

from PIL import Image, ImageOps
from torch import Tensor

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
