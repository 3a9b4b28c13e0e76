from __future__ import annotations

import torch

import bag_cases
from counterfoil.core.types import Embeddings
from counterfoil.papers.models.esa import ExternalAttention

N, L, D = 4, 5, 3


def made() -> ExternalAttention:
    torch.manual_seed(0)
    return ExternalAttention(width=D).double()


def bag() -> Embeddings:
    return bag_cases.bag([4, 1, 2, 3], D, longest=L)


def slowly(pool: ExternalAttention, vectors: torch.Tensor) -> torch.Tensor:
    """One item, dimension after dimension."""
    logits = vectors @ pool.fc.weight.T + pool.fc.bias
    return torch.stack([logits[:, d].softmax(0) @ vectors[:, d] for d in range(D)])


def test_every_dimension_has_weights_of_its_own():
    pool, items = made(), bag()
    found = pool(items)
    assert found.shape == (N, 1, D)
    for row in range(N):
        expected = slowly(pool, items.tokens[row, items.mask[row]])
        torch.testing.assert_close(found[row, 0], expected)


def test_a_copy_is_pooled_from_what_it_keeps():
    pool, items = made(), bag()
    keep = torch.rand(N, 3, L, generator=torch.Generator().manual_seed(1)) < 0.6
    found = pool(items, keep)
    assert found.shape == (N, 3, D)
    for row in range(N):
        for copy in range(3):
            kept = keep[row, copy] & items.mask[row]
            kept = kept if kept.any() else items.mask[row]
            torch.testing.assert_close(found[row, copy], slowly(pool, items.tokens[row, kept]))


def test_a_copy_that_would_keep_nothing_keeps_all():
    pool, items = made(), bag()
    none = torch.zeros(N, 2, L, dtype=torch.bool)
    torch.testing.assert_close(pool(items, none), pool(items).expand(N, 2, D))


def test_an_item_without_any_is_zero_and_harmless():
    pool, items = made(), bag()
    empty = Embeddings(items.tokens, torch.zeros_like(items.mask))
    found = pool(empty)
    found.sum().backward()
    assert not found.any()
    assert all(not p.grad.any() for p in pool.parameters())


def test_gradients_agree_with_finite_differences():
    pool, items = made(), bag()
    tokens = items.tokens.nan_to_num(0.0).requires_grad_()
    keep = torch.rand(N, 2, L, generator=torch.Generator().manual_seed(2)) < 0.7
    assert torch.autograd.gradcheck(lambda t: pool(Embeddings(t, items.mask), keep), (tokens,))
