from __future__ import annotations

import pytest
import torch

from counterfoil.core.types import Embeddings
from counterfoil.models.layers.cross_attention import aggregate
from counterfoil.models.layers.pooling import POOLS, pool_vectors, unit_vectors

TOKENS = torch.tensor([[[1.0, -2.0], [3.0, -4.0], [9.0, 9.0]]])
MASK = torch.tensor([[True, True, False]])
EXPECTED = {
    "mean": [2.0, -3.0],
    "max": [3.0, -2.0],
    "mean+max": [5.0, -5.0],
    "first": [1.0, -2.0],
    "last": [3.0, -4.0],
}


@pytest.mark.parametrize("kind", POOLS)
def test_pool_by_hand(kind):
    assert pool_vectors(kind, Embeddings(TOKENS, MASK)).tolist() == [EXPECTED[kind]]


@pytest.mark.parametrize("kind", POOLS)
def test_an_empty_bag_is_zero(kind):
    empty = Embeddings(TOKENS * torch.nan, torch.zeros_like(MASK))
    assert pool_vectors(kind, empty).tolist() == [[0.0, 0.0]]


def test_a_zero_vector_stays_zero():
    made = unit_vectors(Embeddings(torch.tensor([[[0.0, 0.0], [3.0, 4.0]]]), MASK[:, :2]))
    torch.testing.assert_close(made.tokens, torch.tensor([[[0.0, 0.0], [0.6, 0.8]]]))


@pytest.mark.parametrize("kind", ["LogSumExp", "Mean", "Max", "Sum"])
def test_aggregate_leaves_out_what_the_mask_hides(kind):
    similarity = torch.randn(4, 5, dtype=torch.double)
    mask = torch.tensor([[True, False, True, True, False]])
    masked = aggregate(kind, similarity, 1, mask.expand(4, 5), 3.0)
    torch.testing.assert_close(masked, aggregate(kind, similarity[:, mask[0]], 1, None, 3.0))


def test_aggregate_by_hand():
    similarity = torch.tensor([[0.0, 1.0]])
    assert aggregate("Mean", similarity, 1, None, 6.0).item() == 0.5
    assert aggregate("Max", similarity, 1, None, 6.0).item() == 1.0
    assert aggregate("Sum", similarity, 1, None, 6.0).item() == 1.0
    expected = (torch.tensor(6.0).exp() + 1).log() / 6
    assert aggregate("LogSumExp", similarity, 1, None, 6.0).item() == pytest.approx(expected.item())
