import numpy as np
import pytest
import torch
from PIL import Image

from corpus_cases import write_picture
from counterfoil.data import images
from counterfoil.data.images import DrawnPictures, PictureFiles, is_picture_name, open_picture, rgb


def test_files_by_row(tmp_path):
    paths = [tmp_path / f"{row}.png" for row in range(3)]
    for row, path in enumerate(paths):
        write_picture(path, row)
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


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "LA", "CMYK", "I;16", "YCbCr", "F"])
def test_every_mode_becomes_rgb(tmp_path, mode):
    picture = Image.new(mode, (3, 2))
    assert rgb(picture).mode == "RGB"
    assert rgb(picture).size == (3, 2)


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
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 150)
    with pytest.raises(ValueError, match=r"x\.png"):
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


def test_exif_that_raises_is_ignored(monkeypatch):
    def broken(picture):
        raise TypeError("unpack requires a buffer of 2 bytes")

    monkeypatch.setattr(images.ImageOps, "exif_transpose", broken)
    assert rgb(Image.new("L", (3, 2))).size == (3, 2)


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


def test_phone_pictures_name_the_extra_that_reads_them(tmp_path):
    path = tmp_path / "x.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    assert is_picture_name(path)
    with pytest.raises(
        ValueError, match=r'pip install "counterfoil\[phone\]", or convert|cannot be'
    ):
        open_picture(path)
