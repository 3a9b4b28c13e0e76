from __future__ import annotations

import pytest
import torch

import bag_cases
from counterfoil.core.types import Embeddings
from counterfoil.papers.models.hrem import ResidualPool, top_mean


def test_top_mean_equals_a_loop_over_items():
    bag, _ = bag_cases.bags(images=5)
    for highest in (1, 2, 3):
        for vector, tokens, mask in zip(top_mean(bag, highest), bag.tokens, bag.mask):
            own = tokens[mask].sort(0, descending=True).values[:highest]
            torch.testing.assert_close(vector, own.mean(0))


def test_equal_values_count_each():
    bag = Embeddings(torch.ones(1, 3, 2), torch.ones(1, 3, dtype=torch.bool))
    assert torch.equal(top_mean(bag, 2), torch.ones(1, 2))


@pytest.mark.parametrize("training", [True, False])
def test_it_mixes_the_highest_with_the_layers_mean(training):
    torch.manual_seed(0)
    head = ResidualPool(width=6, heads=3, dropout=0.0, residual=0.7).double().train(training)
    bag, _ = bag_cases.bags(images=4)
    for vector, tokens, mask in zip(head(bag), bag.tokens, bag.mask):
        alone = head.layer(tokens[mask][None])[0].mean(0)
        own = Embeddings(tokens[mask][None], mask[mask][None])
        torch.testing.assert_close(vector, 0.7 * top_mean(own, 2)[0] + 0.3 * alone)


def test_an_empty_item_gives_zeros_and_no_nan():
    head = ResidualPool(width=6, heads=2).double()
    bag, _ = bag_cases.bags()
    bag.mask[0] = False
    vectors = head(bag)
    assert vectors[0].abs().max() == 0
    vectors.sum().backward()
    assert all(p.grad.isfinite().all() for p in head.parameters())
