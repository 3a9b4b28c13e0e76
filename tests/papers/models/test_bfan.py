from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cosine_similarity, leaky_relu

from bag_cases import WIDTH, bags, each_pair, whole
from counterfoil.core.types import Embeddings
from counterfoil.models.layers.cross_attention import focal_weights
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.papers.models.bfan import BFAN

RULES = ("equal", "prob")


def model(focus: str = "equal", **options) -> BFAN:
    image, text = Regions(features=2, width=WIDTH), GRU(words=3, word_width=2, width=WIDTH)
    return BFAN(image=image, text=text, focus=focus, **options)


def margins(focus: str, row: list[float]) -> list[float]:
    """What the authors compare with 0, with its sums written out."""
    if focus == "equal":
        return [x * len(row) - sum(row) for x in row]
    return [sum((x - y) * y**0.5 for y in row) for x in row]


def keeps(focus: str, row: list[float]) -> list[bool]:
    """The authors' rules, but the largest is always kept."""
    above = margins(focus, row)
    return [m > 0 or x == max(row) for m, x in zip(above, row, strict=True)]


def slow_way(query: Tensor, context: Tensor, focus: str, softmax: float) -> float:
    """Mean cosine of the queries with what they attend to, as the paper writes it."""
    affinities = torch.stack([torch.stack([c @ q for q in query]) for c in context])
    affinities = leaky_relu(affinities, 0.1)
    affinities = affinities / (affinities.norm(dim=1, keepdim=True) + 1e-8)
    weights = (softmax * affinities).softmax(0)
    found = 0.0
    for j, q in enumerate(query):
        kept = torch.tensor(keeps(focus, weights[:, j].tolist()))
        again = weights[:, j] * kept / (weights[:, j] * kept).sum()
        attended = sum(again[k] * c for k, c in enumerate(context))
        found += float(cosine_similarity(q, attended, dim=0))
    return found / len(query)


@pytest.mark.parametrize("softmax", [4.0, 20.0, 40.0])
@pytest.mark.parametrize("focus", RULES)
def test_equals_the_loop_over_pairs(focus, softmax):
    images, texts = bags()
    grid = model(focus, lambda_softmax=softmax).score_matrix(images, texts)
    for v, w, score in each_pair(images, texts, grid):
        expected = slow_way(w, v, focus, softmax) + slow_way(v, w, focus, softmax)
        assert score == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("focus", RULES)
def test_uniform_rows_stay_uniform(focus, dtype):
    """Equal regions and equal words: nothing is above the mean, in values or in gradients."""
    rng = torch.Generator().manual_seed(0)
    for regions, words in product((1, 2, 7, 36), (1, 3, 11, 50)):
        v = torch.randn(2, 1, WIDTH, generator=rng).to(dtype).expand(-1, regions, -1)
        w = torch.randn(3, 1, WIDTH, generator=rng).to(dtype).expand(-1, words, -1)
        leaves = [x.clone().requires_grad_() for x in (v, w)]
        masks = [torch.ones(x.shape[:2], dtype=torch.bool) for x in leaves]
        images, texts = (Embeddings(x, m) for x, m in zip(leaves, masks, strict=True))
        scores = model(focus).score_matrix(images, texts)
        expected = 2 * cosine_similarity(v[:, None, 0], w[None, :, 0], dim=-1)
        torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
        assert all(g.isfinite().all() for g in torch.autograd.grad(scores.sum(), leaves))
        one = Embeddings(leaves[1][:2], masks[1][:2])
        torch.testing.assert_close(model(focus).score_pairs(images, one), scores.diagonal())


@pytest.mark.parametrize("focus", RULES)
def test_attention_sums_to_one_and_gives_the_score(focus):
    images, texts = bags(images=4, texts=4)
    host = model(focus)
    by_words, by_regions = (host.word_region_maps(images, texts, way) for way in ("t2i", "i2t"))
    for p in range(4):
        words, regions = texts.mask[p], images.mask[p]
        v, w = images.tokens[p][regions], texts.tokens[p][words]
        over_regions, over_words = (m[p][words][:, regions] for m in (by_words, by_regions))
        torch.testing.assert_close(over_regions.sum(1), torch.ones(len(w), dtype=torch.double))
        torch.testing.assert_close(over_words.sum(0), torch.ones(len(v), dtype=torch.double))
        score = cosine_similarity(over_regions @ v, w).mean()
        score = score + cosine_similarity(over_words.T @ w, v).mean()
        torch.testing.assert_close(host.score_pairs(images, texts)[p], score)


@settings(max_examples=100, deadline=None)
@given(row=st.lists(st.integers(0, 50), min_size=1, max_size=12), padding=st.integers(0, 3))
def test_the_closed_form_keeps_what_the_sums_keep(row, padding):
    row = [(1 + x) / 51 for x in row]
    weight = torch.tensor([*row, *[0.0] * padding], dtype=torch.double)
    mask = torch.arange(len(weight)) < len(row)
    for focus in RULES:
        assume(len(set(row)) == 1 or min(map(abs, margins(focus, row))) > 1e-12)
        kept = focal_weights(focus, weight, 0, mask) > 0
        assert kept.tolist() == [*keeps(focus, row), *[False] * padding]
        assert torch.equal(focal_weights(focus, 8 * weight, 0, mask) > 0, kept)


def test_gram_matrices_are_made_once():
    items = whole(torch.randn(2, 3, 2))
    for host in (model().train(), model().eval()):
        kept = host.encode_images(items)
        torch.testing.assert_close(kept.gram, kept.tokens @ kept.tokens.mT)


def test_a_score_is_a_sum_of_two_cosines():
    v = torch.eye(WIDTH)[:2, None]
    both = Embeddings(v, torch.ones(2, 1, dtype=torch.bool))
    assert model().score_scale == 2.0
    torch.testing.assert_close(model().score_matrix(both, both), 2 * torch.eye(2))
