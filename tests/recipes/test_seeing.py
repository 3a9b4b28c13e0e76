"""Pictures that a frozen model sees once."""

from __future__ import annotations

import pytest
import torch

import hub_cases
from counterfoil.corpus.lens import Lens, PixelEye
from counterfoil.corpus.reading import open_corpus
from counterfoil.corpus.seen import SeenEye
from counterfoil.corpus.words import SPECIAL, Words
from counterfoil.models.blocks.gru import GRU
from counterfoil.models.blocks.vision import VisionModel
from counterfoil.models.gpo import GPO
from counterfoil.recipes.model import Model
from counterfoil.recipes.seeing import seen_once
from counterfoil.spec import of, part

WORDS = [*SPECIAL, "a", "red", "circle", "square"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return hub_cases.mobilenet(tmp_path_factory.mktemp("hub") / "mobilenet")


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))


def model(folder, *, trained: bool = False, side: int = 48, grid: int = 2) -> Model:
    torch.manual_seed(0)
    tower = part(VisionModel, name=folder, width=8, trained=trained, grid=grid)
    spec = of(GPO, image=tower, text=part(GRU, words=len(WORDS), width=8, word_width=4))
    return Model(spec.build().eval(), Lens(PixelEye(side), Words(WORDS)), "model", spec)


def files(tmp_path):
    """Folders of what is kept, one for each model."""
    return sorted((tmp_path / "cache" / "states").glob("*"))


def test_encodings_are_those_of_pixels(folder, tmp_path):
    corpus, one = open_corpus("scenes:images=40"), model(folder)
    found = one.member(corpus).images.tokens
    pixels = one.lens.on(corpus).images(torch.arange(40))
    with torch.no_grad():
        wanted = one.matcher.encode_images(pixels).tokens
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)  # half precision
    picture = one.encode([corpus.pictures.open(3)]).tokens[0]
    torch.testing.assert_close(found[3], picture, rtol=2e-3, atol=2e-3)
    assert len(files(tmp_path)) == 1


def test_pictures_are_looked_at_once(folder, tmp_path, monkeypatch):
    corpus, one = open_corpus("scenes:images=40"), model(folder)
    first = one.on(corpus).images(torch.tensor([7, 2]))
    assert first.values.shape == (2, 4, one.matcher.image.fc.in_features)
    (path,) = files(tmp_path)

    def refused(*_: object) -> None:
        raise AssertionError("looked at twice")

    monkeypatch.setattr(VisionModel, "states", refused)
    again = one.on(corpus).images(torch.tensor([2]))
    torch.testing.assert_close(again.values[0], first.values[1])
    assert files(tmp_path) == [path]


def test_what_is_kept_is_of_a_model_its_cells_its_pixels_and_the_pictures(folder, tmp_path):
    corpus, rows = open_corpus("scenes:images=40"), torch.tensor([0])
    models = [model(folder), model(folder, grid=1), model(folder, side=64)]
    for one in models:
        one.on(corpus).images(rows)
    assert len(files(tmp_path)) == 3
    other = model(folder)
    with torch.no_grad():
        next(other.matcher.image.body.parameters()).add_(1)
    other.on(corpus).images(rows)
    assert len(files(tmp_path)) == 4
    bent = model(folder)
    for block in bent.matcher.image.body.modules():
        if isinstance(getattr(block, "activation", None), torch.nn.Module):
            block.activation = torch.nn.Tanh()
    bent.on(corpus).images(rows)
    assert len(files(tmp_path)) == 5


def test_a_model_that_is_trained_along_sees_pixels(folder):
    one = model(folder, trained=True)
    assert one.lens is not None
    assert seen_once(one.matcher, one.lens) is one.lens
    frozen = model(folder)
    assert frozen.lens is not None
    assert isinstance(seen_once(frozen.matcher, frozen.lens).eye, SeenEye)
    shaped = Lens(PixelEye(32, divisor=32), Words(WORDS))
    assert seen_once(frozen.matcher, shaped) is shaped


def test_without_pictures_it_is_said(folder, tmp_path):
    from dataclasses import replace

    corpus = replace(open_corpus("scenes:images=40"), pictures=None)
    with pytest.raises(ValueError, match="has no pictures; this model reads pixels"):
        model(folder).on(corpus).images(torch.tensor([0]))
