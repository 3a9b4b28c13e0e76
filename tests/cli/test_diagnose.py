from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

import recipes_cases
from corpus_cases import karpathy_image, random_array, write_karpathy
from counterfoil.data.readers import load_dataset
from counterfoil.data.scenes import graphs
from counterfoil.data.scenes.truth import is_true
from counterfoil.model import load_model
from counterfoil.negatives.store import NegativeStore
from recipes_cases import run

SCENES = "scenes:images=36"


@pytest.fixture
def told(capsys, tmp_path):
    """What a diagnosis printed, its numbers and its page."""

    def told(store: object, *words: object, data: object = SCENES):
        page, out = tmp_path / "page.html", tmp_path / "numbers.json"
        capsys.readouterr()
        code = run("diagnose", store, "--data", data, "--output", page, "--json", out, *words)
        shown = capsys.readouterr()
        assert code == 0, shown.err
        return " ".join(shown.out.split()), json.loads(out.read_text()), page.read_text()

    return told


def test_the_numbers_are_those_of_the_lists(models, told):
    name = models / "run/online"
    shown, plain, page = told(models / "run/lists", "--model", name)
    dataset = load_dataset(SCENES).split("train")
    lists = NegativeStore.open(models / "run/lists", fingerprint=dataset.fingerprint).lists
    member = load_model(name).embed(dataset)
    grid = member.model.score_matrix(member.images, member.texts).detach()
    anchors = torch.arange(120)
    negative = grid[
        dataset.text_to_image[anchors].unsqueeze(1), lists.texts[dataset.text_to_image].long()
    ]
    gaps = negative - grid[dataset.text_to_image, anchors].unsqueeze(1)
    whole = plain["wrong texts of images"]["ranks"][-1]
    assert whole["pairs"] == 120 * 20
    assert whole["gap"] == pytest.approx(gaps.median().item(), abs=2e-3)
    share = 100 * (gaps >= 0).float().mean().item()
    assert whole["suspected"]["above positive"] == pytest.approx(share, abs=0.5)
    shown_scenes = graphs(dataset)
    true = [
        is_true(dataset.texts[t], shown_scenes[int(dataset.text_to_image[a])])
        for a in anchors.tolist()
        for t in lists.texts[dataset.text_to_image[a]].tolist()
    ]
    assert whole["suspected"]["true"] == pytest.approx(100 * sum(true) / len(true))
    assert "120 captions looked at, drawn with seed 0" in shown
    assert f"scores of {name} (single model, trained with seed 0), in lists as kept" in shown
    assert "To reproduce" in page
    assert page.count('class="card retrieval"') == 12
    assert "Wrong images of texts" in page
    assert "data:image/" in page


def test_another_models_scores_are_computed(models, told):
    shown, plain, _ = told(models / "run/lists", "--model", models / "pixels")
    assert "as kept" not in shown
    assert plain["models"] == [str(models / "pixels")]
    dataset = load_dataset(SCENES).split("train")
    lists = NegativeStore.open(models / "run/lists", fingerprint=dataset.fingerprint).lists
    member = load_model(models / "pixels").embed(dataset)
    grid = member.model.score_matrix(member.images, member.texts).detach()
    found = grid[lists.images.long(), torch.arange(120).unsqueeze(1)]
    gaps = found - grid[dataset.text_to_image, torch.arange(120)].unsqueeze(1)
    whole = plain["wrong images of texts"]["ranks"][-1]
    assert whole["gap"] == pytest.approx(gaps.median().item(), abs=1e-5)


def test_without_a_model_scores_are_not_compared(models, told):
    shown, plain, page = told(models / "run/lists", "--samples", "30", "--examples", "2")
    assert "no model, so no score of a true pair" in shown
    assert "30 captions" in shown
    assert "median gap" not in shown
    assert "above positive" not in plain["wrong texts of images"]["estimates"]
    assert page.count('class="card retrieval"') == 4
    assert not re.search(r"\bnan\b", page)


def test_lists_without_scores_pictures_or_captions(told, tmp_path, capsys):
    """Ready-made vectors: nothing to read and nothing to see."""
    np.save(tmp_path / "images.npy", random_array(6, 8))
    np.save(tmp_path / "texts.npy", random_array(12, 8))
    lists = ("--texts", "4", "--images-per-text", "2")
    where = ("--split", "all", "--output", tmp_path / "lists")
    assert run("mine", "vectors", "--data", tmp_path, *where, *lists) == 0
    _, plain, page = told(tmp_path / "lists", "--model", "vectors", data=tmp_path)
    assert list(plain["wrong texts of images"]["estimates"]) == ["above positive"]
    assert plain["wrong texts of images"]["hubs"]["first"] == 4
    assert page.count('class="card retrieval"') > 2


def test_captions_are_escaped(models, told, tmp_path):
    split = ["train", "train", "dev", "test"]
    images = [
        karpathy_image(
            f"{n}.png", split[n % 4], [f"<b>[red]dog</b> {n}", f"[red]snow {n}"], first=2 * n
        )
        for n in range(12)
    ]
    write_karpathy(tmp_path / "photos", images)
    recipes_cases.pixel_model(tmp_path / "model")
    out = ("--data", tmp_path / "photos", "--output", tmp_path / "lists", "--texts", "4")
    assert run("mine", tmp_path / "model", *out, "--images-per-text", "2") == 0
    shown, _, page = told(tmp_path / "lists", data=tmp_path / "photos")
    assert "<b>[red]dog" not in page
    assert "&lt;b&gt;[red]dog" in page
    assert "[red]" in shown
