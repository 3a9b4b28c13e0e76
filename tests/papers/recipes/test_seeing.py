"""Pictures that a frozen model sees once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import hub_cases
from counterfoil.core.config import config, lazy
from counterfoil.data.feature_cache import CachedFeatureProcessor
from counterfoil.data.processor import PixelProcessor, Processor
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import SPECIAL, WordTokenizer
from counterfoil.model import Model, cache_frozen_tower
from counterfoil.models.layers.pretrained import HFVisionTower
from counterfoil.models.layers.towers import GRU
from counterfoil.papers.models.gpo import GPO

WORDS = [*SPECIAL, "a", "red", "circle", "square"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return hub_cases.mobilenet(tmp_path_factory.mktemp("hub") / "mobilenet")


def model(folder, *, trained: bool = False, side: int = 48, grid: int = 2) -> Model:
    torch.manual_seed(0)
    tower = lazy(HFVisionTower, name=folder, width=8, trained=trained, grid=grid)
    spec = config(GPO, image=tower, text=lazy(GRU, words=len(WORDS), width=8, word_width=4))
    return Model(
        spec.build().eval(), Processor(PixelProcessor(side), WordTokenizer(WORDS)), "model", spec
    )


def files():
    """Folders of what is kept, one for each model."""
    return sorted((Path(os.environ["COUNTERFOIL_CACHE"]) / "states").glob("*"))


def test_encodings_are_those_of_pixels(folder):
    dataset, one = load_dataset("scenes:images=40"), model(folder)
    found = one.embed(dataset).images.tokens
    pixels = one.processor.process(dataset).images(torch.arange(40))
    with torch.no_grad():
        wanted = one.model.encode_images(pixels).tokens
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)  # half precision
    picture = one.encode([dataset.pictures.open(3)]).tokens[0]
    torch.testing.assert_close(found[3], picture, rtol=2e-3, atol=2e-3)
    assert len(files()) == 1


def test_pictures_are_looked_at_once(folder, monkeypatch):
    dataset, one = load_dataset("scenes:images=40"), model(folder)
    first = one.process(dataset).images(torch.tensor([7, 2]))
    assert first.values.shape == (2, 4, one.model.image.fc.in_features)
    (path,) = files()

    def refused(*_: object) -> None:
        raise AssertionError("looked at twice")

    monkeypatch.setattr(HFVisionTower, "states", refused)
    again = one.process(dataset).images(torch.tensor([2]))
    torch.testing.assert_close(again.values[0], first.values[1])
    assert files() == [path]


def test_what_is_kept_is_of_a_model_its_cells_its_pixels_and_the_pictures(folder):
    dataset, rows = load_dataset("scenes:images=40"), torch.tensor([0])
    models = [model(folder), model(folder, grid=1), model(folder, side=64)]
    for one in models:
        one.process(dataset).images(rows)
    assert len(files()) == 3
    other = model(folder)
    with torch.no_grad():
        next(other.model.image.body.parameters()).add_(1)
    other.process(dataset).images(rows)
    assert len(files()) == 4
    bent = model(folder)
    for block in bent.model.image.body.modules():
        if isinstance(getattr(block, "activation", None), torch.nn.Module):
            block.activation = torch.nn.Tanh()
    bent.process(dataset).images(rows)
    assert len(files()) == 5


def test_a_model_that_is_trained_along_sees_pixels(folder):
    one = model(folder, trained=True)
    assert one.processor is not None
    assert cache_frozen_tower(one.model, one.processor) is one.processor
    frozen = model(folder)
    assert frozen.processor is not None
    assert isinstance(
        cache_frozen_tower(frozen.model, frozen.processor).image_processor, CachedFeatureProcessor
    )
    shaped = Processor(PixelProcessor(32, divisor=32), WordTokenizer(WORDS))
    assert cache_frozen_tower(frozen.model, shaped) is shaped


def test_without_pictures_it_is_said(folder):
    from dataclasses import replace

    dataset = replace(load_dataset("scenes:images=40"), pictures=None)
    with pytest.raises(ValueError, match="has no pictures; this model reads pixels"):
        model(folder).process(dataset).images(torch.tensor([0]))
