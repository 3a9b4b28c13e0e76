"""Points of the plane for vectors: exact t-SNE, and principal components.

t-SNE: van der Maaten and Hinton, "Visualizing Data using t-SNE", JMLR 9 (2008). Meant for hundreds
of points; it begins with principal components, so the same vectors give the same map.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Projection = Literal["tsne", "pca"]

PERPLEXITY = 30.0
STEPS, EARLY = 750, 250
_EXAGGERATION = 12.0
_TINY = 1e-12


def principal(vectors: Tensor) -> Tensor:
    """(N, 2) first two principal components, each with its largest weight positive.

    Args:
        vectors: (N, D).
    """
    centred = vectors.double() - vectors.double().mean(0)
    _, _, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[:2]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    points = centred @ (axes * largest.sign()).T
    return torch.nn.functional.pad(points, (0, 2 - points.shape[1]))


def tsne(vectors: Tensor, *, perplexity: float = PERPLEXITY, steps: int = STEPS) -> Tensor:
    """(N, 2) t-SNE of Euclidean distances.

    Args:
        vectors: (N, D).
        perplexity: effective number of neighbours; at most a third of the other points.
        steps: of gradient descent with momentum, the first `EARLY` with attraction exaggerated.
    """
    count = len(vectors)
    if count < 4:
        return principal(vectors)
    wanted = neighbours(vectors, min(perplexity, (count - 1) / 3))
    points = principal(vectors)
    points = 1e-4 * points / points[:, 0].std().clamp(min=_TINY)
    rate = count / _EXAGGERATION  # faster ones make small maps jump
    speed, gain = torch.zeros_like(points), torch.ones_like(points)
    for step in range(steps):
        early = step < EARLY
        slope = gradient(wanted * (_EXAGGERATION if early else 1.0), points)
        gain = torch.where(slope.sign() == speed.sign(), gain * 0.8, gain + 0.2).clamp(min=0.01)
        speed = (0.5 if early else 0.8) * speed - rate * gain * slope
        points = points + speed
        points = points - points.mean(0)
    return points


def neighbours(vectors: Tensor, perplexity: float) -> Tensor:
    """(N, N) double: how likely two points are neighbours, symmetric, summing to one.

    Each point's Gaussian is as wide as its perplexity asks (section 2, Eq. 1; made symmetric as in
    section 3.1).
    """
    distances = _squared(vectors.double())
    distances.fill_diagonal_(torch.inf)
    distances = distances - distances.amin(1, keepdim=True)  # the nearest at 0: nothing underflows
    low = torch.zeros(len(vectors), 1, dtype=torch.double)
    high = torch.full_like(low, torch.inf)
    sharp = torch.ones_like(low)
    for _ in range(64):
        wide = _entropy(torch.softmax(-distances * sharp, 1)) > math.log(perplexity)
        low, high = torch.where(wide, sharp, low), torch.where(wide, high, sharp)
        sharp = torch.where(high.isinf(), sharp * 2, (low + high) / 2)
    chances = torch.softmax(-distances * sharp, 1)
    return (chances + chances.T) / (2 * len(vectors))


def gradient(wanted: Tensor, points: Tensor) -> Tensor:
    """(N, 2) slope of KL(wanted || neighbours in the plane), Student t with one degree (Eq. 5).

    Where `wanted` sums to more than one, attraction alone is exaggerated.
    """
    close = 1 / (1 + _squared(points))
    close.fill_diagonal_(0)
    pull = (wanted - close / close.sum()) * close
    return 4 * (pull.sum(1, keepdim=True) * points - pull @ points)


def _squared(points: Tensor) -> Tensor:
    norms = points.square().sum(1)
    return (norms.unsqueeze(1) + norms - 2 * points @ points.T).clamp(min=0)


def _entropy(chances: Tensor) -> Tensor:
    each: Tensor = torch.special.entr(chances)
    return each.sum(1, keepdim=True)
