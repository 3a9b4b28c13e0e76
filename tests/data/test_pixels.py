import os

import numpy as np
import pytest
import torch
from PIL import Image

import processes
from corpus_cases import write_picture
from counterfoil.core.io import cache_folder
from counterfoil.data.images import DrawnPictures, PictureFiles, ResizeCrop, cached_pixels


def test_squeezed_or_cut():
    picture = Image.new("RGB", (6, 2), "red")
    picture.paste("blue", (2, 0, 4, 2))
    assert ResizeCrop(2, "center")(picture).tolist() == [
        [[0] * 2] * 2,
        [[0] * 2] * 2,
        [[255] * 2] * 2,
    ]
    squeezed = ResizeCrop(3)(picture)
    assert squeezed.shape == (3, 3, 3)
    assert squeezed.dtype == np.uint8
    assert squeezed[0, 0, 0] > squeezed[0, 0, 1]


def test_right_size_is_left_alone():
    noise = np.random.default_rng(0).integers(0, 255, (5, 5, 3), dtype=np.uint8)
    assert np.array_equal(ResizeCrop(5)(Image.fromarray(noise)), noise.transpose(2, 0, 1))


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))
    paths = [tmp_path / f"{row}.png" for row in range(3)]
    for row, path in enumerate(paths):
        write_picture(path, row)
    return paths


def test_decoded_once(files, monkeypatch):
    first = cached_pixels(PictureFiles(files), ResizeCrop(4))
    assert isinstance(first, np.memmap)
    monkeypatch.setattr(PictureFiles, "open", None)
    assert np.array_equal(cached_pixels(PictureFiles(files), ResizeCrop(4)), first)
    assert len(list((cache_folder() / "pixels").iterdir())) == 1


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
    assert not list((cache_folder() / "pixels").iterdir())


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
