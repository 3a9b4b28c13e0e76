"""Lists that were mined from other pictures or features of the same captions; third round, 1."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import pytest
import torch

import recipes_cases
from artifact_cases import resealed
from corpus_cases import random_array, small_corpus, write_picture, write_shard
from counterfoil.data.contents import ContentDigests
from counterfoil.data.features import FeatureArray
from counterfoil.data.images import PictureFiles
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.negatives.aoq_format import open_lists
from counterfoil.negatives.mining import mine_hard_negatives
from counterfoil.negatives.sources import open_negatives
from counterfoil.negatives.store import NegativeStore

COUNT = 6


def photos(folder, seed=0, ending="bmp"):
    """A folder of pictures of one size in bytes, with captions."""
    for row in range(COUNT):
        write_picture(folder / "train" / f"{row}.{ending}", seed + row)
        (folder / "train" / f"{row}.txt").write_text(f"a dog {row}")
    return folder


@pytest.fixture
def mined(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))
    model = load_model(recipes_cases.pixel_model(tmp_path / "model"))
    data = load_dataset(photos(tmp_path / "d"))["train"]
    mine_hard_negatives(model, data, texts_per_image=2, images_per_text=2).save(tmp_path / "lists")
    return tmp_path


def said(capsys, folder, data):
    """What is said when lists are opened for training, by a path and by a recipe."""
    capsys.readouterr()
    first = open_negatives(folder, data)
    shown = " ".join(capsys.readouterr().err.split())
    assert torch.equal(open_lists(folder, data).texts, first.texts)
    return shown


def test_other_pictures_are_said(mined, capsys):
    photos(mined / "d", seed=50)
    shown = said(capsys, mined / "lists", load_dataset(mined / "d")["train"])
    assert "the pictures of d (train) are others than those that the lists in" in shown
    assert "mine again" in shown


def test_pictures_of_another_size_in_a_shard_are_said(mined, capsys):
    members = {}
    for row in range(COUNT):
        members |= {f"train/{row}.jpg": row, f"train/{row}.txt": f"a dog {row}"}
    data = load_dataset(write_shard(mined / "train-0.tar", members))
    manifest = NegativeStore.open(
        mined / "lists", fingerprint=load_dataset(mined / "d")["train"].fingerprint
    ).manifest
    manifest.check_contents(data, "they")
    assert "the pictures of train-0 (all) are others" in " ".join(capsys.readouterr().err.split())


def test_copies_of_another_time_are_the_same(mined, capsys):
    shutil.copytree(mined / "d", mined / "elsewhere" / "d")
    for path in (mined / "elsewhere" / "d").rglob("*"):
        os.utime(path, (1, 1))
    assert said(capsys, mined / "lists", load_dataset(mined / "elsewhere" / "d")["train"]) == ""
    members = {p.name: p.read_bytes() for p in sorted((mined / "d" / "train").iterdir())}
    copied = load_dataset(write_shard(mined / "train-1.tar", members))
    assert ContentDigests.of(copied) == ContentDigests.of(load_dataset(mined / "d"))


def test_lists_of_before_are_not_compared(mined, capsys):
    path = mined / "lists" / "manifest.json"
    plain = json.loads(path.read_text())
    del plain["contents"]
    path.write_text(json.dumps(plain))
    resealed(mined / "lists")
    photos(mined / "d", seed=50)
    assert said(capsys, mined / "lists", load_dataset(mined / "d")["train"]) == ""


def digests(**changes):
    return ContentDigests.of(replace(small_corpus((1, 1, 1)), **changes))


def test_features_are_told_apart():
    first, other = digests(), digests(features=FeatureArray.of(random_array(3, 3, 4, seed=9)))
    assert first.exchanged(other) == ("features",)
    assert first.exchanged(digests()) == ()
    assert first.exchanged(digests(features=None)) == ()
    with_texts = digests(text_features=FeatureArray.of(random_array(3, 4)))
    assert first.exchanged(with_texts) == ("features",)


def test_every_picture_counts_by_its_size(tmp_path):
    """More than are decoded for the digest."""
    paths = [
        write_picture(tmp_path / f"{row}.png", row) or tmp_path / f"{row}.png" for row in range(40)
    ]
    corpus = small_corpus((1,) * 40)
    first = ContentDigests.of(replace(corpus, pictures=PictureFiles(paths)))
    paths[13].write_bytes(paths[13].read_bytes() + b"\0")
    assert first.exchanged(ContentDigests.of(replace(corpus, pictures=PictureFiles(paths)))) == (
        "pictures",
    )


def test_vectors_that_were_written_of_other_pictures_are_not_kept(mined):
    model = load_model(mined / "model")
    model.write_vectors(load_dataset(mined / "d"), mined / "vectors")
    model.write_vectors(load_dataset(mined / "d"), mined / "vectors")
    photos(mined / "d", seed=50)
    with pytest.raises(ValueError, match="contents"):
        model.write_vectors(load_dataset(mined / "d"), mined / "vectors")
