"""`mine_hard_negatives`: from a model and a data set to lists, a folder and a table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from counterfoil.data.readers import load_dataset
from counterfoil.model import Model, load_model
from counterfoil.negatives.filters import FilterConfig
from counterfoil.negatives.mining import mine_hard_negatives, mine_lists
from counterfoil.negatives.store import NegativeStore
from recipes_cases import pixel_model

SIZES = {"texts_per_image": 6, "images_per_text": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    return load_model(pixel_model(tmp_path_factory.mktemp("model") / "pixels"))


@pytest.fixture(scope="module")
def dataset():
    return load_dataset("scenes:images=40").split("train")


def test_lists_are_those_of_mine_lists(model, dataset, tmp_path):
    negatives = mine_hard_negatives(model, dataset, **SIZES)
    lists = mine_lists([model.embed(dataset)], dataset.text_to_image, **SIZES)
    assert torch.equal(negatives.lists.texts, lists.texts)
    assert torch.equal(negatives.lists.images, lists.images)
    negatives.save(tmp_path / "lists")
    store = NegativeStore.open(tmp_path / "lists", fingerprint=dataset.fingerprint)
    assert torch.equal(store.lists.texts, lists.texts)
    assert store.manifest == negatives.store.manifest
    assert store.manifest.split == "train"
    assert store.manifest.sources == (model.source(),)


def test_an_ensemble_and_half_precision(model, dataset):
    exact = mine_hard_negatives([model, model], dataset, **SIZES)
    half = mine_hard_negatives([model, model], dataset, precision="bf16", **SIZES)
    assert torch.equal(half.lists.texts, exact.lists.texts)
    assert half.store.manifest.precision.startswith("bfloat16, then float32: ")
    assert len(exact.store.manifest.sources) == 2


def test_table_for_other_trainers(model, dataset):
    negatives = mine_hard_negatives(model, dataset, **SIZES)
    table = negatives.to_dataset()
    assert table.column_names == ["image_id", "caption", "negatives", "scores"]
    assert len(table) == len(dataset.texts)
    row = table[0]
    image = int(dataset.text_to_image[0])
    assert row["image_id"] == dataset.image_ids[image]
    assert row["caption"] == dataset.texts[0]
    assert row["negatives"] == [dataset.texts[t] for t in negatives.lists.texts[image].tolist()]
    assert row["scores"] == sorted(row["scores"], reverse=True)


def test_table_without_datasets(model, dataset, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    rows = mine_hard_negatives(model, dataset, **SIZES).to_dataset()
    assert isinstance(rows, list)
    assert rows[0]["caption"] == dataset.texts[0]


def test_filters_guides_and_checkpoints(model, dataset, tmp_path):
    filters = FilterConfig(captions=0.8, guided=0.0)
    negatives = mine_hard_negatives(
        model, dataset, filters=filters, guides=[model], checkpoint=tmp_path / "partial", **SIZES
    )
    captions, guided, guide = negatives.store.manifest.filters
    assert captions.startswith("texts within TF-IDF cosine 0.8")
    assert guided.startswith("pairs that the guide scores")
    assert guide.startswith("guide: ")
    with pytest.raises(ValueError, match="needs a guide model"):
        mine_hard_negatives(model, dataset, filters=filters)
    with pytest.raises(ValueError, match="precision"):
        mine_hard_negatives(model, dataset, precision="fp8")  # type: ignore[arg-type]


def test_repr_shows_an_example(model, dataset):
    first, second = repr(mine_hard_negatives(model, dataset, **SIZES)).splitlines()
    assert first.startswith("HardNegatives(scenes")
    assert "6 texts of each of" in first
    assert "filters: none" in first
    assert dataset.texts[0] in second


def test_a_model_by_name(tmp_path: Path, dataset):
    folder = pixel_model(tmp_path / "pixels")
    assert mine_hard_negatives(str(folder), dataset, **SIZES).lists.texts.shape[1] == 6
