from __future__ import annotations

import pytest
import torch

import bag_cases
from counterfoil.core.types import Embeddings
from counterfoil.papers.models.chan import SelfAttention

WIDTH, HEADS = 8, 2


def bag() -> Embeddings:
    """Items of 4, 1, 3 and no vectors, with numbers in their padding."""
    made = bag_cases.bag([4, 1, 3, 0], WIDTH, garbage=2.0)
    return Embeddings(made.tokens.float(), made.mask)


def layer(**options) -> SelfAttention:
    torch.manual_seed(1)
    made = SelfAttention(width=WIDTH, heads=HEADS, **options)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def by_heads(made: SelfAttention, x: torch.Tensor) -> torch.Tensor:
    """What the vectors (L, D) of one item become, a head and a query at a time."""
    seen, part = made.norm(x), WIDTH // HEADS
    weight, bias = made.attention.in_proj_weight, made.attention.in_proj_bias
    query, key, value = (seen @ w.T + b for w, b in zip(weight.split(WIDTH), bias.split(WIDTH)))
    rows = []
    for q in range(len(x)):
        heads = []
        for h in range(HEADS):
            own = slice(h * part, (h + 1) * part)
            weights = torch.stack([query[q, own] @ k / part**0.5 for k in key[:, own]]).softmax(0)
            heads.append(sum(p * v for p, v in zip(weights, value[:, own], strict=True)))
        rows.append(x[q] + made.attention.out_proj(torch.cat(heads)))
    found = torch.stack(rows)
    if made.perceptron is not None:
        wide = made.perceptron.wide(made.perceptron.norm(found))
        found = found + made.perceptron.narrow(wide * torch.sigmoid(1.702 * wide))
    return found


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("perceptron", [True, False])
def test_every_item_by_itself(perceptron, training):
    made, items = layer(perceptron=perceptron).train(training), bag()
    with torch.set_grad_enabled(training):
        found = made(items)
    for own, row, mask in zip(items.tokens, found.tokens, items.mask, strict=True):
        if mask.any():
            torch.testing.assert_close(row[mask], by_heads(made, own[mask]), rtol=1e-4, atol=1e-5)
    assert found.tokens.isfinite().all()


def test_padding_may_be_seen():
    made, items = layer(sees="padding"), bag()
    for own, row in zip(items.tokens, made(items).tokens, strict=True):
        torch.testing.assert_close(row, by_heads(made, own), rtol=1e-4, atol=1e-5)


def test_a_place_may_be_seen_across_the_batch():
    made, items = layer(sees="batch", perceptron=True), bag()
    for place in range(4):
        found = made(items).tokens[:, place]
        expected = by_heads(made, items.tokens[:, place])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
