"""What a model in pre-training is to say of hidden regions (UNITER's MRFR, MRC and MRC-kl).

UNITER (Chen et al., ECCV 2020), section 3.2. Each function gives one row for each hidden region;
the authors' code takes the mean over all entries, that over classes included.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, mse_loss, normalize

BACKGROUND = 0  # the detector's class of what is no thing


def region_regression(predicted: Tensor, features: Tensor) -> Tensor:
    """(M, F) squared errors of predicted features: masked region feature regression.

    Args:
        predicted: (M, F).
        features: (M, F) what the regions were before they were hidden.
    """
    return mse_loss(predicted, features, reduction="none")


def likeliest_class(classes: Tensor) -> Tensor:
    """(M,) the class that the detector thinks likeliest, but for the background.

    Args:
        classes: (M, C) its probabilities.
    """
    return classes[:, BACKGROUND + 1 :].argmax(1) + BACKGROUND + 1


def region_classification(logits: Tensor, classes: Tensor) -> Tensor:
    """(M,) cross entropy with the likeliest class: masked region classification.

    Args:
        logits: (M, C).
        classes: (M, C) the detector's probabilities.
    """
    return cross_entropy(logits, likeliest_class(classes), reduction="none")


def region_kl_divergence(logits: Tensor, classes: Tensor) -> Tensor:
    """(M, C) terms of the divergence from the detector's probabilities: MRC-kl.

    Args:
        logits: (M, C).
        classes: (M, C) the detector's probabilities.
    """
    return kl_div(logits.log_softmax(1), classes, reduction="none")


# Optimal transport between the words of a text and the regions of an image (UNITER's WRA).
#
# UNITER (Chen et al., ECCV 2020), section 3.2, equation 6: the distance of a pair is what it costs
# to
# move all words onto all regions, a word to a region costing one minus their cosine. The plan comes
# from the inexact proximal point method (Xie et al., UAI 2019) and carries no gradient.
#
# Departs from the authors' code in: several inner rounds, which fail there, work here.


SMALLEST = 1e-5  # a vector shorter than this is not brought to length one


def transport_cost(texts: Tensor, images: Tensor) -> Tensor:
    """(P, L, R) one minus the cosine of every word with every region of its pair.

    Args:
        texts: (P, L, D).
        images: (P, R, D).
    """
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
    """(P, L, R) how much of every word goes to every region; 0 at padding, sums to 1.

    Each real word gives away 1/words and each real region, after the last round, takes about
    1/regions.

    Args:
        cost: (P, L, R).
        words: (P, L) bool, True where a word is real.
        regions: (P, R) bool, True where a region is real.
        beta: size of a proximal step.
        rounds: of the proximal point method.
        inner: rescalings of both sides in each round.

    Raises:
        ValueError: a number is out of range.
    """
    if beta <= 0 or rounds < 1 or inner < 1:
        raise ValueError(
            f"beta={beta}, rounds={rounds}, inner={inner}: beta is above 0, the others at least 1"
        )
    both = words.unsqueeze(2) & regions.unsqueeze(1)
    kernel = torch.exp(-cost / beta).masked_fill(~both, 0)
    many, others = words.sum(1, keepdim=True), regions.sum(1, keepdim=True)
    moved, left = both.to(cost.dtype), words.to(cost.dtype) / many
    for _ in range(rounds):
        step = kernel * moved
        for _ in range(inner):
            right = _inverse(others * torch.einsum("plr,pl->pr", step, left), regions)
            left = _inverse(many * torch.einsum("plr,pr->pl", step, right), words)
        moved = left.unsqueeze(2) * step * right.unsqueeze(1)
    return moved


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
    """(P,) what it costs to move the words of each text onto the regions of its image.

    Worked out in float32 at least, whatever the surrounding precision; the gradient reaches the
    vectors through the cost alone.

    Args:
        texts: (P, L, D) word vectors, special ones included.
        images: (P, R, D) region vectors.
        words: (P, L) bool, True where a word is real.
        regions: (P, R) bool, True where a region is real.
        beta: see `plan`.
        rounds: see `plan`.
        inner: see `plan`.

    >>> same = torch.eye(2).unsqueeze(0)
    >>> real = torch.ones(1, 2, dtype=torch.bool)
    >>> round(transport(same, same, real, real).item(), 3)
    0.0
    """
    with torch.autocast(texts.device.type, enabled=False):
        pays = transport_cost(_full(texts), _full(images))
        pays = pays.masked_fill(~(words.unsqueeze(2) & regions.unsqueeze(1)), 0)
        way = transport_plan(pays.detach(), words, regions, beta=beta, rounds=rounds, inner=inner)
        return (pays * way).sum((1, 2))


def word_region_alignment(distance: Tensor, matching: Tensor) -> Tensor:
    """(P,) what each pair adds to the loss: its distance where it matches, else the negative of it.

    The loss is their mean, as in the authors' code: matching pairs are pulled together and others
    pushed apart.

    Args:
        distance: (P,) of `optimal_transport`.
        matching: (P,) bool.
    """
    return torch.where(matching, distance, -distance)


def _inverse(values: Tensor, real: Tensor) -> Tensor:
    return (1 / values.masked_fill(~real, 1)).masked_fill(~real, 0)


def _full(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.half, torch.bfloat16) else tensor
