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
