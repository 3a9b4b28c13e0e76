"""The everyday API: one function per task."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import counterfoil as cf

TINY = Path(__file__).parents[1] / "examples" / "_tiny.py"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("_tiny", TINY)
    tiny = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tiny)
    return cf.load_model(tiny.tiny_clip(tmp_path_factory.mktemp("clip")))


@pytest.fixture(scope="module")
def data():
    return cf.load_dataset("scenes:images=30")


def test_data_set_by_split(data):
    assert data["test"].split_name == "test"
    assert "30 images and 150 texts" in repr(data)
    with pytest.raises(TypeError):
        iter(data)


def test_similarity_takes_paths_pictures_and_strings(model, data, tmp_path):
    picture = data.pictures.open(0)
    picture.save(tmp_path / "scene.png")
    texts = ["a red circle", "two green stars"]
    scores = model.similarity([picture, str(tmp_path / "scene.png"), tmp_path / "scene.png"], texts)
    assert scores.shape == (3, 2)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-6)
    np.testing.assert_allclose(model.similarity(picture, texts[0]), scores[:1, :1], atol=1e-6)
    np.testing.assert_allclose(model.score(picture, texts).numpy(), scores[0], atol=1e-6)
    product = model.encode_images(picture) @ model.encode_texts(texts).T
    np.testing.assert_allclose(product, scores[:1], atol=1e-5)


def test_a_model_says_what_it_is(model):
    first, second, third, fourth = repr(model).splitlines()
    assert "DualEncoder" in first
    assert "32 px" in second
    assert third.strip() == "pretrained"
    assert fourth.strip() == "score: cosine"


def test_evaluate(model, data):
    result = cf.evaluate(model, data["test"])
    assert result.protocol in repr(result)
    assert result.rsum == pytest.approx(result.metrics["RSum"])
    plain = result.to_dict()
    assert plain["protocol"] == result.protocol
    span = plain["intervals"]["RSum"]
    assert span["low"] <= result.rsum <= span["high"]
    more = cf.evaluate(model, data["test"], metrics=["R@20", "MRR"])
    assert more.metrics["t2i R@20"] >= more.metrics["t2i R@10"] == result.metrics["t2i R@10"]
    both = cf.evaluate([model, model], data["test"])
    assert "ensemble of 2" in both.protocol
    with pytest.raises(ValueError, match="no model was given"):
        cf.evaluate([], data["test"])
    with pytest.raises(ValueError, match="a protocol"):
        cf.evaluate(model, data["test"], protocol="flickr")
