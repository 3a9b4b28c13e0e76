"""Images of a data set, transforms to pixel arrays, and the cache of these arrays.

torch is imported where it is needed: the server's decode processes import this module, and start
in a tenth of a second without it.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from functools import cache, lru_cache
from io import BytesIO
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, TypeAlias, cast, final

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from counterfoil import __version__
from counterfoil.core.config import parse_literal
from counterfoil.core.console import progress, warn
from counterfoil.core.io import cache_folder, new_array, read_array, write_lock
from counterfoil.core.optional import optional_import
from counterfoil.core.rgb import rgb

if TYPE_CHECKING:
    from torch import Tensor

    from counterfoil.core.artifact import ArtifactFormat, ArtifactManifest

PHONE_ENDINGS = (".heic", ".heif", ".avif")  # read with the extra "phone", AVIF also by new Pillow
ENDINGS = (
    ".jpg", ".jpeg", ".jfif", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm",
    *PHONE_ENDINGS,
)  # fmt: skip
LARGEST = 64_000_000  # pixels; a larger JPEG is scaled while it is decoded, others are refused
MOST_SCANS = 100  # of a JPEG; encoders write about ten
_UNREADABLE = "cannot be read as a picture:"
_PHONE = 'which needs a decoder: pip install "counterfoil[phone]", or convert it to JPEG'
# what the first bytes of a file say, where no decoder knows it
_BRANDS = dict.fromkeys(b"heic heix heim heis hevc hevx mif1 msf1".split(), "HEIC")
_BRANDS |= {b"avif": "AVIF", b"avis": "AVIF"}
_KINDS = {
    b"version https://git-lfs": "is a pointer of Git LFS, not the picture; run git lfs pull",
    b"<svg": "is SVG, a drawing; convert it to PNG",
    b"<!": "is a web page, not a picture, as of a download that failed; download it again",
    b"<html": "is a web page, not a picture, as of a download that failed; download it again",
    b"<": "is XML, not a picture",
    b"{": "is JSON, not a picture, as of a download that failed; download it again",
    b"%pdf": "is PDF; convert its pages to PNG",
    b"\xff\xd8": "is a JPEG that is damaged or cut off near its beginning",
    b"\x89png": "is a PNG that is damaged or cut off near its beginning",
    b"gif8": "is a GIF that is damaged or cut off near its beginning",
    b"riff": "is a WebP that is damaged or cut off near its beginning",
}
# of a segment of a JPEG, or its end: not fill bytes, data (0xff00), restarts or the beginning
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])", re.DOTALL)


class Pictures(ABC):
    """N images, opened one by one.

    Attributes:
        rows: what identifies each image to the subclass, such as its path.
    """

    def __init__(self, rows: Iterable[Any]) -> None:
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    @abstractmethod
    def open(self, row: int) -> Image.Image:
        """Open the image of a row, in RGB."""

    @abstractmethod
    def place(self, row: int) -> str:
        """Path or name of the image, for messages and links."""

    @abstractmethod
    def fingerprint(self, row: int) -> str:
        """What changes when the image does: its place, with size and time of its file if any."""

    def stored(self, row: int) -> Path | bytes | None:
        """The file of the image, or its content; None for an image that is drawn."""
        return None

    def byte_count(self, row: int) -> int | None:
        """Bytes of the image's file; None if it has none."""
        return None

    def subset(self, rows: Tensor) -> Self:
        """The images of some rows, in the given order."""
        chosen = copy(self)
        chosen.rows = [self.rows[row] for row in rows.tolist()]
        return chosen


@final
class PictureFiles(Pictures):
    """Image files; a row is a path."""

    @property
    def paths(self) -> list[Path]:
        """The picture files, one for each row of the data set."""
        return self.rows

    def open(self, row: int) -> Image.Image:
        return open_picture(self.rows[row])

    def place(self, row: int) -> str:
        return str(self.rows[row])

    def fingerprint(self, row: int) -> str:
        return f"{self.place(row)}{size_and_time(self.rows[row])}"

    def stored(self, row: int) -> Path:
        path: Path = self.rows[row]
        return path

    def byte_count(self, row: int) -> int | None:
        known = size_and_time(self.rows[row])
        return known and known[0]


@final
class DrawnPictures(Pictures):
    """Images that a function draws from their rows when opened.

    The name tells all that they depend on besides the row.
    """

    def __init__(self, draw: Callable[[int], Image.Image], rows: Iterable[int], name: str) -> None:
        super().__init__(rows)
        self.draw, self.name = draw, name

    def open(self, row: int) -> Image.Image:
        return self.draw(self.rows[row])

    def place(self, row: int) -> str:
        return f"{self.name}/{self.rows[row]}"

    def fingerprint(self, row: int) -> str:
        return self.place(row)


def size_and_time(path: Path) -> tuple[int, int] | None:
    """Size in bytes and time of change in ns of a file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def is_picture_name(path: Path) -> bool:
    """Return True if a file has the extension of an image."""
    return path.suffix.lower().rstrip() in ENDINGS and not path.name.startswith(".")


def too_many_scans(picture: Image.Image) -> bool:
    """Return True for a JPEG with more than `MOST_SCANS` scans; the picture is not decoded.

    Each scan of a JPEG passes over the whole picture and may take a few bytes of the file: half a
    megabyte of them keeps a decoder busy for minutes.
    """
    if not isinstance(picture, JpegImageFile):
        return False
    file = picture.fp
    assert file is not None
    place = file.tell()
    file.seek(0)
    content = file.read()
    file.seek(place)
    # segments are skipped by their length, as they hold thumbnails, and what follows the picture
    # is not read: cameras append films
    scans, start = 0, 0
    while (marker := _MARKER.search(content, start)) is not None and marker[1] != b"\xd9":
        scans += marker[1] == b"\xda"
        start = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2], "big")
    return scans > MOST_SCANS


def open_picture(path: Path) -> Image.Image:
    """Open an image file in RGB, fully decoded.

    JPEG files of more than 64 megapixels are decoded at a half, a quarter or an eighth of their
    size.
    """
    return decode_picture(path, str(path))


def decode_picture(file: Path | BinaryIO, name: str, *, longest: int | None = None) -> Image.Image:
    """Open an image in RGB from a file that is a path or is open; see `open_picture`.

    Args:
        file: the file.
        name: of the image, for messages.
        longest: pixels of the longer side that are needed; a larger JPEG is scaled while it is
            decoded, to at least twice as many.
    """
    try:
        picture = _decode(file, name, longest)
    except FileNotFoundError:
        raise ValueError(f"{name} does not exist; an image is needed there") from None
    except Image.DecompressionBombError:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0) / 1e6
        raise ValueError(f"{name} has more than {most:.0f} megapixels; scale it down") from None
    except UnicodeEncodeError as error:  # of the name, in the C locale without Python's UTF-8 mode
        raise ValueError(
            f"{name} {_UNREADABLE} names of files are read as {error.encoding} here; set "
            "PYTHONUTF8=1"
        ) from None
    except Exception as error:  # decoders raise anything at damaged bytes
        reason = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, OSError) or error.errno is None:
            reason = f"it is damaged or cut off: {reason}"
        raise ValueError(f"{name} {_UNREADABLE} {reason}") from error
    if isinstance(picture, str):
        raise ValueError(f"{name} {picture}")
    return picture


def phone_format(head: bytes) -> str | None:
    """HEIC or AVIF, by the first bytes of a file; None for others."""
    return _BRANDS.get(head[8:12]) if head[4:8] == b"ftyp" else None


def read_phone_formats(needs: str) -> None:
    """Let Pillow read HEIC by the extra "phone".

    Raises:
        ValueError: with the text `needs`, where it is not installed.
    """
    optional_import("pillow_heif", needs).register_heif_opener()


def _decode(file: Path | BinaryIO, name: str, longest: int | None) -> Image.Image | str:
    """An image in RGB, or what is wrong with it."""
    if isinstance(file, Path) and file.exists() and not file.is_file():
        return f"{_UNREADABLE} it is no regular file"  # and a pipe would hang
    try:
        opened = Image.open(file)
    except UnidentifiedImageError:
        head = _first_bytes(file)
        phone = phone_format(head)
        if phone is None:
            return f"{_UNREADABLE} it {_what_it_is(head)}"
        named = PurePath(name).suffix.lower()
        other = (
            f" with the ending {named}" if named in ENDINGS and named not in PHONE_ENDINGS else ""
        )
        try:
            read_phone_formats(f"{_UNREADABLE} it is {phone}{other}, {_PHONE}")
        except ValueError as error:
            return str(error)
        opened = Image.open(file)
    except Image.DecompressionBombError:
        large = _baseline_jpeg(file)
        if large is None:
            raise
        opened = large
    with opened as picture:
        if picture.format == "EPS":
            return "is PostScript, which only a program could draw; convert it to PNG"
        if too_many_scans(picture):
            return (
                f"is a JPEG of more than {MOST_SCANS} scans, which takes minutes to decode; save "
                "it again with any program"
            )
        width, height = picture.size
        scale = next((n for n in (1, 2, 4, 8) if width * height <= LARGEST * n * n), 8)
        if longest is not None:
            sides = (n for n in (2, 4, 8) if max(width, height) >= 2 * n * longest)
            scale = max(scale, *sides, 1)
        if scale > 1:  # other formats than JPEG ignore it
            picture.draft(picture.mode, (width // scale, height // scale))
        if picture.width * picture.height <= LARGEST:
            return rgb(picture)
    return (
        f"has {width} x {height} pixels; at most {LARGEST:,} are read, JPEG files excepted; scale "
        "it down"
    )


def _first_bytes(file: Path | BinaryIO) -> bytes:
    if isinstance(file, Path):
        with file.open("rb") as opened:
            return opened.read(100)
    file.seek(0)
    return file.read(100)


def _what_it_is(head: bytes) -> str:
    """Says what a file of these first bytes is, which no decoder knows."""
    if not head:
        return "is empty (0 bytes); copy or download it again"
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    kinds = (said for known, said in _KINDS.items() if start.startswith(known))
    return next(kinds, "is of no format of images that is known here")


def _baseline_jpeg(file: Path | BinaryIO) -> JpegImageFile | None:
    """Open a JPEG without Pillow's limit, which does not know that it is scaled while decoded.

    None for other formats, and for a progressive JPEG, whose decoder holds all of it in memory.
    """
    if not isinstance(file, Path):
        file.seek(0)
    try:
        picture = JpegImageFile(file)
    except SyntaxError:  # as Pillow says that a file is of another format
        return None
    if "progressive" not in picture.info:
        return picture
    picture.close()
    return None


# Transforms: images to arrays of one shape, matching the preprocessing of pretrained models.

Array = npt.NDArray[Any]
# x1, y1, x2, y2 as fractions of a picture, beyond 0 and 1 where it is padded
Box: TypeAlias = tuple[float, float, float, float]
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)
Fit = Literal["squash", "center", "shortest", "shortest-floor", "longest"]
Filter = Literal["bicubic", "bilinear", "lanczos", "nearest", "box", "hamming"]
_MOST_CROPPED = 8  # times the size
_MOST_ASPECT = 100  # of a picture that is resized whole, though its middle is all that is needed


@final
@dataclass(frozen=True, slots=True)
class ResizeCrop:
    """(3, size, size): resize, then center crop or pad, as torchvision, open_clip and transformers.

    Attributes:
        size: side in pixels.
        fit: "squash" ignores the aspect ratio, "center" crops the largest square first, "shortest"
            resizes the shortest side and crops the rest as torchvision does, "shortest-floor" as
            transformers does, which rounds half a pixel down, "longest" resizes the longest side
            and pads with black.
        filter: of the resampling.
        resized: length that "squash" and "shortest" resize to, if more is cropped; 0 for `size`.
    """

    size: int
    fit: Fit = "squash"
    filter: Filter = "bicubic"
    resized: int = 0

    def __post_init__(self) -> None:
        parse_literal(Fit, self.fit, "a way to fit pictures")
        parse_literal(Filter, self.filter, "a filter of pictures")
        least = 0 if self.fit in ("center", "longest") else self.size
        if self.resized and not least <= self.resized <= _MOST_CROPPED * least:
            raise ValueError(
                f"pictures are resized to {self.resized} and fitted as {self.fit!r} to "
                f"{self.size}; squares and shortest sides of the size to {_MOST_CROPPED} times it "
                "are cropped"
            )

    @staticmethod
    def named(size: int, frame: str) -> ResizeCrop:
        """The transform of a name such as "shortest bicubic", or "shortest bicubic 256".

        Raises:
            ValueError: there is none.
        """
        fit, _, more = frame.partition(" ")
        scaling, _, resized = more.partition(" ")
        if resized and not resized.isdecimal():
            raise ValueError(f"{frame!r} is no way to fit pictures; give one as 'squash bicubic'")
        return ResizeCrop(size, cast(Fit, fit), cast(Filter, scaling), int(resized or 0))

    @property
    def name(self) -> str:
        """The name that `named` reads."""
        return f"{self.fit} {self.filter}" + (f" {self.resized}" if self.resized else "")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of every array."""
        return 3, self.size, self.size

    @property
    def key(self) -> str:
        """Name of the transform in the hash of cache files."""
        return f"framed {self.size} {self.name}"

    def resize(self, picture: Image.Image) -> Array:
        """Scale a picture, cut its middle out, and return (3, size, size) uint8 pixels."""
        picture = self.scaled(picture)
        left, top = (self._margin(side) for side in picture.size)
        # PIL fills with black outside the image
        picture = picture.crop((left, top, left + self.size, top + self.size))
        return np.array(picture, dtype=np.uint8).transpose(2, 0, 1)

    __call__ = resize

    def scaled(self, picture: Image.Image) -> Image.Image:
        """An image in RGB, resized and not yet cropped or padded."""
        picture = rgb(picture)
        if (part := self._cut(*picture.size)) != (0, 0, *picture.size):
            picture = picture.crop(part)
        sides = self._sides(*picture.size)
        if picture.size != sides:
            picture = picture.resize(sides, Image.Resampling[self.filter.upper()])
        return picture

    def seen(self, width: int, height: int) -> Box:
        """Place of the result in a picture of this width and height."""
        left, top, right, bottom = self._cut(width, height)
        wide, high = right - left, bottom - top
        resized = self._sides(wide, high)
        x, y = (self._margin(side) for side in resized)
        across, down = wide / resized[0] / width, high / resized[1] / height  # of a pixel
        first = (left / width + x * across, top / height + y * down)
        return *first, first[0] + self.size * across, first[1] + self.size * down

    def _cut(self, width: int, height: int) -> tuple[int, int, int, int]:
        """The part of a picture that is resized."""
        left = top = 0
        if self.fit == "center":
            side = min(width, height)
            left, top = (width - side) // 2, (height - side) // 2
            return left, top, left + side, top + side
        if self.fit.startswith("shortest"):  # of a line of pixels all but the middle is cropped
            most = _MOST_ASPECT * min(width, height)
            left, top = (max(0, side - most) // 2 for side in (width, height))
        return left, top, width - left, height - top

    def _sides(self, width: int, height: int) -> tuple[int, int]:
        size = self.resized or self.size
        if self.fit.startswith("shortest"):
            short = min(width, height)
            return int(size * width / short), int(size * height / short)
        if self.fit == "longest":
            long = max(width, height) / size
            return max(1, round(width / long)), max(1, round(height / long))
        return size, size

    def _margin(self, side: int) -> int:
        """Pixels to crop on the left or top; negative for padding."""
        if self.fit == "shortest":  # torchvision rounds halves to the even number
            return round((side - self.size) / 2)
        return (side - self.size) // 2 if side >= self.size else -((self.size - side) // 2)


LONGEST = 1333 / 800  # longest side over shortest, as in detectors trained on COCO
_HEADER = 4  # bytes before the pixels of a stored image: height and width, two each


@final
@dataclass(frozen=True, slots=True)
class ResizeKeepAspect:
    """Resize the shortest side to a length, keeping the aspect ratio, as ViLT does.

    Both sides are cut to multiples of a number. An image whose longest side would exceed 1333 / 800
    of the shortest is made smaller. Stored as a row of bytes: height, width, pixels, and padding to
    the largest possible image, so that images of all shapes fit one memory map.
    """

    size: int  # shortest side in pixels
    divisor: int  # both sides are multiples of it

    def __post_init__(self) -> None:
        if not 1 <= self.divisor <= self.size:
            raise ValueError(
                f"divisor={self.divisor} does not fit size={self.size}; give a number from 1 "
                "to the size, such as 32"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Bytes of an image."""
        return (_HEADER + 3 * self._multiple(self.size) * self._multiple(LONGEST * self.size),)

    @property
    def key(self) -> str:
        """Name of the transform in the hash of cache files."""
        return f"shaped {self.size} {self.divisor}"

    def seen(self, width: int, height: int) -> Box:
        """Place of the result in a picture of this width and height: all of it."""
        return WHOLE

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

        Returns:
            (N, 3, H, W) uint8, and (N, patches) bool, row by row of squares of `divisor` pixels.
        """
        import torch

        high, wide = (max(picture.shape[side] for picture in pictures) for side in (1, 2))
        padded = torch.zeros(len(pictures), 3, high, wide, dtype=torch.uint8)
        real = torch.zeros(len(pictures), high, wide, dtype=torch.bool)
        for place, picture in enumerate(pictures):
            _, height, width = picture.shape
            padded[place, :, :height, :width] = torch.from_numpy(picture.copy())
            real[place, :height, :width] = True
        return padded, real[:, :: self.divisor, :: self.divisor].flatten(1)

    def _multiple(self, side: float) -> int:
        """The largest multiple of `divisor` up to a length, at least one."""
        return max(1, int(side) // self.divisor) * self.divisor


ImageTransform = ResizeCrop | ResizeKeepAspect


def shrink(picture: Image.Image, transform: ImageTransform) -> Image.Image:
    """The smallest picture that a transform converts to the same array as `picture`.

    Transforms leave pictures alone that have their size already.
    """
    if isinstance(transform, ResizeCrop) and transform.resized:
        return transform.scaled(picture)
    return Image.fromarray(np.ascontiguousarray(transform.resize(picture).transpose(1, 2, 0)))


# Pixels of a data set, decoded once and cached on disk.


def pixels_once(
    pictures: Pictures, transform: ImageTransform, rows: Sequence[int], workers: int = 0
) -> Array:
    """`cached_pixels` of some rows for a single pass: what is not in the cache is not kept there.

    Args:
        pictures: the images.
        transform: how they are resized.
        rows: of images.
        workers: threads that decode; 0 for none but this one.

    Raises:
        ValueError: a picture cannot be read.
    """
    if workers < 0:
        raise ValueError(f"{workers} workers decode no pictures; give 0 or more")
    if _is_kept(pictures, transform):
        return cached_pixels(pictures, transform, rows)

    def decoded(row: int) -> Array:
        return transform(pictures.open(row))

    if workers < 1:
        return np.stack([decoded(row) for row in rows])
    with ThreadPoolExecutor(workers) as pool:  # Pillow decodes and resizes outside of Python's lock
        return np.stack([*pool.map(decoded, rows)])


@lru_cache(maxsize=8)
def _is_kept(pictures: Pictures, transform: ImageTransform) -> bool:
    shape = len(pictures), *transform.shape
    return _holds_pixels(image_cache_folder(pictures, transform.key), shape)


def cached_pixels(
    pictures: Pictures, transform: ImageTransform, rows: Sequence[int] | None = None
) -> Array:
    """(R, *transform.shape) uint8 pixels of some rows, computed on first use and cached on disk.

    Without `rows` it is a memory map of all images. A damaged file of the cache is written anew,
    and one whose pictures have changed is left for another.

    Raises:
        ValueError: a picture cannot be read.
    """
    stored, prints = _packed(pictures, transform)
    if changed(pictures, range(len(pictures)) if rows is None else rows, prints):
        _packed.cache_clear()
        stored, _ = _packed(pictures, transform)
    return stored if rows is None else stored[np.asarray(rows)]


PIXELS_FILE = "pixels.npy"  # (N, 3, H, W) uint8


@cache
def _packing() -> ArtifactFormat[ArtifactManifest]:
    # the server's decode processes need no pydantic
    from counterfoil.core.artifact import ArtifactFormat, ArtifactManifest

    return ArtifactFormat(
        name="packed pictures", manifest=ArtifactManifest, remedy="its pictures are decoded again"
    )


@lru_cache(maxsize=8)
def _packed(pictures: Pictures, transform: ImageTransform) -> tuple[Array, Array]:
    """Memory map of the pixels of all images, and `fingerprint_hashes` of these images."""
    from counterfoil.core import distributed

    prints = fingerprint_hashes(pictures)
    folder = image_cache_folder(pictures, transform.key)
    shape = len(pictures), *transform.shape
    if distributed.rank() == 0 and not _holds_pixels(folder, shape):
        lock = write_lock(folder.with_name(f"{folder.name}.lock"), folder, wait=True)
        with lock:
            if not _holds_pixels(folder, shape):  # another process may have decoded them meanwhile
                _decode_all(pictures, transform, folder, shape)
    distributed.barrier()
    return read_array(folder / PIXELS_FILE, _packing().name), prints


def _decode_all(
    pictures: Pictures, transform: ImageTransform, folder: Path, shape: tuple[int, ...]
) -> None:
    if folder.exists():
        warn(f"{folder} is damaged; its pictures are decoded again")
    packing = _packing()
    with (
        packing.writing(folder) as temporary,
        progress("pictures decoded", len(pictures)) as advance,
    ):
        out = new_array(temporary / PIXELS_FILE, shape, np.uint8)
        for row in range(len(pictures)):
            out[row] = transform(pictures.open(row))
            advance(1)
        out.flush()
        del out
        packing.write_manifest(temporary, packing.manifest(version=__version__), [PIXELS_FILE])


def fingerprint_hashes(pictures: Pictures) -> Array:
    """(N,) int64, for `changed` in this process."""
    return np.array([hash(pictures.fingerprint(row)) for row in range(len(pictures))], np.int64)


def changed(pictures: Pictures, rows: Iterable[int], prints: Array) -> bool:
    """Return True if the file of a picture has changed since `fingerprint_hashes`.

    Raises:
        ValueError: so it is while several processes share the work.
    """
    from counterfoil.core import distributed

    other = next((row for row in rows if hash(pictures.fingerprint(row)) != prints[row]), None)
    if other is not None and distributed.size() > 1:  # the others may not see it, and would wait
        raise ValueError(f"{pictures.place(other)} has changed meanwhile; start again")
    return other is not None


def _holds_pixels(folder: Path, shape: tuple[int, ...]) -> bool:
    try:
        stored = _packing().open(folder)
        stored.array(PIXELS_FILE, shape=shape, dtype=np.uint8, content=stored.kind.name)
    except ValueError:
        return False
    return True


def image_cache_folder(pictures: Pictures, key: str, kind: str = "pixels") -> Path:
    """Cache folder of data computed from images; its name depends on the images and on `key`."""
    digest = hashlib.sha256(key.encode())
    for row in range(len(pictures)):
        digest.update(pictures.fingerprint(row).encode(errors="surrogatepass"))
    return cache_folder() / kind / digest.hexdigest()[:24]


def as_files(pictures: Pictures) -> list[Path]:
    """Files in which any program that knows Pillow sees the images as they are opened here.

    Images in no file of their own, and those that others read otherwise, as HEIC, 16 bits or
    transparency, are written into the cache, once.
    """
    paths, odd = [Path()] * len(pictures), []
    with progress("pictures looked at", len(pictures)) as advance:
        for row in range(len(pictures)):
            stored = pictures.stored(row)
            if isinstance(stored, Path) and _is_plain(stored):
                paths[row] = stored.absolute()
            else:
                odd.append(row)
            advance(1)
    for row, path in zip(odd, _written(pictures, odd)):
        paths[row] = path
    return paths


def _is_plain(file: Path | BinaryIO) -> bool:
    """Whether every program with Pillow opens an image alike; of the content little is read."""
    try:
        with Image.open(file) as picture:
            return (
                picture.mode in ("RGB", "L")
                and picture.width * picture.height <= LARGEST
                and picture.format in ("JPEG", "MPO", "PNG", "WEBP", "BMP")
                and "transparency" not in picture.info
            )
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return False


def _written(pictures: Pictures, rows: Sequence[int]) -> list[Path]:
    """Files of some images in the cache: their content as it is stored if that is plain, or PNG."""
    import torch

    from counterfoil.core.io import atomic_folder

    if not rows:
        return []
    some = pictures.subset(torch.tensor(rows))
    folder = image_cache_folder(some, "", "files")
    with write_lock(folder.with_name(f"{folder.name}.lock"), folder, wait=True):
        if not folder.is_dir():
            with atomic_folder(folder) as new, progress("pictures written", len(some)) as advance:
                for row in range(len(some)):
                    content, file = some.stored(row), new / f"{row:06d}"
                    if isinstance(content, bytes) and _is_plain(BytesIO(content)):
                        file.write_bytes(content)
                    else:
                        some.open(row).save(file, "PNG")
                    advance(1)
    return [folder / f"{row:06d}" for row in range(len(some))]
