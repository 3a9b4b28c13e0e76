from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, normalize

import bag_cases
from counterfoil.core.types import Embeddings
from counterfoil.papers.models import hrem
from counterfoil.papers.models.hrem import FragmentMatches, match_fragments

BEST = 4


def loop(images: Embeddings, texts: Embeddings) -> tuple[FragmentMatches, FragmentMatches]:
    """One image and one text after the other, from their real fragments only."""
    shape = len(images), len(texts)
    by_images = FragmentMatches(torch.zeros(*shape, BEST).double(), torch.zeros(shape).double())
    by_texts = FragmentMatches(
        torch.zeros(*shape[::-1], BEST).double(), torch.zeros(shape[::-1]).double()
    )
    for i, regions in enumerate(real(images)):
        for t, words in enumerate(real(texts)):
            cosine = leaky_relu(words @ regions.T, 0.1)
            note(by_texts, (t, i), (cosine / cosine.norm(dim=0)).amax(1))
            note(by_images, (i, t), (cosine / cosine.norm(dim=1, keepdim=True)).amax(0))
    return by_images, by_texts


def real(items: Embeddings) -> list[Tensor]:
    return [normalize(row[mask], dim=-1) for row, mask in zip(items.tokens, items.mask)]


def note(into: FragmentMatches, place: tuple[int, int], scores: Tensor) -> None:
    best = scores.sort(descending=True).values[:BEST]
    into.best[place][: len(best)] = best
    into.mean[place] = scores.mean()


def same(one: FragmentMatches, other: FragmentMatches) -> None:
    torch.testing.assert_close(one.best, other.best)
    torch.testing.assert_close(one.mean, other.mean)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cells", [1, 100, 1 << 20])
def test_it_equals_a_loop_over_images_and_texts(seed, cells, monkeypatch):
    monkeypatch.setattr(hrem, "CELLS_IN_CACHE", cells)
    monkeypatch.setattr(hrem, "CELLS_AT_ONCE", 4 * cells)
    images, texts = bag_cases.bags(seed, images=4, texts=7)
    for ours, theirs in zip(match_fragments(images, texts, BEST), loop(images, texts), strict=True):
        same(ours, theirs)


def test_empty_items_find_nothing():
    images, texts = bag_cases.bags()
    images.mask[0], texts.mask[0] = False, False
    by_images, by_texts = match_fragments(images, texts, BEST)
    for seen in (by_images, by_texts):
        assert seen.best[0].abs().max() == seen.mean[0].abs().max() == 0
        assert seen.mean[1:, 1:].abs().min() > 0
        assert seen.best.isfinite().all()


def test_half_precision_is_read_in_full():
    images, texts = bag_cases.bags()
    half = [Embeddings(x.tokens.bfloat16(), x.mask) for x in (images, texts)]
    full = [Embeddings(x.tokens.float(), x.mask) for x in half]
    for ours, theirs in zip(
        match_fragments(*half, BEST), match_fragments(*full, BEST), strict=True
    ):
        assert ours.mean.dtype == torch.float32
        same(ours, theirs)
