from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import recipes_cases
from counterfoil.model import load_model
from counterfoil.papers.models.configs import scan_config
from counterfoil.papers.models.scan import SCAN
from counterfoil.pipelines.run import DataSource
from counterfoil.scoring import embedding_store
from counterfoil.scoring.checkpoint import weights_digest
from counterfoil.scoring.embedding_store import cached_vectors, model_on_vectors
from counterfoil.scoring.encode import encode_images, encode_texts, texts_in_batches


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return load_model(recipes_cases.clip_like(tmp_path_factory.mktemp("hub") / "clip"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vectors"


@pytest.fixture
def processor(clip, cache):
    return clip.processor.process(DataSource("scenes:images=36").split("train"))


@pytest.fixture
def encoded(clip, monkeypatch):
    """How many images and texts the model has encoded so far."""
    seen = {"images": 0, "texts": 0}
    for kind in seen:
        encode = getattr(clip.model, f"encode_{kind}")

        def counted(items, kind=kind, encode=encode):
            seen[kind] += len(items)
            return encode(items)

        monkeypatch.setattr(clip.model, f"encode_{kind}", counted)
    return seen


def place(cache):
    (found,) = (path.parent for path in cache.glob("*/manifest.json"))
    return found


def taken(seen):
    rows = torch.arange(len(seen.dataset)), torch.arange(len(seen.dataset.texts))
    return seen.images(rows[0]).values[:, 0], seen.texts(rows[1]).values[:, 0]


def test_they_are_what_the_model_makes_of_everything(clip, processor):
    seen = model_on_vectors(clip.model, processor)
    images, texts = taken(seen)
    counts = len(processor.dataset), len(processor.dataset.texts)
    expected = encode_images(clip.model, processor.images, counts[0]).tokens[:, 0]
    torch.testing.assert_close(images, expected)
    expected = encode_texts(clip.model, processor.texts, counts[1]).tokens[:, 0]
    torch.testing.assert_close(texts, expected)
    assert isinstance(seen.dataset.features.values, np.memmap | np.ndarray)
    assert isinstance(seen.dataset.features.values.base, np.memmap)
    assert seen.dataset.fingerprint == processor.dataset.fingerprint


def test_what_a_frozen_model_has_encoded_is_kept_for_it_as_it_was(clip, processor):
    """As another run of the whole model on the same pictures finds it."""
    assert cached_vectors(clip.model, processor) is None
    model_on_vectors(clip.model, processor)
    kept = cached_vectors(clip.model, processor)
    assert kept is not None
    expected = encode_images(clip.model, processor.images, len(processor.dataset))
    assert torch.equal(kept[0].tokens, expected.tokens)
    assert torch.equal(kept[0].mask, expected.mask)
    expected = encode_texts(clip.model, processor.texts, len(processor.dataset.texts))
    assert torch.equal(kept[1].tokens, expected.tokens)
    assert torch.equal(kept[1].mask, expected.mask)


def test_nothing_is_encoded_twice_and_other_models_have_others(clip, processor, cache, encoded):
    first = taken(model_on_vectors(clip.model, processor))
    once = dict(encoded)
    assert once == {"images": len(processor.dataset), "texts": len(processor.dataset.texts)}
    again = taken(model_on_vectors(clip.model, processor))
    assert encoded == once
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    bias = next(clip.model.body.vision_model.parameters())
    before = bias.detach().clone()
    with torch.no_grad():
        bias.add_(1)
        model_on_vectors(clip.model, processor)
        bias.copy_(before)
    assert encoded["images"] == 2 * once["images"]
    assert len(list(cache.glob("*/manifest.json"))) == 2
    bent = load_model(clip.name).model
    bent.body.vision_model.encoder.layers[0].mlp.activation_fn = torch.nn.Tanh()
    assert weights_digest(bent) == weights_digest(clip.model)
    model_on_vectors(bent, processor)
    assert len(list(cache.glob("*/manifest.json"))) == 3


def test_what_is_damaged_is_made_again(clip, processor, cache, encoded, capsys):
    first = taken(model_on_vectors(clip.model, processor))
    path = place(cache) / "texts.npy"
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    embedding_store._is_whole.cache_clear()  # as in another process
    again = taken(model_on_vectors(clip.model, processor))
    assert "is damaged; its items are encoded again" in " ".join(capsys.readouterr().err.split())
    assert encoded["texts"] == 2 * len(processor.dataset.texts)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    model_on_vectors(clip.model, processor)
    assert encoded["texts"] == 2 * len(processor.dataset.texts)


def test_a_kill_leaves_no_vectors_and_is_gone_on_with(clip, processor, cache, encoded, monkeypatch):
    whole = texts_in_batches

    def small(*given, **more):
        return whole(*given, batch=32, **more)

    def stopping(*given, **more):
        for number, one in enumerate(small(*given, **more)):
            if number == 2:
                raise KeyboardInterrupt
            yield one

    written = embedding_store.EmbeddingWriter.put

    def put(self, rows, part):
        written(self, rows, part)
        self.save()

    monkeypatch.setattr(embedding_store.EmbeddingWriter, "put", put)
    monkeypatch.setattr(embedding_store, "texts_in_batches", stopping)
    with pytest.raises(KeyboardInterrupt):
        model_on_vectors(clip.model, processor)
    assert not list(cache.glob("*/manifest.json"))
    monkeypatch.setattr(embedding_store, "texts_in_batches", small)
    before = dict(encoded)
    images, texts = taken(model_on_vectors(clip.model, processor))
    assert encoded["images"] == before["images"], "they were all there"
    assert encoded["texts"] - before["texts"] == len(processor.dataset.texts) - 2 * 32
    torch.testing.assert_close(
        texts, encode_texts(clip.model, processor.texts, len(texts)).tokens[:, 0]
    )
    assert len(images) == len(processor.dataset)
    assert not list(cache.glob("*.partial"))


def test_what_was_begun_and_is_damaged_is_begun_anew(clip, processor, cache):
    name = embedding_store._cache_folder(clip.model, processor)
    begun = name.with_suffix(".partial") / "images"
    begun.mkdir(parents=True)
    (begun / "manifest.json").write_text("{}")
    images, _ = taken(model_on_vectors(clip.model, processor))
    assert len(images) == len(processor.dataset)


def test_what_is_refused(clip, processor):
    several = scan_config(width=8, images="pixels").fill({"words": 40, "size": 16}).build()
    assert isinstance(several, SCAN)
    with pytest.raises(
        ValueError, match="vectors of an item; adapters need a model that makes one"
    ):
        model_on_vectors(several, processor)
    blind = clip.processor.process(replace(processor.dataset, pictures=None))
    with pytest.raises(ValueError, match="has no pictures"):
        model_on_vectors(clip.model, blind)


def test_a_corpus_of_one_side_stays_as_it_is(clip, processor, cache):
    dataset, none = processor.dataset, torch.zeros(0, dtype=torch.long)
    rows = torch.arange(4)
    for images, texts in ((none, rows), (rows, none)):
        part = clip.processor.process(dataset.cut(images, texts, torch.full((len(texts),), -1)))
        assert model_on_vectors(clip.model, part) is part
    assert not cache.exists()
