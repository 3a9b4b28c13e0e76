"""What holds for every model of cross-attention: SCAN, BFAN, CHAN and NAAF."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.autograd import gradcheck

from bag_cases import WIDTH, bags
from counterfoil.core.types import Embeddings, Pairs
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers import cross_attention, fused
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.papers.models.bfan import BFAN
from counterfoil.papers.models.chan import CHAN
from counterfoil.papers.models.naaf import NAAF
from counterfoil.papers.models.scan import SCAN

NORMS = ("clipped_l2norm", "l2norm", "softmax", "clipped", "no_norm")
CODINGS = (*product(("VHA", "THA", "VSA"), ("LSE",)), *product(("VHA",), ("Mean", "Softmax")))
MODELS = {
    **{
        f"scan-{direction}-{norm}": (
            SCAN,
            {"direction": direction, "raw_norm": norm, "lambda_softmax": 4.0, "lambda_lse": 5.0},
        )
        for direction, norm in product(("t2i", "i2t"), NORMS)
    },
    **{
        f"bfan-{focus}": (BFAN, {"focus": focus, "lambda_softmax": 4.0})
        for focus in ("equal", "prob")
    },
    **{
        f"chan-{coding}-{pooling}": (
            CHAN,
            {"coding": coding, "pooling": pooling, "alpha": 0.7, "beta": 0.4},
        )
        for coding, pooling in CODINGS
    },
    "naaf": (NAAF, {"lambda_softmax": 5.0}),
}
POOLED = tuple(name for name in MODELS if name != "naaf")


def model(name: str) -> RetrievalModel:
    kind, options = MODELS[name]
    image, text = Regions(features=2, width=WIDTH), GRU(words=3, word_width=2, width=WIDTH)
    return kind(image=image, text=text, **options).double()


@pytest.mark.parametrize("share", [0.0, 1.1], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", POOLED)
def test_gradient(name, share, monkeypatch):
    monkeypatch.setattr(fused, "SPARSE", share)
    images, texts = bags()
    host, some = model(name), Pairs(torch.tensor([2, 0, 0, 2]), torch.tensor([1, 3, 0, 1]))

    def scores(v, w):
        some_images, some_texts = Embeddings(v, images.mask), Embeddings(w, texts.mask)
        return (
            host.score_matrix(some_images, some_texts),
            host.score_pairs(some_images, some_texts.rows(slice(3))),
            host.score_indices(some_images, some_texts, some),
        )

    leaves = [x.tokens.nan_to_num(7.0).requires_grad_() for x in (images, texts)]
    assert gradcheck(scores, leaves, fast_mode=True)


@pytest.mark.parametrize("name", MODELS)
def test_every_way_to_score_has_the_same_gradient(name):
    images, texts = bags(images=6, texts=8)
    image, text = torch.tensor([5, 0, 0, 3, 2, 5]), torch.tensor([1, 7, 0, 3, 3, 1])
    leaves = [x.tokens.clone().requires_grad_() for x in (images, texts)]
    host = model(name)
    images, texts = (Embeddings(v, x.mask) for v, x in zip(leaves, (images, texts), strict=True))
    every = (
        host.score_matrix(images, texts)[image, text],
        host.score_pairs(images.rows(image), texts.rows(text)),
        host.score_indices(images, texts, Pairs(image, text)),
    )
    found = [(s.detach(), *torch.autograd.grad(s.square().sum(), leaves)) for s in every]
    for others in found[1:]:
        for ours, theirs in zip(found[0], others, strict=True):
            assert ours.isfinite().all()
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", MODELS)
def test_tiles_change_nothing(name, monkeypatch):
    images, texts = bags(images=7, texts=9)
    host = model(name)
    whole = host.score_matrix(images, texts)
    monkeypatch.setattr(cross_attention, "IMAGES_AT_ONCE", 3)
    monkeypatch.setattr(cross_attention, "CELLS_AT_ONCE", 100)
    monkeypatch.setattr(fused, "CELLS_IN_CACHE", 40)
    torch.testing.assert_close(host.score_matrix(images, texts), whole)


@pytest.mark.parametrize("name", POOLED)
def test_an_image_without_regions_is_one_zero_region(name):
    """However many places it has."""
    images, texts = bags()
    regions = images.tokens.clone().requires_grad_()
    nothing = Embeddings(regions, images.mask & torch.tensor([[True], [False], [True]]))
    zero = Embeddings(torch.zeros(1, 1, WIDTH, dtype=torch.double), torch.ones(1, 1).bool())
    host = model(name)
    expected, grid = host.score_matrix(zero, texts)[0], host.score_matrix(nothing, texts)
    torch.testing.assert_close(grid[1], expected)
    torch.testing.assert_close(host.score_matrix(nothing.padded(9), texts), grid)
    torch.testing.assert_close(host.score_pairs(nothing, texts.rows(slice(3))), grid.diagonal())
    assert torch.autograd.grad(grid.sum(), regions)[0].isfinite().all()
