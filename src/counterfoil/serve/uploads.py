"""Uploaded bytes as a picture, or a sentence why they are none."""

from __future__ import annotations

import io

from PIL import Image, UnidentifiedImageError

from counterfoil.corpus.pictures import rgb
from counterfoil.serve.refused import Refused

KINDS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
ALLOWED = "JPEG, PNG, WebP, GIF, BMP and TIFF are"
BROKEN = "the picture is damaged or cut off; save it again and retry"
_OTHERS = (
    (b"PK\x03\x04", "a zip archive"),
    (b"PK\x05\x06", "a zip archive"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"%PDF", "a PDF document"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
)


def picture(content: bytes, pixels: int) -> Image.Image:
    """An uploaded picture in RGB, fully decoded; its size is judged before.

    Args:
        content: the file.
        pixels: that it may have.

    Raises:
        Refused: it is empty, of another kind, too large once decoded, or damaged.
    """
    if not content:
        raise Refused(400, "the uploaded file is empty; choose a picture")
    try:
        with Image.open(io.BytesIO(content), formats=KINDS) as found:
            if found.width * found.height > pixels:
                raise _too_large(f"has {found.width} x {found.height} pixels", pixels)
            return rgb(found)
    except Refused:
        raise
    except UnidentifiedImageError:
        raise Refused(415, f"the upload is {_kind(content)}; {ALLOWED} accepted") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large("is too large", pixels) from None
    except Exception:  # whatever a decoder raises at foreign bytes, it is the bytes' fault
        raise Refused(422, BROKEN) from None


def _too_large(what: str, pixels: int) -> Refused:
    return Refused(413, f"the picture {what}; at most {pixels:,} pixels are accepted")


def _kind(content: bytes) -> str:
    start = content[:1024].lstrip(b"\xef\xbb\xbf \t\r\n")
    for magic, name in _OTHERS:
        if content.startswith(magic):
            return name
    if start.startswith((b"<svg", b"<?xml")) or b"<svg" in start:
        return "an SVG drawing"
    return "no picture that can be read"
