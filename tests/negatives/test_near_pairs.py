"""Near-duplicate pictures and captions, against loops."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

import processes
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FeatureArray
from counterfoil.data.images import DrawnPictures
from counterfoil.negatives import filters
from counterfoil.negatives.filters import (
    NearPairs,
    image_thumbnails,
    near_captions,
    near_pictures,
    plain_words,
)


def corpus_of(features: FeatureArray | None, images: int) -> ImageTextDataset:
    return ImageTextDataset(
        name="toy",
        image_ids=[f"i{row}" for row in range(images)],
        text_ids=[],
        texts=[],
        text_to_image=torch.zeros(0, dtype=torch.long),
        splits=["train"] * images,
        features=features,
    )


def of_vectors(vectors: Tensor) -> ImageTextDataset:
    return corpus_of(FeatureArray.of(vectors.numpy()), len(vectors))


def pairs(near: NearPairs) -> list[tuple[int, int]]:
    return list(zip(near.left.tolist(), near.right.tolist()))


def slow_vectors(vectors: Tensor, least: float) -> list[tuple[int, int]]:
    centred = (vectors.double() - vectors.double().mean(0)).tolist()
    found = []
    for i, a in enumerate(centred):
        for j in range(i + 1, len(centred)):
            b = centred[j]
            lengths = (sum(x * x for x in a) * sum(x * x for x in b)) ** 0.5
            if lengths and sum(x * y for x, y in zip(a, b)) / lengths >= least:
                found.append((i, j))
    return found


def random_vectors(seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    vectors = torch.randn(50, 3, generator=rng)
    vectors[7] = vectors[3]
    vectors[40] = 2 * vectors[3] - vectors.mean(0)
    return vectors


@pytest.mark.parametrize("block", [7, 64])
@pytest.mark.parametrize("least", [0.2, 0.9, 0.999])
def test_near_pictures_are_all_pairs_that_reach(monkeypatch, block, least):
    monkeypatch.setattr(filters, "_BLOCK", block)
    vectors = random_vectors(0)
    near = near_pictures(of_vectors(vectors), least=least)
    assert pairs(near) == slow_vectors(vectors, least)
    assert near.score.dtype == torch.float32
    assert bool((near.score >= least).all())


def near_rows(least: float) -> list[np.ndarray]:
    filters._BLOCK = 8
    near = near_pictures(of_vectors(random_vectors(1)), least=least)
    return [near.left.numpy(), near.right.numpy(), near.score.numpy()]


def test_processes_find_the_same_pictures(monkeypatch):
    monkeypatch.setattr(filters, "_BLOCK", 8)
    alone = near_rows(0.5)
    for together in processes.run(near_rows, 3, 0.5):
        assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_copies_are_near_at_one():
    vectors = torch.randn(30, 100)
    vectors[20] = vectors[10]
    assert pairs(near_pictures(of_vectors(vectors), least=1.0)) == [(10, 20)]


def test_only_real_regions_count():
    values = torch.randn(4, 3, 5)
    values[1] = values[0]
    values[1, 2] = 100
    lengths = np.array([2, 2, 3, 1])
    dataset = corpus_of(FeatureArray.of(values.numpy(), lengths=lengths), 4)
    shown = image_thumbnails(dataset)
    pooled = torch.stack([values[row, :n].mean(0) for row, n in enumerate(lengths)])
    centred = pooled - pooled.mean(0)
    torch.testing.assert_close(shown, centred / centred.norm(dim=1, keepdim=True))
    assert pairs(near_pictures(dataset, least=1.0)) == [(0, 1)]


def test_the_same_for_everybody_is_like_nobody():
    near = near_pictures(of_vectors(torch.ones(5, 3)), least=0.1)
    assert len(near) == 0


def paint(row: int) -> Image.Image:
    """Two pictures of each kind, the second darker."""
    ramp = np.roll(np.tile(np.arange(64) / 64, (64, 1)), 11 * (row // 2), 1)
    light = 255 if row % 2 == 0 else 150
    return Image.fromarray((ramp * light).astype(np.uint8)).convert("RGB")


def test_pictures_are_compared_where_there_are_no_features():
    pictures = DrawnPictures(paint, range(8), "ramps")
    dataset = replace(corpus_of(None, 8), pictures=pictures)
    assert image_thumbnails(dataset).shape == (8, 256)
    near = near_pictures(dataset, least=0.99)
    assert set(pairs(near)) >= {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert (0, 6) not in pairs(near)


def test_pictures_that_cannot_be_compared(monkeypatch):
    with pytest.raises(ValueError, match="toy has neither features nor pictures"):
        near_pictures(corpus_of(None, 3), least=0.5)
    with pytest.raises(ValueError, match="pictures=80: a cosine above 0 and up to 1"):
        near_pictures(of_vectors(random_vectors(0)), least=80)
    monkeypatch.setattr(filters, "MOST", 20)
    with pytest.raises(ValueError, match=r"pictures=0\.1 finds more than 20 pairs alike"):
        near_pictures(of_vectors(random_vectors(0)), least=0.1)


WORDS = st.sampled_from(["a", "the", "dog", "cat", "runs", "red", "ball", "in", ",", "."])
CAPTIONS = st.lists(st.lists(WORDS, max_size=7).map(" ".join), max_size=25)


def slow_captions(texts: list[str], least: float) -> dict[tuple[int, int], float]:
    bags = [plain_words(text) for text in texts]
    found = {}
    for i, one in enumerate(bags):
        for j in range(i + 1, len(bags)):
            both = weight(one & bags[j], bags)
            alone = math.sqrt(weight(one, bags) * weight(bags[j], bags))
            if alone and both / alone >= least - 1e-9:
                found[i, j] = both / alone
    return found


def weight(words: set[str], bags: list[set[str]]) -> float:
    return sum(
        (1 + math.log((1 + len(bags)) / (1 + sum(word in bag for bag in bags)))) ** 2
        for word in words
    )


def check(texts: list[str], least: float) -> None:
    near, wanted = near_captions(texts, least=least), slow_captions(texts, least)
    assert list(zip(near.left.tolist(), near.right.tolist())) == sorted(wanted)
    torch.testing.assert_close(
        near.score.double(), torch.tensor([wanted[pair] for pair in sorted(wanted)]).double()
    )


def random_captions() -> list[str]:
    """Captions in which some words are frequent and most are rare."""
    rng = torch.Generator().manual_seed(0)
    length = torch.randint(1, 12, (80,), generator=rng).tolist()
    words = [(torch.rand(n, generator=rng) ** 2 * 60).long().tolist() for n in length]
    return [" ".join(f"w{word}" for word in line) for line in words]


@given(CAPTIONS, st.sampled_from([1e-6, 0.1, 0.3, 0.5, 0.75, 0.9, 1.0]))
def test_all_pairs_that_reach(texts, least):
    check(texts, least)


@pytest.mark.parametrize("at_once, dense", [(50, 1), (7, 30), (2**21, 4)])
def test_however_many_are_looked_at_together(monkeypatch, at_once, dense):
    monkeypatch.setattr(filters, "_PAIRS_AT_ONCE", at_once)
    monkeypatch.setattr(filters, "_CAPTIONS_AT_ONCE", dense)
    check(random_captions(), 0.3)


def near_wordings(least: float) -> list[np.ndarray]:
    filters._CAPTIONS_AT_ONCE = 8
    near = near_captions(random_captions(), least=least)
    return [near.left.numpy(), near.right.numpy(), near.score.numpy()]


def test_processes_find_the_same_captions(monkeypatch):
    monkeypatch.setattr(filters, "_CAPTIONS_AT_ONCE", 8)
    alone = near_wordings(0.3)
    assert len(alone[0])
    for together in processes.run(near_wordings, 3, 0.3):
        assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_the_same_words_in_any_order_and_case():
    texts = ["A dog, a cat.", "the cat - the dog", "CAT a Dog", "", ".", "a dog"]
    near = near_captions(texts, least=1.0)
    assert list(zip(near.left.tolist(), near.right.tolist())) == [(0, 2)]
    assert near.score.tolist() == [1.0]


def test_captions_that_cannot_be_compared(monkeypatch):
    with pytest.raises(ValueError, match="captions=0: a cosine above 0 and up to 1 is needed"):
        near_captions(["a"], least=0)
    monkeypatch.setattr(filters, "MOST", 2)
    with pytest.raises(ValueError, match=r"captions=0\.9 finds more than 2 pairs alike"):
        near_captions(["a dog"] * 4, least=0.9)
