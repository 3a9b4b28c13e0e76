from __future__ import annotations

from itertools import product
from math import exp, log, sqrt

import pytest
import torch

from bag_cases import WIDTH, bags, each_pair, whole
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.papers.models.chan import CHAN

CODINGS = ("VHA", "THA", "VSA")
POOLINGS = ("LSE", "Mean", "Max", "Sum", "Softmax")
EVERY = tuple(product(CODINGS, POOLINGS))


def model(**options) -> CHAN:
    image, text = Regions(features=2, width=WIDTH), GRU(words=3, word_width=2, width=WIDTH)
    return CHAN(image=image, text=text, **options)


def plane(*rows: list[list[float]]) -> Embeddings:
    """Bags of plane vectors, as many in each, nothing hidden."""
    tokens = torch.tensor(rows, dtype=torch.double)
    return Embeddings(tokens, torch.ones(tokens.shape[:2], dtype=torch.bool))


def slow(regions, words, coding, pooling, alpha, beta) -> float:
    """The paper's equations over plain lists of vectors."""

    def dot(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    if coding == "VHA":
        found = [max(dot(v, w) for v in regions) for w in words]
    elif coding == "THA":
        found = [max(dot(v, w) for w in words) for v in regions]
    else:
        found = []
        for v in regions:
            weights = [exp(dot(v, w) / alpha) for w in words]
            mean = [
                sum(p * w[d] for p, w in zip(weights, words, strict=True)) for d in range(WIDTH)
            ]
            found.append(dot(v, mean) / sqrt(dot(mean, mean)))
    if pooling == "LSE":
        return log(sum(exp(s / beta) for s in found))
    if pooling == "Softmax":
        return sum(exp(s / beta) * s for s in found) / sum(exp(s / beta) for s in found)
    return {"Max": max(found), "Sum": sum(found), "Mean": sum(found) / len(found)}[pooling]


@pytest.mark.parametrize(("coding", "pooling"), EVERY)
def test_equals_the_loop_over_pairs(coding, pooling):
    images, texts = bags()
    grid = model(coding=coding, pooling=pooling, alpha=0.7, beta=0.4).score_matrix(images, texts)
    for v, w, score in each_pair(images, texts, grid):
        expected = slow(v.tolist(), w.tolist(), coding, pooling, 0.7, 0.4)
        assert score == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("angle", [1.0, -1.0])
def test_cosines_below_zero_and_of_minus_one_count(angle):
    """An affinity is never taken for padding, not even -1."""
    texts = plane([[1.0, 0.0], [1.0, 0.0]])
    images = Embeddings(
        torch.tensor([[[-1.0, 0.0], [angle, 7.0]]], dtype=torch.double),
        torch.tensor([[True, False]]),
    )
    image, text = Regions(features=1, width=2), GRU(words=1, word_width=1, width=2)
    expected = {"LSE": -10 + log(2), "Mean": -1, "Max": -1, "Sum": -2, "Softmax": -1}
    for pooling, value in expected.items():
        host = CHAN(image=image, text=text, pooling=pooling)
        assert host.score_matrix(images, texts).item() == pytest.approx(value)
        assert host.score_pairs(images, texts).item() == pytest.approx(value)


@pytest.mark.parametrize("coding", CODINGS)
def test_one_region_and_one_word_are_their_cosine(coding):
    images, texts = plane([[0.6, 0.8]], [[-1.0, 0.0]]), plane([[1.0, 0.0]])
    image, text = Regions(features=1, width=2), GRU(words=1, word_width=1, width=2)
    for pooling, scale in {"LSE": 10, "Mean": 1, "Max": 1, "Sum": 1, "Softmax": 1}.items():
        host = CHAN(image=image, text=text, coding=coding, pooling=pooling)
        assert host.score_scale == pytest.approx(scale)
        expected = [scale * 0.6, -scale]
        assert host.score_matrix(images, texts)[:, 0].tolist() == pytest.approx(expected)


def test_of_equal_regions_one_learns():
    """In every form the same one, so that forms agree in gradients too."""
    tokens = torch.ones(2, 4, WIDTH, dtype=torch.double)
    words = torch.ones(2, 3, WIDTH, dtype=torch.double)
    masks = [torch.ones(x.shape[:2], dtype=torch.bool) for x in (tokens, words)]
    for coding in ("VHA", "THA"):
        host, found = model(coding=coding, pooling="Sum"), []
        for score in (host.score_matrix, host.score_pairs):
            leaves = [x.clone().requires_grad_() for x in (tokens, words)]
            scores = score(*(Embeddings(x, m) for x, m in zip(leaves, masks, strict=True)))
            diagonal = scores.diagonal() if scores.dim() == 2 else scores
            found.append(torch.autograd.grad(diagonal.sum(), leaves))
        for ours, theirs in zip(*found, strict=True):
            assert torch.equal(ours, theirs)
        (learnt,) = (g for g in found[0] if g.shape == (tokens if coding == "VHA" else words).shape)
        assert (learnt != 0).any(2).sum(1).tolist() == [1, 1]


@pytest.mark.parametrize("sees", ["regions", "padding", "batch"])
def test_only_the_authors_forms_depend_on_the_batch(sees):
    torch.manual_seed(0)
    image = Regions(features=2, width=16)
    host = CHAN(image=image, text=GRU(words=3, width=16), block="selfattention", sees=sees).eval()
    items = ModalityBatch(
        torch.arange(2), torch.randn(2, 3, 2), torch.tensor([[True] * 3, [True, False, False]])
    )
    alone = items.rows(slice(1, 2))
    short = ModalityBatch(alone.ids, alone.values[:, :1], alone.mask[:, :1])
    together, apart = (host.encode_images(x).tokens[-1, 0] for x in (items, short))
    assert torch.allclose(together, apart, atol=1e-6) == (sees == "regions")


def test_dropped_regions_and_words_leave_a_score():
    torch.manual_seed(0)
    image = Regions(features=2, width=8, region_drop=0.5)
    host = CHAN(image=image, text=GRU(words=9, width=8), block="selfattention").train()
    images = host.encode_images(whole(torch.randn(6, 4, 2)))
    assert not images.mask.all()
    texts = host.encode_texts(whole(torch.tensor([[1, 2]])))
    host.score_matrix(images, texts).sum().backward()
    assert all(p.grad.isfinite().all() for p in host.parameters())
