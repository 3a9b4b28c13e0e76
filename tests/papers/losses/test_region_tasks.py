"""Losses of hidden regions against their definitions."""

from __future__ import annotations

import torch

from counterfoil.papers.pretraining.losses import (
    likeliest_class,
    region_classification,
    region_kl_divergence,
    region_regression,
)


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def test_the_background_is_never_the_class():
    classes = torch.tensor([[0.9, 0.02, 0.08], [0.1, 0.6, 0.3]])
    assert likeliest_class(classes).tolist() == [2, 1]


def test_classification_is_the_log_probability_of_the_class():
    logits, classes = drawn(0, 4, 5), drawn(1, 4, 5).softmax(1)
    found = region_classification(logits, classes)
    for row in range(4):
        place = max(range(1, 5), key=lambda c: float(classes[row, c]))
        assert torch.isclose(found[row], -logits[row].softmax(0)[place].log())


def test_divergence_sums_to_that_of_the_distributions():
    logits, classes = drawn(0, 4, 5), drawn(1, 4, 5).softmax(1)
    expected = (classes * (classes / logits.softmax(1)).log()).sum(1)
    torch.testing.assert_close(region_kl_divergence(logits, classes).sum(1), expected)
    agreed = region_kl_divergence(classes.log(), classes)
    torch.testing.assert_close(agreed, torch.zeros_like(agreed), atol=1e-12, rtol=0)


def test_a_class_that_is_impossible_costs_nothing():
    found = region_kl_divergence(drawn(0, 1, 3), torch.tensor([[0.0, 1.0, 0.0]]).double())
    assert found[0, [0, 2]].tolist() == [0, 0]


def test_regression_is_squared():
    assert region_regression(torch.tensor([[1.0, -2.0]]), torch.tensor([[0.0, 1.0]])).tolist() == [
        [1, 9]
    ]


def test_gradients():
    logits, classes = drawn(0, 3, 4).requires_grad_(), drawn(1, 3, 4).softmax(1)
    for loss in (region_classification, region_kl_divergence, region_regression):
        assert torch.autograd.gradcheck(lambda x, loss=loss: loss(x, classes), (logits,))
