"""TripletCLIP's loss against two of NegCLIP, as the paper writes them."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from counterfoil.losses.contrastive import InfoNCELoss, TripletCLIPLoss

INF = torch.inf


def pool(seed: int, count: int = 5):
    """(2B, 2B) scores of images and pictures of foils with captions and foils."""
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(2 * count, 2 * count, generator=rng, dtype=torch.float64)


def parts(scores):
    """The four arguments of the loss: rows of pictures are turned towards their captions."""
    half = len(scores) // 2
    return scores[:half, :half], {
        "generated": scores[:half, half:],
        "generated_image": scores[half:, :half].T,
        "generated_pair": scores[half:, half:],
    }


def negclip(own, others, temperature):
    """Images among all texts, and texts among the images."""
    target = torch.arange(len(own))
    texts = cross_entropy(torch.cat([own, others], 1) / temperature, target)
    return (texts + cross_entropy(own.T / temperature, target)) / 2


@pytest.mark.parametrize("seed", range(4))
def test_is_the_sum_of_two_of_negclip(seed):
    scores = pool(seed)
    block, pairs = parts(scores)
    found = TripletCLIPLoss(temperature=0.2, reduction="mean")(block, **pairs)
    wanted = negclip(scores[:5, :5], scores[:5, 5:], 0.2)
    wanted += negclip(scores[5:, 5:], scores[5:, :5], 0.2)
    torch.testing.assert_close(found, wanted)


def test_an_anchor_without_a_foil_adds_the_first_part_alone():
    block, pairs = parts(pool(0))
    loss = TripletCLIPLoss(temperature=0.2)
    none = {name: torch.full_like(table, -INF).requires_grad_() for name, table in pairs.items()}
    value = loss(block, **none)
    torch.testing.assert_close(value, InfoNCELoss(temperature=0.2)(block))
    value.backward() if value.requires_grad else None
    some = {name: table.clone() for name, table in pairs.items()}
    for table in some.values():  # the third has none
        table[:, 2] = -INF
    some["generated_pair"][2] = -INF
    left = [0, 1, 3, 4]
    scores = pool(0)
    rest = scores[5:, 5:][left][:, left]
    target = torch.arange(4)
    wanted = negclip(scores[:5, :5], scores[:5, 5:][:, left], 0.2) * 5
    texts = torch.cat([rest, scores[5:, :5][left]], 1)
    wanted += cross_entropy(texts / 0.2, target, reduction="sum") / 2
    wanted += cross_entropy(rest.T / 0.2, target, reduction="sum") / 2
    torch.testing.assert_close(loss(block, **some), wanted)


def test_foils_that_are_not_scored_with_the_whole_batch_are_refused():
    block, pairs = parts(pool(0))
    pairs["generated"] = pairs["generated"][:, :1]
    with pytest.raises(ValueError, match=r"are \(5, 1\), \(5, 5\) and \(5, 5\).*source Foils"):
        TripletCLIPLoss()(block, **pairs)
