from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, normalize

import bag_cases
from counterfoil.core.types import Embeddings
from counterfoil.models import hrem
from counterfoil.models.hrem import FragmentMatches, match_fragments

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


def test_borrowing_changes_nothing_where_nothing_is_padded():
    images, texts = bag_cases.bags()
    images, texts = images.rows(slice(1, 2)), texts.rows(slice(1, 2))
    for ours, theirs in zip(
        match_fragments(images, texts, BEST, borrowed=True),
        match_fragments(images, texts, BEST),
        strict=True,
    ):
        same(ours, theirs)


def test_borrowed_words_are_in_the_best_but_in_no_mean():
    rng = torch.Generator().manual_seed(0)
    regions, words = (torch.randn(1, 5, 6, generator=rng, dtype=torch.double) for _ in range(2))
    every = torch.ones(1, 5, dtype=torch.bool)
    short = torch.arange(5)[None] < 2
    _, whole = match_fragments(
        Embeddings(regions, every), Embeddings(words, every), 5, borrowed=True
    )
    by_images, by_texts = match_fragments(
        Embeddings(regions, every), Embeddings(words, short), 5, borrowed=True
    )
    torch.testing.assert_close(by_texts.best, whole.best)
    cosine = leaky_relu(normalize(words[0], dim=-1) @ normalize(regions[0], dim=-1).T, 0.1)
    torch.testing.assert_close(
        by_texts.mean[0, 0], (cosine / cosine.norm(dim=0)).amax(1)[:2].mean()
    )
    torch.testing.assert_close(
        by_images.mean[0, 0], (cosine / cosine.norm(dim=1, keepdim=True))[:2].amax(0).mean()
    )


def test_padded_regions_are_borrowed_too():
    images, texts = bag_cases.bags()
    filled = Embeddings(images.tokens.nan_to_num(0.5), images.mask)
    clean = Embeddings(texts.tokens.nan_to_num(0.5), texts.mask)
    borrowed, own = (
        match_fragments(filled, clean, 5, borrowed=True),
        match_fragments(filled, clean, 5),
    )
    assert (borrowed[1].mean - own[1].mean).abs().max() > 1e-3


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


def test_too_little_padding_to_borrow():
    images, texts = bag_cases.bags()
    with pytest.raises(ValueError, match="6 scores cannot be borrowed from items padded to 5"):
        match_fragments(images, texts, 6, borrowed=True)
