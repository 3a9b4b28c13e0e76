from __future__ import annotations

import pytest
import torch

import bag_cases
from counterfoil.core.types import Embeddings, Pairs
from counterfoil.models.layers.fused import prepare_context
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.papers.models.bfan import BFAN
from counterfoil.papers.models.scan import SCAN

WIDTH = 5
PAIRS = Pairs(torch.tensor([3, 0, 0, 2, 3, 3, 1]), torch.tensor([1, 4, 0, 2, 1, 3, 0]))


def host(name: str):
    parts = {"image": Regions(features=2, width=WIDTH), "text": GRU(words=3, width=WIDTH)}
    return BFAN(**parts) if name == "bfan" else SCAN(**parts, direction=name)


def bags(garbage: float = torch.nan) -> tuple[Embeddings, Embeddings]:
    """Four images and five texts, padded with garbage."""
    images = bag_cases.bag([4, 1, 3, 4], WIDTH, longest=5, garbage=garbage)
    return images, bag_cases.bag([2, 5, 1, 2, 3], WIDTH, seed=1, longest=6, garbage=garbage)


@pytest.mark.parametrize("own", [False, True], ids=["no gram", "gram"])
@pytest.mark.parametrize("name", ["t2i", "i2t", "bfan"])
def test_equals_pairs_of_gathered_rows(name, own):
    model, found = host(name), []
    for ours in (True, False):
        images, texts = bags()
        leaves = [x.tokens.requires_grad_() for x in (images, texts)]
        images = prepare_context(images) if own else images
        scores = (
            model.score_indices(images, texts, PAIRS)
            if ours
            else model.score_pairs(images.rows(PAIRS.image), texts.rows(PAIRS.text))
        )
        weights = torch.arange(1.0, 8.0, dtype=torch.double)
        found.append((scores.detach(), *torch.autograd.grad(scores @ weights, leaves)))
    for ours, theirs in zip(*found, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, theirs)


def test_only_one_side_may_learn():
    images, texts = bags(garbage=0.0)
    words = texts.tokens.requires_grad_()
    host("bfan").score_indices(images, Embeddings(words, texts.mask), PAIRS).sum().backward()
    assert words.grad.isfinite().all()
    assert words.grad.any()


def test_half_precision_is_rounded_both_ways():
    images, texts = (Embeddings(x.tokens.float(), x.mask) for x in bags(garbage=0.0))
    words, found = texts.tokens.requires_grad_(), []
    for how in (
        host("t2i").score_indices,
        lambda v, w, p: host("t2i").score_pairs(v.rows(p.image), w.rows(p.text)),
    ):
        with torch.autocast("cpu", torch.bfloat16):
            scores = how(images, Embeddings(words, texts.mask), PAIRS)
        assert scores.dtype == torch.float32
        found.append((scores.detach(), *torch.autograd.grad(scores.sum(), words)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)


def test_no_pairs_have_no_scores():
    nothing = torch.zeros(0, dtype=torch.long)
    assert host("bfan").score_indices(*bags(), Pairs(nothing, nothing)).shape == (0,)


@pytest.mark.parametrize("name", ["t2i", "i2t", "bfan"])
def test_padding_may_stand_between_the_words(name):
    images, texts = bags()
    texts.tokens[1, 1], texts.mask[1, 1] = torch.nan, False
    ours = host(name).score_indices(images, texts, PAIRS)
    theirs = host(name).score_pairs(images.rows(PAIRS.image), texts.rows(PAIRS.text))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["t2i", "i2t", "bfan"])
def test_a_loss_may_look_at_no_score(name):
    images, texts = bags(garbage=0.0)
    words = texts.tokens.requires_grad_()
    (host(name).score_indices(images, Embeddings(words, texts.mask), PAIRS) * 0).sum().backward()
    assert not words.grad.any()


@pytest.mark.parametrize("name", ["t2i", "i2t", "bfan"])
def test_pools_may_lie_the_other_way_in_memory(name):
    found = []
    for turn in (False, True):
        leaves = [x.tokens.requires_grad_() for x in bags(garbage=0.0)]
        tokens = [x.mT.contiguous().mT if turn else x for x in leaves]
        pools = (Embeddings(x, bag.mask) for x, bag in zip(tokens, bags(), strict=True))
        scores = host(name).score_indices(*pools, PAIRS)
        found.append((scores.detach(), *torch.autograd.grad(scores.sum(), leaves)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
