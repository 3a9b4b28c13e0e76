from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import processes
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FeatureArray
from counterfoil.data.images import DrawnPictures
from counterfoil.negatives import filters
from counterfoil.negatives.filters import NearPairs, image_thumbnails, near_pictures


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


def slow(vectors: Tensor, least: float) -> list[tuple[int, int]]:
    centred = (vectors.double() - vectors.double().mean(0)).tolist()
    found = []
    for i, a in enumerate(centred):
        for j in range(i + 1, len(centred)):
            b = centred[j]
            lengths = (sum(x * x for x in a) * sum(x * x for x in b)) ** 0.5
            if lengths and sum(x * y for x, y in zip(a, b)) / lengths >= least:
                found.append((i, j))
    return found


def drawn(seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    vectors = torch.randn(50, 3, generator=rng)
    vectors[7] = vectors[3]
    vectors[40] = 2 * vectors[3] - vectors.mean(0)
    return vectors


@pytest.mark.parametrize("block", [7, 64])
@pytest.mark.parametrize("least", [0.2, 0.9, 0.999])
def test_near_pictures_are_all_pairs_that_reach(monkeypatch, block, least):
    monkeypatch.setattr(filters, "_BLOCK", block)
    vectors = drawn(0)
    near = near_pictures(of_vectors(vectors), least=least)
    assert pairs(near) == slow(vectors, least)
    assert near.score.dtype == torch.float32
    assert bool((near.score >= least).all())


def found(least: float) -> list[np.ndarray]:
    filters._BLOCK = 8
    near = near_pictures(of_vectors(drawn(1)), least=least)
    return [near.left.numpy(), near.right.numpy(), near.score.numpy()]


@pytest.mark.parametrize("least", [0.5, 1.0])
def test_processes_find_what_one_does(monkeypatch, least):
    monkeypatch.setattr(filters, "_BLOCK", 8)
    alone = found(least)
    for together in processes.run(found, 3, least):
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


def test_bad_input(monkeypatch):
    with pytest.raises(ValueError, match="toy has neither features nor pictures"):
        near_pictures(corpus_of(None, 3), least=0.5)
    with pytest.raises(ValueError, match="pictures=80: a cosine above 0 and up to 1"):
        near_pictures(of_vectors(drawn(0)), least=80)
    monkeypatch.setattr(filters, "MOST", 20)
    with pytest.raises(ValueError, match=r"pictures=0\.1 finds more than 20 pairs alike"):
        near_pictures(of_vectors(drawn(0)), least=0.1)
