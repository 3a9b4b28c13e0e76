from __future__ import annotations

import numpy as np
import pytest
import torch

from counterfoil.data.readers import load_dataset
from counterfoil.negatives.store import NegativeStore

SCENES = "scenes:images=36"


def opened(folder):
    return NegativeStore.open(folder, fingerprint=load_dataset(SCENES).split("train").fingerprint)


@pytest.fixture
def negatives(printed):
    return lambda *words: printed("negatives", *words, "--data", SCENES)


def test_lists_go_to_aoqs_files_and_come_back(models, negatives, tmp_path):
    lists = opened(models / "run/lists").lists
    shown = negatives("export", models / "run/lists", "--output", tmp_path / "aoq")
    assert "20 texts of each of 24 images and 5 images of each of 120 texts" in shown
    assert "reads 300 texts and 60 images" in shown
    assert np.load(tmp_path / "aoq/i2t_scenes.npy").shape == (24, 20)
    assert np.load(tmp_path / "aoq/t2i_scenes.npy").dtype == np.int32
    assert "from" in negatives("import", tmp_path / "aoq", "--output", tmp_path / "lists")
    again = opened(tmp_path / "lists")
    assert torch.equal(again.lists.texts, lists.texts)
    assert torch.equal(again.lists.images, lists.images)
    assert again.manifest.sources == ()
    assert not again.manifest.scored


def test_exported_lists_are_cut_and_named_as_asked(models, negatives, tmp_path):
    asked = ("--texts", "7", "--images-per-text", "3", "--name", "f30k")
    negatives("export", models / "run/lists", "--output", tmp_path, *asked)
    lists = opened(models / "run/lists").lists
    assert np.array_equal(np.load(tmp_path / "i2t_f30k.npy"), lists.texts[:, :7])
    assert np.array_equal(np.load(tmp_path / "t2i_f30k.npy"), lists.images[:, :3])
    negatives("export", models / "run/lists", "--output", tmp_path, "--name", "coco")
    negatives("import", tmp_path, "--output", tmp_path / "lists", "--name", "f30k")
    assert opened(tmp_path / "lists").lists.texts.shape == (24, 7)


def test_the_released_depths_are_the_default():
    import typer.main

    from counterfoil.cli import app

    found = {p.name: p.default for p in typer.main.get_command(app).commands["negatives"].commands[
        "export"].params}  # fmt: skip
    assert (found["texts"], found["hard_images"]) == (2000, 400)
