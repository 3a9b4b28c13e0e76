"""Picture files made by code: ordinary ones, and such as harm a decoder."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable

import numpy as np
from PIL import Image

FORMATS = ("jpeg", "png", "webp", "gif", "bmp", "tiff")


def saved(kind: str, size: tuple[int, int] = (20, 10), **options: object) -> bytes:
    out = io.BytesIO()
    Image.linear_gradient("L").resize(size).convert("RGB").save(out, kind, **options)
    return out.getvalue()


def chunk(name: bytes, body: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_bomb(width: int, height: int) -> bytes:
    """A PNG of a few kilobytes that decodes to what its header says."""
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(1 + width)) for _ in range(min(height, 1000)))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", packed + packer.flush()) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros", bytes(1_000_000))
    return out.getvalue()


def png_text_bomb() -> bytes:
    """A small picture with a compressed comment of 100 megabytes."""
    body = b"Comment\x00\x00" + zlib.compress(bytes(100_000_000), 9)
    return with_chunk(b"zTXt", body)


def with_chunk(name: bytes, body: bytes) -> bytes:
    """A small PNG with another chunk behind its header."""
    plain = saved("png")
    return plain[:33] + chunk(name, body) + plain[33:]


def many_scans(count: int, size: tuple[int, int] = (20, 10), progressive: bool = True) -> bytes:
    """A JPEG whose last scan stands there again and again."""
    plain = saved("jpeg", size, progressive=progressive)
    last = plain.rindex(b"\xff\xda")
    return plain[:-2] + plain[last:-2] * count + plain[-2:]


def animated(kind: str, frames: int, side: int) -> bytes:
    """Many frames."""
    out = io.BytesIO()
    pictures = [Image.new("RGB", (side, side), (7 * frame % 256, 9, 9)) for frame in range(frames)]
    pictures[0].save(out, kind, save_all=True, append_images=pictures[1:])
    return out.getvalue()


def of_mode(mode: str, kind: str, **options: object) -> bytes:
    """A picture of another kind of pixels."""
    out = io.BytesIO()
    Image.linear_gradient("L").resize((20, 10)).convert(mode).save(out, kind, **options)
    return out.getvalue()


def exif(*entries: tuple[int, int, int, bytes], following: int = 0) -> bytes:
    """A JPEG whose EXIF block has some entries (tag, type, count, value) and a following one."""
    body = b"".join(struct.pack("<HHI", *entry[:3]) + entry[3] for entry in entries)
    directory = struct.pack("<H", len(entries)) + body + struct.pack("<I", following)
    return saved("jpeg", exif=b"Exif\0\0II*\0" + struct.pack("<I", 8) + directory)


def gif_header(width: int, height: int) -> bytes:
    """A GIF of one frame of which only the size is known."""
    plain = bytearray(saved("gif"))
    plain[6:10] = struct.pack("<HH", width, height)
    return bytes(plain)


def jpeg_header(width: int, height: int) -> bytes:
    """A JPEG with another size than its data."""
    plain = bytearray(saved("jpeg"))
    place = plain.index(b"\xff\xc0")
    plain[place + 5 : place + 9] = struct.pack(">HH", height, width)
    return bytes(plain)


def bmp(width: int, height: int, compression: int = 0, body: bytes = b"") -> bytes:
    """A bitmap of 8 bits a pixel."""
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, compression, 0, 0, 0, 0, 0)
    start = 14 + len(head) + 1024
    return struct.pack("<2sIHHI", b"BM", start, 0, 0, start) + head + bytes(1024) + body


def tiff(*entries: tuple[int, int, int, int], following: int = 0) -> bytes:
    """A TIFF of some entries (tag, type, count, value) and the place of the next directory."""
    body = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    return (
        struct.pack("<2sHIH", b"II", 42, 8, len(entries))
        + body
        + struct.pack("<I", following)
        + bytes(64)
    )


def tiff_of(width: int, height: int, **more: int) -> bytes:
    """A grey TIFF without compression, of any size."""
    entries = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: height}
    entries |= {279: more.pop("bytes", 64)} | {int(tag[1:]): value for tag, value in more.items()}
    following = entries.pop(0, 0)
    return tiff(*((tag, 4, 1, value) for tag, value in entries.items()), following=following)


def photo(kind: str, side: int, **options: object) -> bytes:
    """Noise, which compresses badly."""
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, kind, **options)
    return out.getvalue()


def png_of(width: int, height: int, bits: int, colour: int, data: bytes) -> bytes:
    """A PNG of any header and compressed data."""
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    packed = zlib.compress(data)
    chunks = chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def plain_of(side: int, mode: str, kind: str) -> bytes:
    """A large picture of one colour: some kilobytes."""
    out = io.BytesIO()
    Image.new(mode, (side, side)).save(out, kind)
    return out.getvalue()


SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>'
HTML = b"<!DOCTYPE html><html><body onload=alert(1)><img src=x onerror=alert(1)></body></html>"
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(x) run showpage\n%%EOF\n"
TAIL = b"\xff\xda\xff" * 300  # of a film that a camera appends

# Name of the file and its maker: files are some megabytes at most, and made when they are needed.
HOSTILE: dict[str, Callable[[], bytes]] = {
    "zero-bytes.jpg": bytes,
    "one-byte.png": lambda: b"\x89",
    "text.jpg": lambda: b"hello",
    "html.jpg": lambda: HTML,
    "svg.png": lambda: SVG,
    "svg-behind-a-mark.jpg": lambda: b"\xef\xbb\xbf  <svg/>",
    "pdf.jpg": lambda: b"%PDF-1.7\n1 0 obj",
    "zip.png": zipped,
    "program.gif": lambda: b"\x7fELF" + bytes(600),
    "postscript.jpg": lambda: EPS,
    "noise.webp": lambda: np.random.default_rng(1).bytes(100_000),
    **{f"header-only.{kind}": (lambda kind=kind: saved(kind, (64, 48))[:40]) for kind in FORMATS},
    **{f"half.{kind}": (lambda kind=kind: photo(kind, 64)[: 64 * 32]) for kind in FORMATS},
    **{f"cut-off.{kind}": (lambda kind=kind: photo(kind, 64)[:-30]) for kind in FORMATS},
    "bomb-2500-megapixels.png": lambda: png_bomb(50_000, 50_000),
    "bomb-100-megapixels.png": lambda: png_bomb(10_000, 10_000),
    "25-megapixels-1-bit.png": lambda: plain_of(4990, "1", "png"),
    "25-megapixels-transparent.png": lambda: plain_of(4990, "LA", "png"),
    "25-megapixels.webp": lambda: plain_of(4990, "RGB", "webp"),
    "25-megapixels.gif": lambda: plain_of(4990, "P", "gif"),
    "comment-of-100-megabytes.png": png_text_bomb,
    "profile-of-100-megabytes.png": lambda: with_chunk(
        b"iCCP", b"a\0\0" + zlib.compress(bytes(100_000_000), 9)
    ),
    "huge-canvas.gif": lambda: gif_header(65_535, 65_535),
    "huge-header.jpg": lambda: jpeg_header(65_500, 65_500),
    "7-megapixels-without-data.jpg": lambda: jpeg_header(2_600, 2_600),
    "huge-header.bmp": lambda: bmp(2_000_000_000, 2_000_000_000),
    "negative-sides.bmp": lambda: bmp(-5, -5, body=bytes(100)),
    "endless-runs.bmp": lambda: bmp(4_000, 4_000, 1, b"\xff\x00" * 60_000),
    "jumps.bmp": lambda: bmp(100, 100, 1, b"\x00\x02\xff\xff" * 10_000),
    "huge-header.tif": lambda: tiff_of(2_000_000_000, 2_000_000_000),
    "huge-strip.tif": lambda: tiff_of(100, 100, bytes=4_000_000_000),
    "directory-loop.tif": lambda: tiff_of(8, 8, t0=8),
    "many-samples.tif": lambda: tiff_of(8, 8, t277=65_000),
    "odd-compression.tif": lambda: tiff_of(8, 8, t259=34_712),
    "no-sides.tif": lambda: tiff((262, 4, 1, 1)),
    "zero-sides.png": lambda: png_of(0, 0, 8, 2, b""),
    "one-row.png": lambda: png_of(1_000_000, 1, 8, 0, bytes(1_000_001)),
    "one-column.png": lambda: png_of(1, 1_000_000, 8, 0, bytes(2_000_000)),
    "too-much-data.png": lambda: png_of(8, 8, 8, 0, bytes(30_000_000)),
    "too-little-data.png": lambda: png_of(80, 80, 8, 2, bytes(40)),
    "odd-depth.png": lambda: png_of(8, 8, 3, 2, bytes(400)),
    "bad-checksum.png": lambda: saved("png")[:30] + b"xx" + saved("png")[32:],
    "scans-200-progressive.jpg": lambda: many_scans(200),
    "scans-300-of-4-megapixels.jpg": lambda: many_scans(300, (2000, 2000)),
    "scans-96-of-25-megapixels.jpg": lambda: many_scans(86, (4990, 4990)),
    "scans-300-baseline.jpg": lambda: many_scans(300, progressive=False),
    "film-behind-a-photo.jpg": lambda: saved("jpeg", progressive=True) + TAIL,
    "exif-of-noise.jpg": lambda: saved("jpeg", exif=b"Exif\0\0broken"),
    "exif-loop.jpg": lambda: exif(following=8),
    "exif-orientation-99.jpg": lambda: exif((0x0112, 3, 1, b"\x63\0\0\0")),
    "exif-orientation-text.jpg": lambda: exif((0x0112, 2, 4, b"six\0")),
    "exif-orientation-of-4-billion.jpg": lambda: exif((0x0112, 3, 2**32 - 1, b"\6\0\0\0")),
    "exif-entry-outside.jpg": lambda: exif((0x010E, 2, 100, b"\xff\xff\xff\x7f")),
    "exif-directory-in-itself.jpg": lambda: exif((0x8769, 4, 1, b"\x08\0\0\0")),
    "animated-300-frames.gif": lambda: animated("gif", 300, 200),
    "animated-100-frames.webp": lambda: animated("webp", 100, 200),
    "animated-60-frames.png": lambda: animated("png", 60, 200),
    "grey-16-bits.png": lambda: of_mode("I;16", "png"),
    "colour-16-bits.png": lambda: png_of(8, 8, 16, 6, bytes(8 * 65)),
    "floats.tif": lambda: of_mode("F", "tiff"),
    "integers.tif": lambda: of_mode("I", "tiff"),
    "cmyk.jpg": lambda: of_mode("CMYK", "jpeg"),
    "cmyk.tif": lambda: of_mode("CMYK", "tiff"),
    "lab.tif": lambda: of_mode("LAB", "tiff"),
    "jpeg-in.tif": lambda: of_mode("RGB", "tiff", compression="jpeg"),
    "palette.png": lambda: of_mode("P", "png", transparency=3),
    "palette-of-one-colour.png": lambda: png_of(8, 8, 8, 3, bytes(8 * 9)),
    "grey-transparent.png": lambda: of_mode("LA", "png"),
    "png-and-zip.png": lambda: saved("png") + zipped(),
    "jpeg-and-html.jpg": lambda: saved("jpeg", comment=HTML) + HTML,
    "gif-and-script.gif": lambda: saved("gif") + b"*/=1;alert(1)//",
    "png-named.jpg": lambda: saved("png"),
    "jpeg-and-5-megabytes.jpg": lambda: saved("jpeg") + bytes(5_000_000),
}


# Pictures of one row of 256 steps, from dark to light, and their RGB.

RAMP = np.arange(256)
_GREY = np.repeat(RAMP[:, None], 3, 1)


def row_of_png(values: np.ndarray, kind: int, depth: int, *more: bytes) -> bytes:
    """A PNG of one row; `more` are chunks before the pixels."""
    row = values.astype(">u2" if depth == 16 else "u1").tobytes()
    header = struct.pack(">IIBBBBB", len(values), 1, depth, kind, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" + row))
    parts = (chunk(b"IHDR", header), *more, pixels, chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def row_of_tiff(
    values: np.ndarray, kind: str, bits: int, sign: int = 1, meaning: int = 1, samples: int = 1
) -> bytes:
    """A TIFF of one row of numbers of a NumPy type, whose first letter gives their order."""
    order, body = kind[0], values.astype(kind).tobytes()
    if bits == 12:
        pairs = values.reshape(-1, 2)
        high, low = pairs[:, 0], pairs[:, 1]
        packed = np.stack([high >> 4, (high & 15) << 4 | low >> 8, low & 255], -1)
        body = packed.astype("u1").tobytes()
    tags = {256: len(values), 257: 1, 258: bits, 259: 1, 262: meaning, 273: 1000, 277: samples}
    tags |= {278: 1, 279: len(body), 339: sign}
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IH", 8, len(tags))
    many, at = b"", 8 + 2 + 12 * len(tags) + 4
    for tag, value in tags.items():
        if tag in (258, 339) and samples > 2:
            head += struct.pack(order + "HHII", tag, 3, samples, at + len(many))
            many += struct.pack(order + f"{samples}H", *[value] * samples)
        else:
            head += struct.pack(order + "HHII", tag, 4, 1, value)
    return (head + bytes(4) + many).ljust(1000, b"\0") + body


def row_of_pnm(kind: str, most: int, values: np.ndarray) -> bytes:
    body = values.astype(">u2" if most > 255 else "u1").tobytes()
    return f"{kind}\n{len(values)} 1\n{most}\n".encode() + body


def _saved(picture: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


_DEEP, _ALPHA = RAMP * 257, np.where(RAMP < 100, 0, 255)
_CUT = np.where(RAMP < 100, 255, RAMP)[:, None].repeat(3, 1)  # with its dark part transparent
_COLOURS = np.stack([RAMP, RAMP[::-1], 0 * RAMP + 40], -1)
_CLEAR = _COLOURS.copy()
_CLEAR[9] = 255
_ROW = Image.fromarray(RAMP[None].astype("u1"))
_WHITE_9 = np.where(RAMP[:, None] == 9, 255, _GREY)
_PALETTE = _ROW.convert("P")
DEEP: dict[str, tuple[bytes, np.ndarray]] = {
    "grey16.png": (row_of_png(_DEEP, 0, 16), _GREY),
    "grey16-clear.png": (
        row_of_png(_DEEP, 0, 16, chunk(b"tRNS", struct.pack(">H", 9 * 257))),
        _WHITE_9,
    ),
    "grey-alpha16.png": (row_of_png(np.stack([_DEEP, 257 * _ALPHA], -1), 4, 16), _CUT),
    "rgb16.png": (row_of_png(257 * _COLOURS, 2, 16), _COLOURS),
    "rgb16-clear.png": (
        row_of_png(257 * _COLOURS, 2, 16, chunk(b"tRNS", struct.pack(">3H", *(257 * _COLOURS[9])))),
        _CLEAR,
    ),
    "rgba16.png": (
        row_of_png(257 * np.stack([RAMP, RAMP, RAMP, _ALPHA], -1), 6, 16),
        _CUT,
    ),
    "grey.png": (row_of_png(RAMP, 0, 8), _GREY),
    "grey-clear.png": (
        row_of_png(RAMP, 0, 8, chunk(b"tRNS", struct.pack(">H", 9))),
        _WHITE_9,
    ),
    "rgb-clear.png": (
        row_of_png(_COLOURS, 2, 8, chunk(b"tRNS", struct.pack(">3H", *_COLOURS[9]))),
        _CLEAR,
    ),
    "palette-clear.png": (
        _saved(_PALETTE, "png", transparency=9),
        _WHITE_9,
    ),
    "grey-alpha.png": (row_of_png(np.stack([RAMP, _ALPHA], -1), 4, 8), _CUT),
    "grey-alpha.webp": (
        _saved(
            Image.merge("RGBA", [_ROW] * 3 + [Image.fromarray(_ALPHA[None].astype("u1"))]),
            "webp",
            lossless=True,
            exact=True,
        ),
        _CUT,
    ),
    "palette-clear.gif": (_saved(_PALETTE, "gif", transparency=9), _WHITE_9),
    "grey16.tif": (row_of_tiff(_DEEP, "<u2", 16), _GREY),
    "grey16-big.tif": (row_of_tiff(_DEEP, ">u2", 16), _GREY),
    "grey16-of-pillow.tif": (_saved(Image.fromarray(_DEEP[None].astype("u2")), "tiff"), _GREY),
    "grey16-white.tif": (row_of_tiff(65535 - _DEEP, "<u2", 16, meaning=0), _GREY),
    "grey12.tif": (row_of_tiff(RAMP * 16 + 7, "<u2", 12), _GREY),
    "int32-of-16-bits.tif": (row_of_tiff(_DEEP, "<i4", 32, sign=2), _GREY),
    "int32-of-16-bits-big.tif": (row_of_tiff(_DEEP, ">i4", 32, sign=2), _GREY),
    "int32-of-8-bits.tif": (row_of_tiff(RAMP, "<i4", 32, sign=2), _GREY),
    "int32.tif": (row_of_tiff(RAMP * 2**23, "<i4", 32, sign=2), _GREY),
    "int32-negative.tif": (row_of_tiff((RAMP - 128) * 2**23, "<i4", 32, sign=2), _GREY),
    "uint32.tif": (row_of_tiff(RAMP * (2**32 // 256), "<u4", 32), _GREY),
    "int16.tif": (row_of_tiff((RAMP - 128) * 256, "<i2", 16, sign=2), _GREY),
    "float.tif": (row_of_tiff(RAMP / 255, "<f4", 32, sign=3), _GREY),
    "float-big.tif": (row_of_tiff(RAMP / 255, ">f4", 32, sign=3), _GREY),
    "float-of-16-bits.tif": (row_of_tiff(_DEEP, "<f4", 32, sign=3), _GREY),
    "float-negative.tif": (row_of_tiff(RAMP * 2.4e36 - 3e38, "<f4", 32, sign=3), _GREY),
    "rgb16.tif": (row_of_tiff(257 * _COLOURS, "<u2", 16, meaning=2, samples=3), _COLOURS),
    "rgb16-big.tif": (row_of_tiff(257 * _COLOURS, ">u2", 16, meaning=2, samples=3), _COLOURS),
    "cmyk.tif": (
        _saved(Image.fromarray((255 - _COLOURS)[None].astype("u1")).convert("CMYK"), "tiff"),
        255 - _COLOURS,
    ),
    "grey16.pgm": (row_of_pnm("P5", 65535, _DEEP), _GREY),
    "rgb16.ppm": (row_of_pnm("P6", 65535, 257 * _COLOURS), _COLOURS),
    "grey10.pgm": (row_of_pnm("P5", 1023, RAMP * 1023 // 255 + (RAMP > 0) * (RAMP < 255)), _GREY),
    "dark16.pgm": (row_of_pnm("P5", 65535, RAMP), 0 * _GREY),
    "rgb.bmp": (_saved(Image.fromarray(_COLOURS[None].astype("u1")), "bmp"), _COLOURS),
}
