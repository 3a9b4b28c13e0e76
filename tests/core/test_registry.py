"""Names that belong to a package which is not installed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from counterfoil.core import registry
from counterfoil.core.config import config_from_dict
from counterfoil.data.readers import load_dataset
from counterfoil.loading import load_pretrained
from counterfoil.recipes.catalogue import find_recipe
from counterfoil.recipes.clip import FineTunedModel, fine_tune_recipe


@pytest.fixture
def no_papers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    registry._owners.cache_clear()
    yield
    registry._owners.cache_clear()


def read_precomp(folder: Path) -> None:
    (folder / "train_caps.txt").write_text("a dog\n")
    load_dataset(folder)


def load_vilt(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "vilt"}))
    load_pretrained(str(folder))


ASKED: dict[str, Callable[[Path], object]] = {
    "the reader": read_precomp,
    "the loader 'vilt'": load_vilt,
    "the recipe 'aoq'": lambda folder: find_recipe("aoq"),
    "the training 'ndgl'": lambda folder: fine_tune_recipe("ndgl", FineTunedModel(name="clip")),
    "the loss 'LSEHLoss'": lambda folder: registry.find("loss", "LSEHLoss"),
    "the verb 'papers'": lambda folder: registry.find("verb", "papers"),
    "the model 'SCAN'": lambda folder: config_from_dict({"call": "SCAN"}),
}


@pytest.mark.usefixtures("no_papers")
@pytest.mark.parametrize("what", ASKED)
def test_what_the_papers_have_says_that_they_are_missing(what, tmp_path):
    with pytest.raises(
        ValueError, match=r"belongs to counterfoil\.papers, .* not installed"
    ) as told:
        ASKED[what](tmp_path)
    assert str(told.value).startswith(what)
    assert "belongs to counterfoil.papers, " in str(told.value)


def test_a_class_belongs_to_a_distribution():
    assert registry.package_of(load_dataset) == "counterfoil"
    assert registry.package_of(pytest.MonkeyPatch) == "pytest"
