"""Any number of pictures is encoded with the memory of a batch."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Iterator
from itertools import chain

import numpy as np
import pytest
import torch

import counterfoil.model as module
import recipes_cases
from counterfoil.core.types import Embeddings
from counterfoil.model import Model, load_model
from counterfoil.search.index import build_index

PICTURES, SIDES = 100, (480, 640, 3)  # 0.9 MB each


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    recipes_cases.pixel_model(root / "pixels")
    recipes_cases.vilt_like(root / "vilt", "ImageAndTextRetrieval")
    recipes_cases.blip_like(root / "blip")
    return root


def arrays(count: int = PICTURES) -> Iterator[np.ndarray]:
    """Pictures that are made when they are asked for."""
    for number in range(count):
        yield np.full(SIDES, number % 256, np.uint8)


@pytest.fixture
def opened(monkeypatch) -> list[int]:
    """How many opened pictures there are at once, at most."""
    alive, most, real = [0], [0], module.open_image

    def closed():
        alive[0] -= 1

    def counting(item):
        picture = real(item)
        weakref.finalize(picture, closed)
        alive[0] += 1
        most[0] = max(most[0], alive[0])
        return picture

    monkeypatch.setattr(module, "open_image", counting)
    return most


CALLS = {
    "encode": lambda model: model.encode(arrays()),
    "encode_images": lambda model: model.encode_images(arrays()),
    "similarity": lambda model: model.similarity(arrays(), ["a red circle", "a dog"]),
}


@pytest.mark.parametrize("name", ["pixels", "vilt", "blip"])
@pytest.mark.parametrize("call", CALLS)
def test_pictures_are_opened_with_their_batch(folders, opened, name, call):
    if (name, call) in (("vilt", "encode_images"), ("blip", "encode_images")):
        pytest.skip("several vectors")
    model = load_model(folders / name)
    tracemalloc.start()
    try:
        result = CALLS[call](model)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(result) == PICTURES
    assert 20 < opened[0] <= 2 * 32
    assert peak < 70e6  # all of them are 92 MB


def whole(model: Model, pictures) -> Embeddings:
    """All at once."""
    with torch.inference_mode():
        return model.model.encode_images(model.processor.process_images(pictures))


@pytest.mark.parametrize("name", ["pixels", "vilt", "blip"])
def test_batches_change_nothing(folders, monkeypatch, name):
    model = load_model(folders / name)
    sizes = [(30 + 7 * n, 40) for n in range(9)]  # bags of several lengths, of ViLT
    pictures = [module.Image.new("RGB", size, (20 * n, 9, 9)) for n, size in enumerate(sizes)]
    texts = ["a dog " * n for n in range(1, 8)]
    wanted = whole(model, pictures), model.encode(texts)
    scores = model.similarity(pictures, texts)
    monkeypatch.setattr(module, "_TOGETHER", {str: 2, module.Image.Image: 2})
    for found, all_at_once in zip((model.encode(pictures), model.encode(texts)), wanted):
        assert torch.equal(found.mask, all_at_once.mask)
        real = found.mask.unsqueeze(2)
        torch.testing.assert_close(found.tokens * real, all_at_once.tokens * real)
    np.testing.assert_allclose(model.similarity(iter(pictures), iter(texts)), scores, atol=1e-5)
    if name == "pixels":
        found = model.encode_texts(text for text in texts)
        np.testing.assert_allclose(found, wanted[1].tokens[:, 0].numpy(), atol=1e-6)


def test_many_queries_are_encoded_in_batches(tmp_path, opened):
    from counterfoil.data.readers import load_dataset

    model = load_model(recipes_cases.pixel_model(tmp_path / "pixels"))
    with build_index(model, load_dataset("scenes:images=12"), tmp_path / "index") as index:
        hits = index.search_many(list(arrays(70)), 3, find="captions")
    assert [len(of_one) for of_one in hits] == [3] * 70
    assert opened[0] <= 2 * 32


def test_a_mixture_is_refused_before_the_work(folders, opened):
    model = load_model(folders / "pixels")
    with pytest.raises(ValueError, match="not both"):
        model.encode([*arrays(40), "a dog"])
    assert opened[0] == 0
    with pytest.raises(ValueError, match="not both"):  # found when it comes
        model.encode(chain(arrays(40), ["a dog"]))
    for nothing in ([], iter(()), ()):
        with pytest.raises(ValueError, match="nothing was given"):
            model.encode(nothing)
