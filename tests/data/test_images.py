from __future__ import annotations

import importlib.util
import io
import json
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features

import processes
from corpus_cases import write_picture, write_pictures
from counterfoil.core import rgb as rgb_module
from counterfoil.core.io import cache_folder
from counterfoil.core.rgb import rgb
from counterfoil.data import images
from counterfoil.data.images import (
    DrawnPictures,
    PictureFiles,
    ResizeCrop,
    ResizeKeepAspect,
    cached_pixels,
    is_picture_name,
    open_picture,
)
from counterfoil.data.processor import PixelProcessor
from counterfoil.data.readers import load_dataset
from picture_cases import DEEP, EPS, HOSTILE, many_scans, saved


def test_files_by_row(tmp_path):
    paths = write_pictures(tmp_path, range(3))
    files = PictureFiles(paths)
    part = files.subset(torch.tensor([2, 0]))
    assert len(part) == 2
    assert part.place(0) == str(paths[2])
    assert part.open(1).tobytes() == files.open(0).tobytes()


def test_drawn_on_demand():
    drawn = DrawnPictures(lambda row: Image.new("RGB", (2, 2), (row, 0, 0)), [4, 5, 6], "toy")
    part = drawn.subset(torch.tensor([2, 1]))
    assert [part.open(row).getpixel((0, 0))[0] for row in (0, 1)] == [6, 5]
    assert (part.place(0), len(part)) == ("toy/6", 2)


@pytest.mark.parametrize("name", DEEP)
def test_every_mode_and_format_has_its_pixels(tmp_path, name):
    """Row W1: grey of 16 bits and more was white or black."""
    content, wanted = DEEP[name]
    (tmp_path / name).write_bytes(content)
    picture = open_picture(tmp_path / name)
    assert picture.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(picture)[0], wanted)


@pytest.mark.parametrize(
    "mode, colour, wanted",
    [
        ("1", 255, (255,) * 3), ("L", 7, (7,) * 3), ("I;16", 0x1234, (0x12,) * 3),
        ("I;16B", 0x1234, (0x12,) * 3), ("I;16L", 0x1234, (0x12,) * 3), ("I", 200, (200,) * 3),
        ("I", 0x1234, (0x12,) * 3), ("I", 70_000, (128,) * 3), ("I", -5, (128,) * 3),
        ("F", 0.2, (51,) * 3), ("F", 7.5, (128,) * 3), ("F", float("nan"), (0,) * 3),
        ("F", 3e38, (128,) * 3), ("RGB", (1, 2, 3), (1, 2, 3)), ("LA", (9, 255), (9,) * 3),
        ("LA", (9, 0), (255,) * 3), ("La", (0, 0), (255,) * 3), ("PA", (9, 0), (255,) * 3),
        ("RGBA", (1, 2, 3, 255), (1, 2, 3)), ("RGBA", (0, 0, 0, 127), (128,) * 3),
        ("RGBa", (0, 0, 0, 0), (255,) * 3), ("RGBX", (1, 2, 3, 0), (1, 2, 3)),
        ("CMYK", (255, 0, 0, 0), (0, 255, 255)), ("YCbCr", (80, 128, 128), (80,) * 3),
        ("HSV", (0, 255, 255), (255, 0, 0)), ("LAB", (136, 208, 195), (250, 3, 11)),
    ],
)  # fmt: skip
def test_a_colour_of_every_mode(mode, colour, wanted):
    found = rgb(Image.new(mode, (3, 2), colour)).getpixel((1, 1))
    np.testing.assert_allclose(found, wanted, atol=2 * (mode == "LAB"))


def test_floats_are_stretched_and_what_is_no_number_is_at_an_end():
    values = np.array([[-4, 0, 6, np.nan, np.inf, -np.inf]], np.float32)
    picture = rgb(Image.fromarray(values))
    assert np.asarray(picture)[0, :, 0].tolist() == [0, 102, 255, 0, 255, 0]
    ints = np.array([[-100, 0, 900]], np.int32)
    assert np.asarray(rgb(Image.fromarray(ints)))[0, :, 0].tolist() == [0, 26, 255]


def test_a_turned_picture_of_16_bits():
    exif = Image.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    Image.fromarray(np.array([[0x1000, 0xFF00]], np.uint16)).save(out, "png", exif=exif)
    assert np.asarray(rgb(Image.open(out)))[:, 0, 0].tolist() == [0x10, 0xFF]


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("x.jpg", b"", r"is empty \(0 bytes\)"),
        ("x.jpg", b"\0\0\0\x18ftypheic" + bytes(99), r"HEIC with the ending \.jpg.*pip install"),
        ("x.png", b"\0\0\0\x18ftypmif1" + bytes(99), r"HEIC with the ending \.png.*\[phone\]"),
        ("x.HEIC", b"\0\0\0\x18ftypheix" + bytes(99), r"it is HEIC, which needs a decoder"),
        ("x.jpg", b"\0\0\0\x18ftypavif" + bytes(99), r"it is AVIF with the ending \.jpg"),
        ("x.jpg", b"\n<!DOCTYPE html><p>404", "a web page, not a picture"),
        ("x.jpg", b"<html><body>", "a web page, not a picture"),
        ("x.png", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS.*git lfs"),
        ("x.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is SVG"),
        ("x.jpg", b"\xff\xd8", "a JPEG that is damaged or cut off"),
        ("x.png", saved("png")[:-30], "damaged or cut off"),
        ("x.webp", saved("webp")[:-30], "damaged or cut off"),
    ],
)
def test_what_a_file_is_instead_of_a_picture(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    if "HEIC" in words and importlib.util.find_spec("pillow_heif"):
        words = "damaged or cut off"
    with pytest.raises(ValueError, match=f"cannot be read as a picture: .*{words}"):
        open_picture(tmp_path / name)


def test_an_avif_with_another_ending_is_read(tmp_path):
    if not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    (tmp_path / "x.jpg").write_bytes(saved("avif"))
    assert open_picture(tmp_path / "x.jpg").size == (20, 10)


def test_what_is_transparent_is_white(tmp_path):
    picture = Image.new("RGBA", (1, 2), (0, 0, 0, 0))
    picture.putpixel((0, 1), (10, 20, 30, 255))
    picture.save(tmp_path / "x.png")
    opened = open_picture(tmp_path / "x.png")
    assert [opened.getpixel((0, y)) for y in (0, 1)] == [(255, 255, 255), (10, 20, 30)]
    plain = picture.convert("P")
    plain.info["transparency"] = bytes([0] * 256)
    assert rgb(plain).getpixel((0, 0)) == (255, 255, 255)


def test_photos_stand_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    Image.new("RGB", (8, 4)).save(tmp_path / "x.jpg", exif=exif)
    assert open_picture(tmp_path / "x.jpg").size == (4, 8)


@pytest.mark.parametrize("content", [b"", b"not a picture", b"\x89PNG\r\n\x1a\n" + b"\x00" * 30])
def test_what_is_no_picture(tmp_path, content):
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.png cannot be read as a picture"):
        open_picture(tmp_path / "x.png")


@pytest.mark.parametrize("ending", ["png", "jpg", "gif", "bmp", "webp", "tif"])
def test_cut_files(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    open_picture(path)
    path.write_bytes(path.read_bytes()[:-800])
    with pytest.raises(ValueError, match="cannot be read as a picture"):
        open_picture(path)


def test_missing_folders_and_bombs(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"x\.png does not exist; an image is needed there"):
        open_picture(tmp_path / "x.png")
    with pytest.raises(ValueError, match="cannot be read as a picture"):
        open_picture(tmp_path)
    write_picture(tmp_path / "x.png", size=(20, 10))
    monkeypatch.setattr(images, "LARGEST", 199)
    with pytest.raises(ValueError, match=r"x\.png has 20 x 10 pixels; at most 199 are read"):
        open_picture(tmp_path / "x.png")


def test_names_of_pictures(tmp_path):
    names = ["a.jpg", "b.JPEG", "c.png", ".hidden.png", "d.txt", "e"]
    assert [n for n in names if is_picture_name(tmp_path / n)] == ["a.jpg", "b.JPEG", "c.png"]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data", "ignore:Tag data larger than file")
@pytest.mark.parametrize(
    "block",
    [
        b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x02\x00\x00\xff\xff\xff\xff\xff\xff",
        b"Exif\x00\x00II*\x00\x08\x00\x00\x00\xff\xff" + bytes(range(200)),
        b"Exif\x00\x00broken",
        b"Exif\x00\x00II*\x00\xff\xff\xff\x7f",
    ],
)
def test_a_broken_exif_block_is_ignored(tmp_path, block):
    Image.new("RGB", (8, 4), "red").save(tmp_path / "x.jpg", exif=block)
    picture = open_picture(tmp_path / "x.jpg")
    assert (picture.size, picture.mode) == ((8, 4), "RGB")
    assert rgb(Image.open(tmp_path / "x.jpg")).tobytes() == picture.tobytes()


def test_a_pipe_is_no_picture(tmp_path):
    """Opening one waits for ever."""
    os.mkfifo(tmp_path / "x.jpg")
    with pytest.raises(ValueError, match=r"x\.jpg cannot be read as a picture: it is no regular"):
        open_picture(tmp_path / "x.jpg")


def test_postscript_is_refused(tmp_path):
    """Pillow has a program draw it, whatever its name."""
    (tmp_path / "x.jpg").write_bytes(EPS)
    with pytest.raises(ValueError, match=r"x\.jpg is PostScript, which only a program could draw"):
        open_picture(tmp_path / "x.jpg")


def test_scans_of_thumbnails_and_films_are_not_counted(tmp_path):
    """They are in a JPEG file, but not in its picture."""
    thumbnail = many_scans(200)
    film = HOSTILE["film-behind-a-photo.jpg"]()
    (tmp_path / "a.jpg").write_bytes(saved("jpeg", comment=thumbnail))
    (tmp_path / "b.jpg").write_bytes(film)
    assert film.count(b"\xff\xda") > 100
    for name in ("a.jpg", "b.jpg"):
        assert open_picture(tmp_path / name).size == (20, 10)
    (tmp_path / "c.jpg").write_bytes(many_scans(200, progressive=False))
    with pytest.raises(ValueError, match="is a JPEG of more than 100 scans"):
        open_picture(tmp_path / "c.jpg")


def test_a_line_of_pixels_is_not_resized_to_gigabytes():
    line = Image.new("L", (1_000_000, 1))
    line.paste(255, (499_000, 0, 501_000, 1))
    assert ResizeCrop(32, "shortest")(line).min() == 255
    assert ResizeCrop(32, "shortest")(line.transpose(Image.Transpose.ROTATE_90)).min() == 255


def test_exif_that_raises_is_ignored(monkeypatch):
    def broken(picture):
        raise TypeError("unpack requires a buffer of 2 bytes")

    monkeypatch.setattr(rgb_module.ImageOps, "exif_transpose", broken)
    picture = Image.new("L", (3, 2))
    picture.getexif()[0x0112] = 6
    assert rgb(picture).size == (3, 2)


@pytest.mark.parametrize(("most", "size"), [(600, (20, 15)), (299, (10, 8)), (20, (5, 4))])
def test_large_jpeg_files_are_scaled_while_they_are_decoded(tmp_path, monkeypatch, most, size):
    write_picture(tmp_path / "x.jpg", size=(40, 30))
    monkeypatch.setattr(images, "LARGEST", most)
    assert open_picture(tmp_path / "x.jpg").size == size


def test_a_decompression_bomb_is_refused_in_megapixels(tmp_path, monkeypatch):
    write_picture(tmp_path / "x.png", size=(2000, 1500))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)
    with pytest.raises(ValueError, match=r"x\.png has more than 2 megapixels; scale it down"):
        open_picture(tmp_path / "x.png")


def test_a_jpeg_beyond_the_limit_of_pillow_is_scaled_unless_it_is_progressive(
    tmp_path, monkeypatch
):
    picture = Image.new("RGB", (2000, 1500), (10, 200, 30))
    picture.save(tmp_path / "x.jpg")
    picture.save(tmp_path / "progressive.jpg", progressive=True)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)
    monkeypatch.setattr(images, "LARGEST", 200_000)
    assert open_picture(tmp_path / "x.jpg").size == (500, 375)
    with (tmp_path / "x.jpg").open("rb") as file:
        assert images.decode_picture(file, "x").size == (500, 375)
    with pytest.raises(ValueError, match=r"progressive\.jpg has more than 2 megapixels"):
        open_picture(tmp_path / "progressive.jpg")
    monkeypatch.setattr(images, "LARGEST", 20_000)
    with pytest.raises(ValueError, match=r"x\.jpg has 2000 x 1500 pixels; at most 20,000"):
        open_picture(tmp_path / "x.jpg")


def test_phone_pictures_name_the_extra_that_reads_them(tmp_path):
    path = tmp_path / "x.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    assert is_picture_name(path)
    needs = r'pip install "counterfoil\[phone\]", or convert|cannot be'
    with pytest.raises(ValueError, match=needs):
        open_picture(path)


def test_squeezed_or_cut():
    picture = Image.new("RGB", (6, 2), "red")
    picture.paste("blue", (2, 0, 4, 2))
    cut = ResizeCrop(2, "center")(picture)
    assert cut.shape == (3, 2, 2)
    assert (cut == np.array([0, 0, 255])[:, None, None]).all()
    squeezed = ResizeCrop(3)(picture)
    assert squeezed.shape == (3, 3, 3)
    assert squeezed.dtype == np.uint8
    assert squeezed[0, 0, 0] > squeezed[0, 0, 1]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))
    return write_pictures(tmp_path, range(3))


def test_decoded_once(files, monkeypatch):
    first = cached_pixels(PictureFiles(files), ResizeCrop(4))
    assert isinstance(first, np.memmap)
    monkeypatch.setattr(PictureFiles, "open", None)
    assert np.array_equal(cached_pixels(PictureFiles(files), ResizeCrop(4)), first)
    assert len(list((cache_folder() / "pixels").iterdir())) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: b"",
        lambda content: content.replace(b"(3, 3, 4, 4)", b"(9, 1, 4, 4)"),
        lambda content: content.replace(b"|u1", b"|i1"),
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    ],
)
def test_a_damaged_cache_is_decoded_again(files, damage):
    first = np.array(cached_pixels(PictureFiles(files), ResizeCrop(4)))
    (path,) = (cache_folder() / "pixels").glob("*/*.npy")
    content = path.read_bytes()
    path.unlink()  # the file is mapped
    path.write_bytes(damage(content))
    assert np.array_equal(cached_pixels(PictureFiles(files), ResizeCrop(4)), first)
    assert path.read_bytes() == content


def test_changed_picture_is_decoded_again(files):
    first = cached_pixels(PictureFiles(files), ResizeCrop(4)).copy()
    write_picture(files[1], 99, size=(30, 30))
    second = cached_pixels(PictureFiles(files), ResizeCrop(4))
    assert not np.array_equal(second[1], first[1])
    assert np.array_equal(second[[0, 2]], first[[0, 2]])


def test_size_crop_and_order_have_files_of_their_own(files):
    pictures = PictureFiles(files)
    assert cached_pixels(pictures, ResizeCrop(4)).shape == (3, 3, 4, 4)
    assert cached_pixels(pictures, ResizeCrop(5)).shape == (3, 3, 5, 5)
    cropped = cached_pixels(pictures, ResizeCrop(4, "center"))
    assert not np.array_equal(cropped, cached_pixels(pictures, ResizeCrop(4)))
    turned = cached_pixels(pictures.subset(torch.tensor([2, 1])), ResizeCrop(4))
    assert np.array_equal(turned, cached_pixels(pictures, ResizeCrop(4))[[2, 1]])


def test_nothing_is_kept_of_pictures_that_cannot_be_read(files):
    files[2].write_bytes(b"")
    with pytest.raises(ValueError, match="cannot be read as a picture"):
        cached_pixels(PictureFiles(files), ResizeCrop(4))
    assert not list((cache_folder() / "pixels").glob("*"))


def _packed_here(paths, folder):
    os.environ["COUNTERFOIL_CACHE"] = folder
    calls = []

    def draw(row):
        calls.append(row)
        return Image.open(paths[row])

    array = cached_pixels(DrawnPictures(draw, range(len(paths)), "two"), ResizeCrop(4))
    return np.array(array), len(calls)


def test_two_processes_decode_once(files, tmp_path):
    (left, made), (right, waited) = processes.run(_packed_here, 2, files, str(tmp_path / "c"))
    assert np.array_equal(left, right)
    assert (made, waited) == (3, 0)


def drawn(width, height, transform):
    """A picture whose red tells the column and whose green the row."""
    red, green = np.meshgrid(np.arange(width), np.arange(height))
    picture = np.stack([red, green, np.full_like(red, 9)], -1).astype(np.uint8)
    return transform(Image.fromarray(picture))


def test_a_picture_of_the_size_stays_as_it_is():
    for fit in ("shortest", "longest", "squash"):
        found = drawn(8, 8, ResizeCrop(8, fit, "bicubic"))
        assert found.shape == (3, 8, 8)
        assert (found[0] == np.arange(8)).all()
        assert (np.arange(8) == found[1].T).all()


@pytest.mark.parametrize(
    "width, height, left", [(8, 4, 2), (11, 4, 4), (9, 4, 2), (4, 4, 0)]
)  # halves are rounded to the even
def test_the_middle_is_cut_out(width, height, left):
    found = drawn(width, height, ResizeCrop(4, "shortest", "bilinear"))
    assert (found[0] == left + np.arange(4)).all()
    turned = drawn(height, width, ResizeCrop(4, "shortest", "bilinear"))
    assert (left + np.arange(4) == turned[1].T).all()


@pytest.mark.parametrize("height, above", [(4, 2), (5, 1), (8, 0)])
def test_what_is_missing_is_black(height, above):
    found = drawn(8, height, ResizeCrop(8, "longest", "bicubic"))
    assert (found[:, above : above + height][2] == 9).all()
    assert not found[:, :above].any()
    assert not found[:, above + height :].any()


def test_filters_differ_and_squash_keeps_all_of_a_picture():
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (10, 40, 3), np.uint8))
    transforms = [ResizeCrop(8, "squash", name) for name in ("bicubic", "bilinear")]
    assert not np.array_equal(*(transform(noise) for transform in transforms))
    whole = drawn(40, 10, transforms[0])
    assert whole[0, 0, 0] < 5
    assert whole[0, 0, -1] > 34
    cut = drawn(40, 10, ResizeCrop(8, "shortest", "bicubic"))
    assert cut[0].min() >= 14


@pytest.mark.parametrize(
    "frame, words",
    [
        ("shortest", "'' is not a"), ("shortest cubic", "'cubic' is not a"),
        ("widest bicubic", "'widest' is not a"), ("squash bicubic x", "no way to fit"),
        ("squash bicubic 5", "resized to 5"), ("shortest bicubic 99", "resized to 99"),
        ("longest bicubic 9", "resized to 9"),
    ],
)  # fmt: skip
def test_unknown_frames(frame, words):
    with pytest.raises(ValueError, match=words):
        PixelProcessor(8, frame=frame).from_images([Image.new("RGB", (9, 9))])


def test_keys_tell_forms_apart():
    given = [(8, "shortest", "bicubic"), (8, "squash", "bicubic"), (8, "squash", "bilinear")]
    keys = {ResizeCrop(*arguments).key for arguments in [*given, (9, "squash", "bicubic")]}
    assert len(keys) == 4


def test_a_processor_prepares_pictures_so():
    picture = load_dataset("scenes:images=4").pictures.open(0)
    wanted = torch.from_numpy(ResizeCrop(6, "longest", "bilinear")(picture)).float() / 255 * 2 - 1
    seen = PixelProcessor(6, frame="longest bilinear").from_images([picture])
    torch.testing.assert_close(seen.values[0], wanted)


SIDES = [(640, 480), (480, 640), (500, 375), (384, 384), (1000, 300), (61, 62), (2000, 1999)]


def noise(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(width * height)
    return Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("sides", SIDES)
def test_pictures_are_those_of_transformers(sides, tmp_path):
    from transformers import AutoImageProcessor

    plain = {"image_processor_type": "ViltImageProcessor", "size": {"shortest_edge": 96}}
    plain |= {"size_divisor": 32, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(plain))
    processor = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    picture = noise(*sides)
    theirs = torch.as_tensor(np.array(processor(picture, return_tensors="np").pixel_values[0]))
    ours = PixelProcessor(96, divisor=32).from_images([picture])
    torch.testing.assert_close(ours.values[0], theirs.float(), rtol=1e-5, atol=1e-5)
    assert ours.mask.all()
    assert ours.mask.shape[1] == theirs.shape[1] * theirs.shape[2] // 32**2


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 64), st.integers(1, 400))
@settings(deadline=None)
def test_sides_are_multiples_and_fit(width, height, divisor, size):
    size = max(size, divisor)
    form = ResizeKeepAspect(size, divisor)
    sides = form.sides(width, height)
    assert all(side % divisor == 0 and side > 0 for side in sides)
    assert max(sides) <= max(divisor, 1333 / 800 * size)
    assert min(sides) <= size
    assert (sides[0] >= sides[1]) == (width >= height) or sides[0] == sides[1]
    assert 4 + 3 * sides[0] * sides[1] <= form.shape[0]


def test_what_was_stored_is_what_was_seen():
    form = ResizeKeepAspect(64, 16)
    for sides in SIDES:
        picture = noise(*sides)
        assert np.array_equal(form.unpack(form(picture)), form.resize(picture))


def test_pictures_of_all_shapes_are_padded():
    seen = PixelProcessor(16, divisor=4).from_images([noise(25, 25), noise(30, 20), noise(20, 31)])
    assert seen.values.shape == (3, 3, 24, 24)
    cells = seen.mask.view(3, 6, 6)
    assert cells.sum((1, 2)).tolist() == [16, 4 * 6, 6 * 4]
    assert (cells[0, :4, :4].all(), cells[1, :4, :6].all(), cells[2, :6, :4].all()) == (True,) * 3


def test_a_divisor_that_does_not_go_with_the_size():
    with pytest.raises(ValueError, match="divisor=32 does not fit size=16"):
        PixelProcessor(16, divisor=32).from_images([noise(20, 20)])
