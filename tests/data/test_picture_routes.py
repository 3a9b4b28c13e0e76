"""A picture has the same pixels wherever it is opened; row W1."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from corpus_cases import write_shard
from counterfoil.data.checks import check_dataset
from counterfoil.data.images import PictureFiles, decode_picture
from counterfoil.data.processor import PixelProcessor
from counterfoil.data.readers import load_dataset
from counterfoil.model import open_image
from counterfoil.report import page
from counterfoil.serve import decoding
from picture_cases import DEEP

# one of each kind; every format and mode is in test_images.py
KINDS = [
    "grey16.png", "grey16-clear.png", "grey-alpha16.png", "rgb16-clear.png", "grey16-big.tif",
    "grey16-white.tif", "int32.tif", "float.tif", "palette-clear.gif", "grey-alpha.webp",
]  # fmt: skip


def of_file(name, folder):
    (folder / name).write_bytes(DEEP[name][0])
    return PictureFiles([folder / name]).open(0)


def of_shard(name, folder):
    write_shard(folder / "x.tar", {f"0.{name.rpartition('.')[2]}": DEEP[name][0], "0.txt": "a"})
    return load_dataset(folder / "x.tar").pictures.open(0)


def of_parquet(name, folder):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    rows = {"image": [{"bytes": DEEP[name][0], "path": None}], "caption": ["a"]}
    features = datasets.Features(image=datasets.Image(), caption=datasets.Value("string"))
    datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / "x.parquet")
    return load_dataset(folder / "x.parquet").pictures.open(0)


def of_paths_in_parquet(name, folder):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    (folder / name).write_bytes(DEEP[name][0])
    rows = {"image": [str(folder / name)], "caption": ["a"]}
    datasets.Dataset.from_dict(rows).to_parquet(folder / "x.parquet")
    return load_dataset(folder / "x.parquet").pictures.open(0)


def of_upload(name, folder):
    return decoding.decode_upload(DEEP[name][0], 1000)


def of_bytes(name, folder):
    return open_image(DEEP[name][0])


def of_whole_pictures(name, folder):
    seen = PixelProcessor(300, whole=True).from_images([Image.open(io.BytesIO(DEEP[name][0]))])
    return Image.fromarray(seen.values[0, :, :1, :256].permute(1, 2, 0).numpy())


def of_model(name, folder):
    """As a model reads it, whose size the picture has."""
    row = Image.open(io.BytesIO(DEEP[name][0]))
    seen = PixelProcessor(256, (0, 0, 0), (1, 1, 1), frame="longest bicubic").from_images([row])
    values = (seen.values[0] * 255).round().byte()
    return Image.fromarray(values[:, 127:128].permute(1, 2, 0).numpy())


ROUTES = [
    of_file, of_shard, of_parquet, of_paths_in_parquet, of_upload, of_bytes, of_whole_pictures,
    of_model,
]  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("route", ROUTES)
def test_every_route_gives_the_pixels(route, name, tmp_path):
    found = route(name, tmp_path)
    assert found.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(found)[0], DEEP[name][1])


@pytest.mark.parametrize("name", KINDS)
def test_thumbnails_show_the_picture(name):
    """Of the page and of reports; JPEG is near."""
    content, wanted = DEEP[name]
    address = page.thumbnail(Image.open(io.BytesIO(content)), 256)
    served = decoding.thumbnail(decode_picture(io.BytesIO(content), name))
    for shown in (base64.b64decode(address.partition(",")[2]), served):
        found = np.asarray(Image.open(io.BytesIO(shown)).convert("RGB"))[0].astype(int)
        assert np.abs(found - wanted).mean() < 12


def test_different_pictures_of_16_bits_are_not_the_same(tmp_path):
    """`data check` said that two were the same picture, as both were white."""
    rng = np.random.default_rng(0)
    for row in range(4):
        noise = rng.integers(300, 65536, (8, 8)).astype(np.uint16)
        Image.fromarray(noise).save(tmp_path / f"{row}.png")
        (tmp_path / f"{row}.txt").write_text(f"picture {row}")
    assert not check_dataset(load_dataset(tmp_path)).same_images
