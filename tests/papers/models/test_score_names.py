"""Every result says what its scores are: cosines, inner products, logits, …"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

import counterfoil as cf
import recipes_cases
from counterfoil.core.io import read_json
from counterfoil.data.processor import Processor
from counterfoil.model import Model, load_model
from counterfoil.models.vsepp import VSEPP
from counterfoil.saved import save_model
from counterfoil.search.index import build_index
from papers_matcher_cases import ALL
from recipes_cases import run

NAMES = {
    "vse": "cosine",
    "vectors": "cosine",
    "hrem": "cosine",
    "scan": "cross-attention",
    "bfan": "cross-attention",
    "naaf": "cross-attention",
    "sgraf": "logit of cross-attention",
    "uniter": "logit of a joint encoder",
    "blip": "logit of a joint encoder",
    "filip": "MaxSim",
    "dive": "of sets of vectors",
}


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_scores_have_a_name_that_is_true(case):
    model, rng = case.build(), torch.Generator().manual_seed(1)
    wanted = next((name for key, name in NAMES.items() if case.name == key), model.score_name)
    assert wanted in model.score_name
    assert model.score_name != f"as {type(model).__name__} scores"
    with torch.no_grad():
        images, texts = (
            model.encode_images(case.images(5, rng)),
            model.encode_texts(case.texts(4, rng)),
        )
        if model.score_name not in ("cosine", "inner product"):
            return
        left, right = images.tokens[:, 0], texts.tokens[:, 0]
        if model.score_name == "cosine":
            left, right = (x / x.norm(dim=1, keepdim=True) for x in (left, right))
        torch.testing.assert_close(model.score_matrix(images, texts), left @ right.T)


@pytest.fixture
def lengths(tmp_path):
    """Vectors whose cosines find all true pairs, and whose inner products find the longest."""
    folder, rng = tmp_path / "lengths", np.random.default_rng(0)
    folder.mkdir()
    vectors = rng.standard_normal((30, 8)).astype(np.float32)
    np.save(folder / "images.npy", vectors * np.geomspace(1, 1000, 30, dtype=np.float32)[:, None])
    np.save(folder / "texts.npy", vectors)
    return folder


@pytest.mark.parametrize(
    ("name", "score", "right"),
    [
        ("vectors", "cosine", True),
        ("vectors:cosine", "cosine", True),
        ("vectors:inner-product", "inner product", False),
    ],
)
def test_ready_made_vectors_are_compared_as_the_name_says(
    lengths, tmp_path, capsys, name, score, right
):
    data, model = cf.load_dataset(lengths), cf.load_model(name)
    result = cf.evaluate(model, data)
    assert f"single model, score: {score}" in result.protocol
    assert (result.metrics["t2i R@1"] == 100) == right
    assert f"score: {score}" in repr(model)
    negatives = cf.mine_hard_negatives(model, data, texts_per_image=3, images_per_text=3)
    assert [source.score for source in negatives.store.manifest.sources] == [score]
    build_index(model, data, tmp_path / "index").close()
    assert read_json(tmp_path / "index" / "manifest.json", "an index")["score"] == score
    capsys.readouterr()
    assert run("search", tmp_path / "index", data.text_ids[0], "--json") == 0
    assert json.loads(capsys.readouterr().out)["score"] == score
    assert run("evaluate", name, "--data", lengths, "--json", tmp_path / "e.json") == 0
    assert f"score: {score}" in " ".join(capsys.readouterr().out.split())
    plain = read_json(tmp_path / "e.json", "an evaluation")
    assert f"score: {score}" in plain["protocol"]
    assert plain["setting"]["score"] == score


def test_models_with_different_scores_are_compared_under_both_names(lengths, capsys):
    assert run("evaluate", "vectors", "vectors:inner-product", "--data", lengths) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "single model, score: cosine / inner product" in said
    assert run("evaluate", "vectors+vectors:inner-product", "--data", lengths) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "ensemble of 2 by mean score, score: cosine + inner product" in said


def test_another_way_to_compare_vectors_is_refused(capsys):
    with pytest.raises(ValueError, match=re.escape("give vectors for cosines, or vectors:inner-")):
        cf.load_model("vectors:dot")
    assert run("evaluate", "vectors:euclid", "--data", "scenes:images=9") == 2
    assert "no way to compare ready-made vectors" in " ".join(capsys.readouterr().err.split())


def pixel_model(tmp_path, **options) -> Model:
    opened = load_model(recipes_cases.pixel_model(tmp_path / "pixels"))
    spec = opened.spec.replace(**options)
    model = spec.build()
    assert isinstance(model, VSEPP)
    assert isinstance(opened.processor, Processor)
    save_model(tmp_path / "other", spec=spec, model=model, processor=opened.processor)
    return load_model(tmp_path / "other")


def test_vectors_that_would_rank_otherwise_are_not_written(tmp_path):
    model = pixel_model(tmp_path, measure="order", absolute=True)
    with pytest.raises(ValueError, match=r"other \(order violation\) is no inner product"):
        model.write_vectors(cf.load_dataset("scenes:images=12"), tmp_path / "vectors")
    assert not (tmp_path / "vectors").exists()


def test_vectors_of_any_length_are_to_be_opened_as_such(tmp_path, capsys):
    model = pixel_model(tmp_path, normalise_images=False)
    data = cf.load_dataset("scenes:images=12")
    written = model.write_vectors(data, tmp_path / "vectors")
    assert "open its vectors with the model vectors:inner-product" in " ".join(
        capsys.readouterr().err.split()
    )
    wanted = cf.evaluate(model, data)
    found = cf.evaluate(cf.load_model("vectors:inner-product"), written)
    assert found.report.numbers == wanted.report.numbers
