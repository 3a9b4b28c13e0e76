"""Losses of UNITER's pre-training: masked regions (MRFR, MRC, MRC-kl) and word-region alignment.

UNITER (Chen et al., ECCV 2020), section 3.2. Functions of tensors; they are no `Loss` of scores.
The losses of masked regions return one row for each masked region; the authors' code takes the
mean over all entries, over classes too.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, mse_loss, normalize

from counterfoil.losses.base import full_precision

BACKGROUND = 0  # the detector's class of regions without an object


def region_regression(predicted: Tensor, features: Tensor) -> Tensor:
    """Return (M, F) squared errors of predicted features of masked regions (MRFR)."""
    return mse_loss(predicted, features, reduction="none")


def likeliest_class(classes: Tensor) -> Tensor:
    """Return (M,) the likeliest of a detector's (M, C) classes other than the background."""
    return classes[:, BACKGROUND + 1 :].argmax(1) + BACKGROUND + 1


def region_classification(logits: Tensor, classes: Tensor) -> Tensor:
    """Return (M,) cross entropies of (M, C) logits with the likeliest class (MRC)."""
    return cross_entropy(logits, likeliest_class(classes), reduction="none")


def region_kl_divergence(logits: Tensor, classes: Tensor) -> Tensor:
    """Return (M, C) terms of the divergence from the detector's probabilities (MRC-kl)."""
    return kl_div(logits.log_softmax(1), classes, reduction="none")


# Word-region alignment (WRA), Eq. 6: the distance of a pair is the cost of moving all words onto
# all regions, where a word to a region costs one minus their cosine. The transport plan comes from
# the inexact proximal point method (IPOT; Xie et al., UAI 2019) and carries no gradient.
# Departs from the authors' code in: several inner rounds, which fail there, work here.

SMALLEST = 1e-5  # a vector shorter than this is not normalised to length one


def transport_cost(texts: Tensor, images: Tensor) -> Tensor:
    """Return (P, L, R) one minus the cosine of every word with every region of its pair."""
    return 1 - normalize(texts, dim=2, eps=SMALLEST) @ normalize(images, dim=2, eps=SMALLEST).mT


@torch.no_grad()
def transport_plan(
    cost: Tensor,
    words: Tensor,
    regions: Tensor,
    *,
    beta: float = 0.5,
    rounds: int = 50,
    inner: int = 1,
) -> Tensor:
    """Return (P, L, R) how much of every word goes to every region; 0 at padding, sums to 1.

    Each real word gives 1 / (number of words) and each real region, after the last round, receives
    about 1 / (number of regions).

    Args:
        cost: (P, L, R) of moving a word to a region.
        words: (P, L) bool, True where a word is real.
        regions: (P, R) bool, True where a region is real.
        beta: size of a proximal step.
        rounds: of the proximal point method.
        inner: rescalings of words and of regions in each round (Sinkhorn iterations).
    """
    real = words.unsqueeze(2) & regions.unsqueeze(1)
    kernel = torch.exp(-cost / beta).masked_fill(~real, 0)
    word_count, region_count = words.sum(1, keepdim=True), regions.sum(1, keepdim=True)
    plan, by_word = real.to(cost.dtype), words.to(cost.dtype) / word_count
    for _ in range(rounds):
        step = kernel * plan
        for _ in range(inner):
            by_region = _inverse(region_count * torch.einsum("plr,pl->pr", step, by_word), regions)
            by_word = _inverse(word_count * torch.einsum("plr,pr->pl", step, by_region), words)
        plan = by_word.unsqueeze(2) * step * by_region.unsqueeze(1)
    return plan


def optimal_transport(
    texts: Tensor,
    images: Tensor,
    words: Tensor,
    regions: Tensor,
    *,
    beta: float = 0.5,
    rounds: int = 50,
    inner: int = 1,
) -> Tensor:
    """Return (P,) the cost of moving the words of each text onto the regions of its image.

    Computed in float32 at least, also under autocast; the gradient reaches the vectors through the
    cost alone. Vectors are (P, L, D) and (P, R, D), the masks of what is real (P, L) and (P, R)
    bool; for the other arguments see `transport_plan`.

    >>> same = torch.eye(2).unsqueeze(0)
    >>> real = torch.ones(1, 2, dtype=torch.bool)
    >>> round(optimal_transport(same, same, real, real).item(), 3)
    0.0
    """
    with torch.autocast(texts.device.type, enabled=False):
        cost = transport_cost(full_precision(texts), full_precision(images))
        cost = cost.masked_fill(~(words.unsqueeze(2) & regions.unsqueeze(1)), 0)
        plan = transport_plan(cost.detach(), words, regions, beta=beta, rounds=rounds, inner=inner)
        return (cost * plan).sum((1, 2))


def word_region_alignment(distance: Tensor, matching: Tensor) -> Tensor:
    """Return (P,) the distance of matching pairs, and minus the distance of others.

    The loss is their mean, as in the authors' code: matching pairs are pulled together and others
    pushed apart.
    """
    return torch.where(matching, distance, -distance)


def _inverse(values: Tensor, real: Tensor) -> Tensor:
    """1 / values, 0 at padding, where the values are 0."""
    return (1 / values.masked_fill(~real, 1)).masked_fill(~real, 0)
