from __future__ import annotations

from math import exp, log

import pytest
import torch

from counterfoil.core.types import Embeddings
from counterfoil.models.layers.cross_attention import QueryPooling
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


@pytest.mark.parametrize("kind", ["LogSumExp", "Mean", "Max", "Sum", "Softmax"])
def test_queries_that_the_mask_hides_are_left_out(kind):
    similarity, pooling = torch.randn(4, 5, dtype=torch.double), QueryPooling(kind, 3.0)
    mask = torch.tensor([[True, False, True, True, False]])
    masked = pooling.pool(similarity, 1, mask.expand(4, 5))
    torch.testing.assert_close(masked, pooling.pool(similarity[:, mask[0]], 1, None))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("Mean", 0.5),
        ("Max", 1.0),
        ("Sum", 1.0),
        ("LogSumExp", log(exp(6) + 1) / 6),
        ("Softmax", exp(6) / (exp(6) + 1)),
    ],
)
def test_pooled_queries_by_hand(kind, expected):
    similarity = torch.tensor([[0.0, 1.0]])
    assert QueryPooling(kind, 6.0).pool(similarity, 1, None).item() == pytest.approx(expected)
    halved = QueryPooling(kind, 6.0, divisor=2.0).pool(similarity, 1, None)
    assert halved.item() == pytest.approx(expected / 2)
