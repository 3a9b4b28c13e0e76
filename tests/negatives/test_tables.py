"""Mined negatives as tables of `datasets`: rows that are known by heart, and pictures as ours."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import export_cases
from counterfoil.core.types import Pairs
from counterfoil.data.images import DrawnPictures, PictureFiles, as_files
from counterfoil.data.readers import load_dataset
from counterfoil.negatives.mining import HardNegatives
from counterfoil.negatives.store import NegativeStore


@pytest.fixture
def data(tmp_path):
    return export_cases.dataset(tmp_path / "photos")


@pytest.fixture
def negatives(tmp_path, data):
    return made(tmp_path, data)


def made(tmp_path, data) -> HardNegatives:
    store = export_cases.mined(tmp_path / "lists", data)
    opened = NegativeStore.open(store, fingerprint=data.fingerprint, relation=data.relation)
    return HardNegatives(opened, data)


def rows(table, data) -> list[tuple]:
    """Rows with texts and pictures as their rows in the data set."""
    texts = {text: row for row, text in enumerate(data.texts)}
    pictures = {data.pictures.open(row).tobytes(): row for row in range(len(data))}

    def known(value):
        if isinstance(value, Image.Image):
            assert value.mode == "RGB"
            return pictures[value.tobytes()]
        return texts.get(value, value)

    return [tuple(map(known, row.values())) for row in table]


def test_triplets(negatives, data):
    table = negatives.to_dataset()
    assert table.column_names == ["anchor", "positive", "negative"]
    wanted = [
        (text, image, wrong)
        for text, image in enumerate([0, 0, 2, 3, 3, 3])
        for wrong in export_cases.IMAGES[text]
        if wrong >= 0
    ]
    assert rows(table, data) == wanted
    table = negatives.to_dataset("triplet", "image-to-text", most=1)
    assert rows(table, data) == [
        (image, text, export_cases.TEXTS[image][0]) for text, image in enumerate([0, 0, 2, 3, 3, 3])
    ]


def test_tuples_have_as_many_negatives_as_the_longest_list(negatives, data, capsys):
    table = negatives.to_dataset("n-tuple")
    assert table.column_names == ["anchor", "positive", "negative_1", "negative_2"]
    full = [text for text in range(6) if -1 not in export_cases.IMAGES[text]]
    owner = data.text_to_image.tolist()
    assert rows(table, data) == [(t, owner[t], *export_cases.IMAGES[t]) for t in full]
    assert "1 query of text-to-image with fewer than 2 negatives" in capsys.readouterr().err
    assert len(negatives.to_dataset("n-tuple", most=1)) == 5


def test_labelled_pairs(negatives, data):
    table = negatives.to_dataset("labeled-pair", "image-to-text", most=1)
    assert table.column_names == ["anchor", "candidate", "label"]
    true = {(image, text, 1) for text, image in enumerate([0, 0, 2, 3, 3, 3])}
    wrong = {(image, export_cases.TEXTS[image][0], 0) for image in (0, 2, 3)}
    assert set(rows(table, data)) == true | wrong
    assert len(table) == len(true | wrong)


def test_both_directions_are_two_tables(negatives, data):
    both = negatives.to_dataset("triplet", "both")
    assert list(both) == ["text-to-image", "image-to-text"]
    for direction, table in both.items():
        assert rows(table, data) == rows(negatives.to_dataset("triplet", direction), data)


def test_confirmed_pairs_are_positives(tmp_path, data):
    judged = replace(data, extra_positives=Pairs(torch.tensor([1]), torch.tensor([0])))
    table = made(tmp_path, judged).to_dataset("n-tuple", most=1)
    assert rows(table, judged)[:2] == [(0, 0, 3), (0, 1, 3)]


def test_ids_where_pictures_are_not_wanted(negatives, data):
    table = negatives.to_dataset(images=False)
    assert table[0] == {"anchor": data.texts[0], "positive": "a 0%", "negative": "a3"}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"form": "pairs"}, "'pairs' is not a form of negatives"),
        ({"direction": "t2i"}, "'t2i' is not a direction"),
        ({"most": 0}, "most=0: a query needs at least one negative"),
    ],
)
def test_wrong_options(negatives, options, message):
    with pytest.raises(ValueError, match=message):
        negatives.to_dataset(**options)


def test_without_pictures_or_datasets(tmp_path, negatives, monkeypatch):
    bare = made(tmp_path / "bare", export_cases.dataset())
    with pytest.raises(ValueError, match="images=False gives the ids"):
        bare.to_dataset()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install .counterfoil\[hf\]"):
        negatives.to_dataset()


def test_files_of_pictures_look_as_they_do_here(tmp_path):
    """What other programs would see otherwise is written anew; the rest stays where it is."""
    grey = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    clear = np.zeros((16, 16, 4), np.uint8)
    clear[:8] = 255
    turned = Image.fromarray(np.arange(16 * 8 * 3, dtype=np.uint8).reshape(16, 8, 3))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    turned.save(tmp_path / "plain.png")
    Image.fromarray(grey).save(tmp_path / "deep.png")
    Image.fromarray(clear).save(tmp_path / "clear.png")
    files = PictureFiles(
        [tmp_path / f"{n}" for n in ("turned.jpg", "plain.png", "deep.png", "clear.png")]
    )
    found = as_files(files)
    assert found[:2] == files.paths[:2]
    assert not {*found[2:]} & {*files.paths}
    assert as_files(files) == found
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict(
        {"image": list(map(str, found))}, features=datasets.Features(image=datasets.Image("RGB"))
    )
    for row in range(4):
        np.testing.assert_array_equal(table[row]["image"], files.open(row))
    with pytest.raises(ValueError, match=r"gone\.png does not exist"):
        as_files(PictureFiles([tmp_path / "gone.png"]))


def test_pictures_in_no_file_of_their_own(tmp_path):
    drawn = DrawnPictures(lambda row: Image.new("RGB", (4, 4), (row, 0, 0)), range(3), "reds")
    for row, path in enumerate(as_files(drawn)):
        assert Image.open(path).getpixel((0, 0)) == (row, 0, 0)
    datasets = pytest.importorskip("datasets")
    drawn.open(1).save(tmp_path / "red.jpg")
    content = (tmp_path / "red.jpg").read_bytes()
    table = datasets.Dataset.from_dict(
        {"image": [{"bytes": content, "path": None}], "caption": ["red"]},
        features=datasets.Features(image=datasets.Image(), caption=datasets.Value("string")),
    )
    table.save_to_disk(tmp_path / "saved")
    (path,) = as_files(load_dataset(tmp_path / "saved").pictures)
    assert path.read_bytes() == content
