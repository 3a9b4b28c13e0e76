"""Converts pictures of every mode to RGB, with Pillow and NumPy alone: exports hold this code."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from PIL import Image, ImageOps

_ORIENTATION = 0x0112  # tag of EXIF
_BITS, _MEANING, _SIGN = 258, 262, 339  # tags of TIFF: bits, what 0 means, kind of numbers


def rgb(picture: Image.Image) -> Image.Image:
    """Convert to RGB: turned by its EXIF orientation, transparency on white.

    Of 16 bits the upper eight are taken. Whole numbers of 32 bits are taken as they are if none is
    above 255, and as 16 bits if they fit; others, and floats, are stretched from their least to
    their largest, floats from 0 to 1 if all lie there. NaN is black.
    """
    opened = picture  # a turned picture has no tags
    # A broken EXIF block raises whatever its bytes lead to, and is ignored. A picture that cannot
    # be decoded raises again below.
    with suppress(Exception):
        if picture.getexif().get(_ORIENTATION, 1) != 1:  # exif_transpose copies every picture
            picture = ImageOps.exif_transpose(picture)
    if picture.mode in ("I", "F") or picture.mode.startswith("I;16"):
        picture = _of_deep(picture, opened)
    elif picture.mode == "LAB":  # which `convert` does not know
        from PIL import ImageCms

        lab, srgb = (ImageCms.createProfile(name) for name in ("LAB", "sRGB"))
        picture = ImageCms.profileToProfile(picture, lab, srgb, outputMode="RGB") or picture
    elif picture.mode == "RGB" and max(clear := picture.info.get("transparency") or (0,)) > 255:
        picture = picture.copy()  # of a PNG of 16 bits, of which Pillow reads the upper eight
        picture.info["transparency"] = tuple(value >> 8 for value in clear)
    if picture.has_transparency_data:
        if picture.mode == "La":  # which `convert` takes to RGBA in two steps
            picture = picture.convert("LA")
        if picture.mode != "RGBA":  # convert copies, and pictures are large
            picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB")


def _of_deep(picture: Image.Image, opened: Image.Image) -> Image.Image:
    """Grey of eight bits, with the transparency of one value, from more bits; see `rgb`."""
    tags: Any = getattr(opened, "tag_v2", {})
    bits, values = tags.get(_BITS, ()), np.asarray(picture)
    if bits == (32,) and values.dtype == np.int32 and tags.get(_SIGN, (1,)) == (1,):
        values = values.view(np.uint32)
    low, high = (0, 0) if values.dtype.kind == "f" else (int(values.min()), int(values.max()))
    if values.dtype.kind == "f" or low < 0 or high > 65535:
        grey = _stretched(values)
    elif bits == (12,):
        grey = (values >> 4).astype(np.uint8)
    elif picture.mode == "I" and opened.format not in ("PNG", "PPM") and high <= 255:
        grey = values.astype(np.uint8)
    else:
        grey = (values >> 8).astype(np.uint8)
    if tags.get(_MEANING) == 0:  # white
        grey = 255 - grey
    found = Image.fromarray(grey)
    if (clear := picture.info.get("transparency")) is not None:
        found.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
    return found


def _stretched(values: Any) -> Any:
    """Numbers of any range as 0 to 255."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif low == high:
        return np.where(np.isnan(values), 0, 128).astype(np.uint8)
    levels = np.nan_to_num(values.astype(np.float64), nan=low, posinf=high, neginf=low)
    return np.rint((levels - low) * (255 / (high - low))).astype(np.uint8)
