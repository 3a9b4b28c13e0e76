"""Explanations by opened models, of images of data and of pictures."""

from __future__ import annotations

import pytest
import torch

import counterfoil
import explain_cases as cases
import recipes_cases
from corpus_cases import write_picture
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.explain import (
    ExplainConfig,
    describe_missing_heads,
    explain,
    explain_dataset,
)
from counterfoil.evaluation.read_image import find_image_row
from counterfoil.model import Model, load_model


@pytest.fixture(scope="module")
def dataset():
    return load_dataset(cases.SCENES)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    return load_model(cases.saved(tmp_path_factory.mktemp("models") / "words"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Model:
    return load_model(recipes_cases.pixel_model(tmp_path_factory.mktemp("models") / "pixels"))


def test_an_image_of_data(model, dataset):
    texts = ["a red circle", "A blue star above a square."]
    found = counterfoil.explain(model, cases.IMAGE, texts, dataset=dataset, threshold=0.3)
    row = torch.tensor([find_image_row(dataset, cases.IMAGE)])
    images = model.model.encode_images(model.processor.image_processor.from_dataset(dataset, row))
    scores = model.model.score_matrix(images, model.encode(texts))[0].sigmoid()
    assert [one.score for one in found] == pytest.approx(scores.tolist(), abs=1e-6)
    assert [one.caption for one in found] == texts
    assert all(one.doubts for one in found)


def test_a_picture_and_its_path(plain, tmp_path):
    write_picture(tmp_path / "a.png")
    path = tmp_path / "a.png"
    (one,) = explain(plain, path, ["a red dog"])
    assert explain(plain, str(path), ["a red dog"]) == [one]
    score, less = plain.score(path, ["a red dog", "a dog"]).tolist()
    assert one.score == pytest.approx(score, abs=1e-6)
    assert one.words[1].gain == pytest.approx(less - score, abs=1e-6)


def test_a_corpus_is_explained_caption_by_caption(model, dataset, monkeypatch):
    test = dataset.split("test")
    monkeypatch.setattr("counterfoil.evaluation.explain.CAPTION_BATCH", 7)
    plan = ExplainConfig(threshold=0.4, corrections=2)
    found = list(explain_dataset(model, test, plan))
    assert [row for row, _ in found] == list(range(len(test.texts)))
    for row, one in found[::9]:
        image = test.image_ids[int(test.text_to_image[row])]
        (alone,) = explain(
            model, image, [test.texts[row]], dataset=test, threshold=0.4, corrections=2
        )
        assert one.caption == test.texts[row]
        assert one.score == pytest.approx(alone.score, abs=1e-6)
        assert [w.doubt for w in one.words] == pytest.approx(
            [w.doubt for w in alone.words], abs=1e-6
        )
        assert all(len(word.corrections) <= 2 for word in one.words)


def test_what_a_model_lacks(model, plain, tmp_path):
    assert describe_missing_heads(model) == ""
    assert "no head that doubts or corrects words" in describe_missing_heads(plain)
    doubts = load_model(cases.saved(tmp_path / "doubts", ("rank", "doubt")))
    assert "no head that corrects words" in describe_missing_heads(doubts)


def test_captions_that_cannot_be_explained(model, plain, dataset):
    with pytest.raises(ValueError, match="the caption is empty"):
        explain(model, cases.IMAGE, ["a dog", " "], dataset=dataset)
    with pytest.raises(ValueError, match=r"too long for .*words, which reads it up to '.*circle'"):
        explain(model, cases.IMAGE, ["a circle " * 16], dataset=dataset)
    with pytest.raises(ValueError, match=r"too long for .*pixels"):
        explain(plain, cases.load_dataset("scenes:images=12").pictures.open(0), ["dog " * 61])
    with pytest.raises(ValueError, match=r"'nothing' is not an image of scenes.*36 in all"):
        explain(model, "nothing", ["a dog"], dataset=dataset)
    with pytest.raises(ValueError, match="reads stored features"):
        explain(model, dataset.pictures.open(0), ["a dog"])
