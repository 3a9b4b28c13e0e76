from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import recipes_cases
from counterfoil import open_model
from counterfoil.engine import vectors
from counterfoil.engine.encode import encode_images, encode_texts
from counterfoil.engine.kept import weights_digest
from counterfoil.engine.vectors import kept_vectors, on_vectors
from counterfoil.models.scan import SCAN
from counterfoil.recipes.hosts import scan
from counterfoil.recipes.run import Source


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return open_model(recipes_cases.clip_like(tmp_path_factory.mktemp("hub") / "clip"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vectors"


@pytest.fixture
def lens(clip, cache):
    return clip.lens.on(Source("scenes:images=36").split("train"))


@pytest.fixture
def encoded(clip, monkeypatch):
    """How many images and texts the model has encoded so far."""
    seen = {"images": 0, "texts": 0}
    for kind in seen:
        encode = getattr(clip.matcher, f"encode_{kind}")

        def counted(items, kind=kind, encode=encode):
            seen[kind] += len(items)
            return encode(items)

        monkeypatch.setattr(clip.matcher, f"encode_{kind}", counted)
    return seen


def place(cache):
    (found,) = (path.parent for path in cache.glob("*/vectors.json"))
    return found


def taken(seen):
    rows = torch.arange(len(seen.corpus)), torch.arange(len(seen.corpus.texts))
    return seen.images(rows[0]).values[:, 0], seen.texts(rows[1]).values[:, 0]


def test_they_are_what_the_model_makes_of_everything(clip, lens):
    seen = on_vectors(clip.matcher, lens)
    images, texts = taken(seen)
    counts = len(lens.corpus), len(lens.corpus.texts)
    expected = encode_images(clip.matcher, lens.images, counts[0]).tokens[:, 0]
    torch.testing.assert_close(images, expected)
    expected = encode_texts(clip.matcher, lens.texts, counts[1]).tokens[:, 0]
    torch.testing.assert_close(texts, expected)
    assert isinstance(seen.corpus.features.values, np.memmap | np.ndarray)
    assert isinstance(seen.corpus.features.values.base, np.memmap)
    assert seen.corpus.fingerprint == lens.corpus.fingerprint


def test_what_a_frozen_model_has_encoded_is_kept_for_it_as_it_was(clip, lens):
    """As another run of the whole model on the same pictures finds it."""
    assert kept_vectors(clip.matcher, lens) is None
    on_vectors(clip.matcher, lens)
    kept = kept_vectors(clip.matcher, lens)
    assert kept is not None
    expected = encode_images(clip.matcher, lens.images, len(lens.corpus))
    assert torch.equal(kept[0].tokens, expected.tokens)
    assert torch.equal(kept[0].mask, expected.mask)
    expected = encode_texts(clip.matcher, lens.texts, len(lens.corpus.texts))
    assert torch.equal(kept[1].tokens, expected.tokens)
    assert torch.equal(kept[1].mask, expected.mask)


def test_nothing_is_encoded_twice_and_other_models_have_others(clip, lens, cache, encoded):
    first = taken(on_vectors(clip.matcher, lens))
    once = dict(encoded)
    assert once == {"images": len(lens.corpus), "texts": len(lens.corpus.texts)}
    again = taken(on_vectors(clip.matcher, lens))
    assert encoded == once
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    bias = next(clip.matcher.body.vision_model.parameters())
    before = bias.detach().clone()
    with torch.no_grad():
        bias.add_(1)
        on_vectors(clip.matcher, lens)
        bias.copy_(before)
    assert encoded["images"] == 2 * once["images"]
    assert len(list(cache.glob("*/vectors.json"))) == 2
    bent = open_model(clip.name).matcher
    bent.body.vision_model.encoder.layers[0].mlp.activation_fn = torch.nn.Tanh()
    assert weights_digest(bent) == weights_digest(clip.matcher)
    on_vectors(bent, lens)
    assert len(list(cache.glob("*/vectors.json"))) == 3


def test_what_is_damaged_is_made_again(clip, lens, cache, encoded, capsys):
    first = taken(on_vectors(clip.matcher, lens))
    path = place(cache) / "texts.npy"
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    vectors._checked.cache_clear()  # as in another process
    again = taken(on_vectors(clip.matcher, lens))
    assert "is damaged; what it held is encoded again" in " ".join(capsys.readouterr().err.split())
    assert encoded["texts"] == 2 * len(lens.corpus.texts)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    on_vectors(clip.matcher, lens)
    assert encoded["texts"] == 2 * len(lens.corpus.texts)


def test_a_kill_leaves_no_vectors_and_is_gone_on_with(clip, lens, cache, encoded, monkeypatch):
    whole = vectors.texts_in_batches

    def small(*given, **more):
        return whole(*given, batch=32, **more)

    def stopping(*given, **more):
        for number, one in enumerate(small(*given, **more)):
            if number == 2:
                raise KeyboardInterrupt
            yield one

    written = vectors.BagWriter.put

    def put(self, rows, part):
        written(self, rows, part)
        self.save()

    monkeypatch.setattr(vectors.BagWriter, "put", put)
    monkeypatch.setattr(vectors, "texts_in_batches", stopping)
    with pytest.raises(KeyboardInterrupt):
        on_vectors(clip.matcher, lens)
    assert not list(cache.glob("*/vectors.json"))
    monkeypatch.setattr(vectors, "texts_in_batches", small)
    before = dict(encoded)
    images, texts = taken(on_vectors(clip.matcher, lens))
    assert encoded["images"] == before["images"], "they were all there"
    assert encoded["texts"] - before["texts"] == len(lens.corpus.texts) - 2 * 32
    torch.testing.assert_close(
        texts, encode_texts(clip.matcher, lens.texts, len(texts)).tokens[:, 0]
    )
    assert len(images) == len(lens.corpus)
    assert not list(cache.glob("*.partial"))


def test_what_was_begun_and_is_damaged_is_begun_anew(clip, lens, cache):
    name = vectors._place(clip.matcher, lens)
    begun = name.with_suffix(".partial") / "images"
    begun.mkdir(parents=True)
    (begun / "written.json").write_text("{}")
    images, _ = taken(on_vectors(clip.matcher, lens))
    assert len(images) == len(lens.corpus)


def test_what_is_refused(clip, lens):
    several = scan(width=8, sees="pixels").resolve({"words": 40, "size": 16}).build()
    assert isinstance(several, SCAN)
    with pytest.raises(
        ValueError, match="vectors of an item; adapters need a model that makes one"
    ):
        on_vectors(several, lens)
    blind = clip.lens.on(replace(lens.corpus, pictures=None))
    with pytest.raises(ValueError, match="has no pictures"):
        on_vectors(clip.matcher, blind)


def test_a_corpus_of_one_side_stays_as_it_is(clip, lens, cache):
    corpus, none = lens.corpus, torch.zeros(0, dtype=torch.long)
    rows = torch.arange(4)
    for images, texts in ((none, rows), (rows, none)):
        part = clip.lens.on(corpus.cut(images, texts, torch.full((len(texts),), -1)))
        assert on_vectors(clip.matcher, part) is part
    assert not cache.exists()
