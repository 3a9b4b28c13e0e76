from __future__ import annotations

import io
import random
import zlib

import pytest
from PIL import Image

from counterfoil.data.images import open_picture
from counterfoil.serve.decoding import FORMATS, PictureError, decode_upload
from picture_cases import SVG, many_scans, png_bomb, png_text_bomb, saved, zipped

PIXELS = 1_000_000


@pytest.mark.parametrize("count, refused", [(1, False), (200, True)])
def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(tmp_path, count, refused):
    content, path = many_scans(count), tmp_path / "x.jpg"
    path.write_bytes(content)
    if not refused:
        assert decode_upload(content, PIXELS).size == open_picture(path).size == (20, 10)
        return
    with pytest.raises(PictureError, match="more than 100 scans") as error:
        decode_upload(content, PIXELS)
    assert error.value.status_code == 413
    with pytest.raises(ValueError, match=r"x\.jpg is a JPEG of more than 100 scans"):
        open_picture(path)


def test_a_broken_exif_block_of_an_upload_is_ignored():
    content = saved("jpeg", exif=b"Exif\0\0broken")
    assert decode_upload(content, PIXELS).size == (20, 10)


@pytest.mark.parametrize("kind", FORMATS)
def test_pictures_are_decoded(kind):
    found = decode_upload(saved(kind), PIXELS)
    assert found.mode == "RGB"
    assert found.size == (20, 10)


def test_a_picture_is_upright_and_on_white():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode_upload(saved("jpeg", exif=exif), PIXELS).size == (10, 20)
    out = io.BytesIO()
    Image.new("RGBA", (3, 3), (0, 0, 0, 0)).save(out, "png")
    assert decode_upload(out.getvalue(), PIXELS).getpixel((1, 1)) == (255, 255, 255)


REFUSED = {
    "nothing": (b"", 400, "is empty"),
    "text": (b"hello", 415, "no picture"),
    "zip": (zipped(), 415, "no picture"),
    "gzip": (zlib.compress(b"x") and b"\x1f\x8b\x08" + bytes(50), 415, "no picture"),
    "svg": (SVG, 415, "no picture"),
    "svg behind a mark": (b"\xef\xbb\xbf  <svg/>", 415, "no picture"),
    "pdf": (b"%PDF-1.7", 415, "no picture"),
    "program": (b"\x7fELF" + bytes(60), 415, "no picture"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 415, "no picture"),
    "bomb": (lambda: png_bomb(50_000, 50_000), 413, "pixels are accepted"),
    "bomb that pillow warns of": (lambda: png_bomb(10_000, 10_000), 413, "pixels are accepted"),
    "large": (saved("png", (1001, 1000)), 413, "1001 x 1000 pixels; at most 1,000,000"),
    "a line": (saved("png", (1, 70_000)), 413, "a side of 70,000 pixels; at most 65,535"),
    "comment bomb": (png_text_bomb, 422, "damaged"),
    "truncated png": (saved("png", (300, 300))[:200], 422, "damaged or cut off"),
    "truncated gif": (saved("gif", (300, 300))[:-400], 422, "damaged or cut off"),
    "truncated webp": (saved("webp", (300, 300))[:60], 422, "damaged or cut off"),
    "less than a header": (b"\x89PNG\r\n\x1a\n", 415, "no picture"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_are_refused_in_one_sentence(name):
    content, status, fragment = REFUSED[name]
    content = content() if callable(content) else content
    with pytest.raises(PictureError, match=fragment) as told:
        decode_upload(content, PIXELS)
    assert told.value.status_code == status
    assert "\n" not in told.value.detail


def answered(content: bytes) -> bool:
    """Whether a picture was decoded; False if it was refused with 4xx."""
    try:
        found = decode_upload(content, PIXELS)
    except PictureError as error:
        return not 400 <= error.status_code < 500
    return found.size == (64, 48)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6])
def test_truncated_files_are_refused(kind, share):
    content = saved(kind, (64, 48))
    assert not answered(content[: int(share * len(content))])


def test_random_bytes_after_a_valid_header():
    dice = random.Random(0)
    for kind in FORMATS:
        start = saved(kind, (64, 48))
        assert answered(start)
        for _ in range(40):
            spoilt = bytearray(start)
            for _ in range(12):
                spoilt[dice.randrange(8, len(spoilt))] = dice.randrange(256)
            answered(bytes(spoilt))
