from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

import bag_cases
from counterfoil.core.types import Embeddings
from counterfoil.models import vsepp
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.models.vsepp import VSEPP


def model(**options) -> VSEPP:
    return VSEPP(
        image=Regions(features=3, width=4),
        text=GRU(words=9, word_width=2, width=4, bidirectional=False),
        **options,
    )


def bag(n: int) -> Embeddings:
    return Embeddings(torch.randn(n, 1, 4), torch.ones(n, 1, dtype=torch.bool))


def test_order_measures_what_the_image_lacks():
    images = Embeddings(torch.tensor([[[1.0, 2.0, 0.0, 0.0]]]), torch.ones(1, 1, dtype=torch.bool))
    texts = Embeddings(torch.tensor([[[4.0, 1.0, 4.0, 0.0]]]), torch.ones(1, 1, dtype=torch.bool))
    assert model(measure="order").score_matrix(images, texts).item() == pytest.approx(-5.0)


def test_order_in_tiles_is_the_same(monkeypatch):
    images, texts = bag(5), bag(3)
    whole = model(measure="order").score_matrix(images, texts)
    monkeypatch.setattr(vsepp, "CELLS_AT_ONCE", 24)
    assert torch.equal(model(measure="order").score_matrix(images, texts), whole)


def test_order_has_a_gradient_where_nothing_is_broken():
    image = torch.ones(2, 1, 4, dtype=torch.double, requires_grad=True)
    text = torch.zeros(2, 1, 4, dtype=torch.double, requires_grad=True)
    mask = torch.ones(2, 1, dtype=torch.bool)
    scores = model(measure="order").score_matrix(Embeddings(image, mask), Embeddings(text, mask))
    grads = torch.autograd.grad(scores.sum(), [image, text])
    assert all(torch.equal(g, torch.zeros_like(g)) for g in grads)


def test_absolute_vectors_are_not_negative():
    items = bag_cases.whole(torch.randn(9, 1, 3))
    host = model(absolute=True)
    plain = host.image.fc(items.values[:, 0])
    assert (plain < 0).any()
    expected = plain.abs() / plain.norm(dim=1, keepdim=True)
    torch.testing.assert_close(host.encode_images(items).tokens[:, 0], expected)


@pytest.mark.parametrize("measure", ["cosine", "order"])
def test_gradient(measure):
    mask = torch.ones(3, 1, dtype=torch.bool)
    leaves = [torch.randn(3, 1, 4, dtype=torch.double, requires_grad=True) for _ in range(2)]
    host = model(measure=measure)
    assert gradcheck(
        lambda v, w: host.score_matrix(Embeddings(v, mask), Embeddings(w, mask)), leaves
    )


def test_normalised_or_not():
    items = bag_cases.whole(torch.randn(2, 1, 3))
    lengths = model().encode_images(items).tokens.norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones(2, 1))
    plain = model(normalise_images=False)
    torch.testing.assert_close(
        plain.encode_images(items).tokens[:, 0], plain.image.fc(items.values[:, 0])
    )
