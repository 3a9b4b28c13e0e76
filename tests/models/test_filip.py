"""Late interaction: scores and gradients equal a slow loop over items and vectors."""

from __future__ import annotations

import pytest
import torch

from bag_cases import each_pair
from counterfoil.core.types import Embeddings
from counterfoil.models.filip import FILIP
from counterfoil.models.layers import late_interaction
from counterfoil.models.layers.towers import GRU, Regions


def model(direction, mean):
    towers = {
        "image": Regions(features=3, width=4),
        "text": GRU(words=9, word_width=3, width=4),
    }
    return FILIP(**towers, direction=direction, mean=mean)


def bags(n, longest, rng):
    tokens = torch.nn.functional.normalize(torch.randn(n, longest, 4, generator=rng), dim=-1)
    lengths = torch.randint(1, longest + 1, (n, 1), generator=rng)
    return Embeddings(tokens.requires_grad_(), torch.arange(longest) < lengths)


def slow(images, texts, direction, mean):
    scores = []
    for d, q, _ in each_pair(images, texts, torch.zeros(len(images), len(texts))):
        ways = {
            "t2i": sum(max(a @ b for b in d) for a in q) / (len(q) if mean else 1),
            "i2t": sum(max(a @ b for a in q) for b in d) / (len(d) if mean else 1),
        }
        ways["both"] = (ways["t2i"] + ways["i2t"]) / 2
        scores.append(ways[direction])
    return torch.stack(scores).view(len(images), len(texts))


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("direction", ["t2i", "i2t", "both"])
def test_scores_and_gradients_equal_a_slow_loop(direction, mean, monkeypatch):
    monkeypatch.setattr(late_interaction, "CELLS_AT_ONCE", 60)  # several parts
    rng = torch.Generator().manual_seed(0)
    images, texts = bags(5, 6, rng), bags(4, 3, rng)
    weight = torch.randn(5, 4, generator=rng)
    wanted = slow(images, texts, direction, mean)
    (wanted * weight).sum().backward()
    grads = images.tokens.grad.clone(), texts.tokens.grad.clone()
    made = model(direction, mean)
    row, column = (
        x.flatten() for x in torch.meshgrid(torch.arange(5), torch.arange(4), indexing="ij")
    )
    for score in (
        made.score_matrix,
        lambda i, t: made.score_pairs(i.rows(row), t.rows(column)).view(5, 4),
    ):
        images.tokens.grad = texts.tokens.grad = None
        found = score(images, texts)
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-6, atol=1e-6)
        (found * weight).sum().backward()
        for side, grad in zip((images, texts), grads):
            torch.testing.assert_close(side.tokens.grad, grad, rtol=1e-6, atol=1e-6)
            assert not side.tokens.grad[~side.mask].any()  # padding learns nothing


def test_all_scores_negative_are_not_lifted_by_padding():
    image = Embeddings(torch.tensor([[[-1.0, 0.0], [0.0, 0.0]]]), torch.tensor([[True, False]]))
    text = Embeddings(torch.tensor([[[1.0, 0.0], [0.0, 0.0]]]), torch.tensor([[True, False]]))
    for direction in ("t2i", "i2t", "both"):
        made = model(direction, True)
        assert made.score_matrix(image, text).item() == made.score_pairs(image, text).item() == -1
