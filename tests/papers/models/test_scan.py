from __future__ import annotations

from itertools import product
from math import exp, log

import pytest
import torch
from torch.nn.functional import cosine_similarity, leaky_relu

from bag_cases import WIDTH, bags, each_pair, whole
from counterfoil.core.types import Embeddings
from counterfoil.models.layers import fused
from counterfoil.models.layers.cross_attention import CrossAttention
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.papers.models.scan import SCAN

DIRECTIONS = ("t2i", "i2t")
NORMS = ("clipped_l2norm", "l2norm", "softmax", "clipped", "no_norm")
AGGREGATES = ("LogSumExp", "Mean", "Max", "Sum")
EVERY = tuple(product(DIRECTIONS, NORMS))


def model(**options) -> SCAN:
    options = {"lambda_softmax": 4.0, "lambda_lse": 5.0} | options
    image, text = Regions(features=2, width=WIDTH), GRU(words=3, word_width=2, width=WIDTH)
    return SCAN(image=image, text=text, **options)


def slow(regions, words, direction, norm, how, softmax, lse):
    """One image (R, D) and one caption (L, D), as the paper writes it."""
    query, context = (words, regions) if direction == "t2i" else (regions, words)
    affinities = torch.stack([torch.stack([c @ q for q in query]) for c in context])
    if norm.startswith("clipped"):
        affinities = leaky_relu(affinities, 0.1)
    if norm.endswith("l2norm"):
        affinities = affinities / (affinities.norm(dim=1, keepdim=True) + 1e-8)
    if norm == "softmax":
        affinities = affinities.softmax(1)
    weights = (softmax * affinities).softmax(0)
    found = []
    for j, q in enumerate(query):
        attended = sum(weights[k, j] * c for k, c in enumerate(context))
        found.append(float(cosine_similarity(q, attended, dim=0)))
    if how == "LogSumExp":
        return log(sum(exp(lse * r) for r in found)) / lse
    return {"Mean": sum(found) / len(found), "Max": max(found), "Sum": sum(found)}[how]


@pytest.mark.parametrize("direction,norm", EVERY)
def test_equals_the_loop_over_pairs(direction, norm):
    images, texts = bags()
    for how, softmax in zip(AGGREGATES, (9.0, 4.0, 20.0, 40.0), strict=True):
        scan = model(direction=direction, raw_norm=norm, aggregate=how, lambda_softmax=softmax)
        grid = scan.score_matrix(images, texts)
        for v, w, score in each_pair(images, texts, grid):
            expected = slow(v, w, direction, norm, how, softmax, 5.0)
            assert score == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_loss_on_few_pairs_has_the_same_gradient(direction, monkeypatch):
    images, texts = bags(images=6, texts=8)
    weights = torch.zeros(6, 8, dtype=torch.double)
    weights[2, 3], weights[5, 3], weights[0, 0] = 1.0, -2.0, 0.5
    found = []
    for share in (0.0, 1.0):
        monkeypatch.setattr(fused, "SPARSE", share)
        leaves = [x.tokens.nan_to_num(7.0).requires_grad_() for x in (images, texts)]
        scores = model(direction=direction).score_matrix(
            Embeddings(leaves[0], images.mask), Embeddings(leaves[1], texts.mask)
        )
        found.append(torch.autograd.grad(scores, leaves, weights))
    for dense, sparse in zip(*found, strict=True):
        torch.testing.assert_close(sparse, dense)
        assert dense.any()


def test_untouched_pairs_are_not_visited(monkeypatch):
    images, texts = bags(images=6, texts=8)
    visited = []
    derivative = CrossAttention.derivative

    def spy(self, block, dot, square):
        visited.append(block.affinity.shape[2])
        return derivative(self, block, dot, square)

    monkeypatch.setattr(CrossAttention, "derivative", spy)
    words = texts.tokens.nan_to_num().requires_grad_()
    clean = Embeddings(images.tokens.nan_to_num(), images.mask)
    model().score_matrix(clean, Embeddings(words, texts.mask))[1, 2].backward()
    assert visited == [1]
    rows = words.grad.flatten(1).any(1)
    assert rows.tolist() == [t == 2 for t in range(8)]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_attention_sums_to_one_and_gives_the_score(direction):
    images, texts = bags(images=4, texts=4)
    scan = model(direction=direction, aggregate="Mean")
    maps = scan.word_region_maps(images, texts)
    assert maps.shape == (4, 6, 5)
    for p in range(4):
        words, regions = texts.mask[p], images.mask[p]
        real = maps[p][words][:, regions]
        v, w = images.tokens[p][regions], texts.tokens[p][words]
        torch.testing.assert_close(
            real.sum(1 if direction == "t2i" else 0),
            torch.ones(len(w) if direction == "t2i" else len(v), dtype=torch.double),
        )
        attended, query = (real @ v, w) if direction == "t2i" else (real.T @ w, v)
        score = cosine_similarity(attended, query).mean()
        torch.testing.assert_close(scan.score_pairs(images, texts)[p], score)


@pytest.mark.parametrize("direction,norm", EVERY)
def test_sharp_attention_does_not_overflow(direction, norm):
    scan = model(direction=direction, raw_norm=norm, lambda_softmax=90.0)
    found = []
    for kind in (torch.float32, torch.float64):
        bag = [Embeddings(20 * x.tokens.nan_to_num().to(kind), x.mask) for x in bags()]
        found.append(scan.score_matrix(*bag).double())
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)


def test_words_need_not_stand_at_the_front():
    images, texts = bags()
    spread = torch.full((4, 12, WIDTH), torch.nan, dtype=torch.double)
    mask = torch.zeros(4, 12, dtype=torch.bool)
    spread[:, 1::2], mask[:, 1::2] = texts.tokens, texts.mask
    for direction in DIRECTIONS:
        scan = model(direction=direction)
        torch.testing.assert_close(
            scan.score_matrix(images, Embeddings(spread, mask)), scan.score_matrix(images, texts)
        )


def test_gram_matrices_are_made_once_where_words_attend():
    items = whole(torch.randn(2, 3, 2))
    for scan in (model().train(), model().eval()):
        kept = scan.encode_images(items)
        torch.testing.assert_close(kept.gram, kept.tokens @ kept.tokens.transpose(1, 2))
    assert model(direction="i2t").eval().encode_images(items).gram is None


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("images", "texts"), [(0, 3), (2, 0)])
def test_no_images_or_no_captions_give_an_empty_matrix(direction, images, texts):
    some, words = (x.rows(slice(n)) for x, n in zip(bags(), (images, texts), strict=True))
    assert model(direction=direction).score_matrix(some, words).shape == (images, texts)


def test_an_empty_caption_is_refused():
    images, texts = bags()
    mask = texts.mask.clone()
    mask[2] = False
    with pytest.raises(ValueError, match="text 2 has no words"):
        model().score_matrix(images, Embeddings(texts.tokens, mask))
