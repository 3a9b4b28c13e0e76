from __future__ import annotations

import math

import pytest
import torch

from counterfoil.core.types import Embeddings
from counterfoil.evaluation.metrics import holds_bags, single_unit_vectors
from counterfoil.scoring.encode import EmbeddedDataset
from evaluation_cases import Product


def bag(rows: int, length: int, width: int, seed: int) -> Embeddings:
    rng = torch.Generator().manual_seed(seed)
    mask = torch.arange(length) < torch.randint(1, length + 1, (rows, 1), generator=rng)
    return Embeddings(torch.randn(rows, length, width, generator=rng), mask)


def slow(tokens: torch.Tensor, mask: torch.Tensor) -> list[float]:
    total = sum(token / token.norm() for token, real in zip(tokens, mask) if real)
    return (total / total.norm()).tolist()


def test_a_bag_is_the_mean_of_its_unit_vectors():
    bags = bag(6, 4, 3, 0)
    for found, tokens, mask in zip(single_unit_vectors([bags]), bags.tokens, bags.mask):
        assert found.tolist() == pytest.approx(slow(tokens, mask), abs=1e-6)


def test_padding_changes_nothing():
    bags = bag(6, 4, 3, 0)
    poisoned = bags.tokens.masked_fill(~bags.mask.unsqueeze(2), math.nan)
    assert torch.equal(
        single_unit_vectors([Embeddings(poisoned, bags.mask)]), single_unit_vectors([bags])
    )


def test_an_ensemble_has_the_mean_cosine():
    first, second = bag(5, 1, 3, 1), bag(5, 1, 7, 2)
    found = single_unit_vectors([first, second])
    cosines = [one @ one.T for one in (single_unit_vectors([first]), single_unit_vectors([second]))]
    assert torch.allclose(found @ found.T, sum(cosines) / 2, atol=1e-6)


def test_what_is_a_bag():
    vectors, words = bag(3, 1, 2, 0), bag(3, 2, 2, 0)
    assert not holds_bags([EmbeddedDataset(Product(), vectors, vectors)])
    assert holds_bags(
        [EmbeddedDataset(Product(), vectors, vectors), EmbeddedDataset(Product(), vectors, words)]
    )
