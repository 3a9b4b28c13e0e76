"""What keeps the vectors of a set apart, and images and texts together (DivE, CVPR 2023)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil.models.blocks.inner import full


def discrepancy(
    images: Tensor, texts: Tensor, *, gamma: float | None = 0.5, total: bool = False
) -> Tensor:
    """Maximum mean discrepancy of two samples, by the kernel e^(-gamma ||x - y||).

    The distance in the kernel is not squared; a vector with itself counts, at distance 0.

    Args:
        images: (N, D).
        texts: (M, D).
        gamma: of the kernel; 1 / D where None.
        total: sums over pairs, not means.
    """
    images, texts = full(images), full(texts)
    width = 1 / images.shape[1] if gamma is None else gamma

    def alike(left: Tensor, right: Tensor) -> Tensor:
        kernel = torch.exp(-width * torch.cdist(left, right))
        return kernel.sum() if total else kernel.mean()

    return alike(images, images) - 2 * alike(images, texts) + alike(texts, texts)


def crowding(sets: Tensor, *, sharpness: float = 2.0) -> Tensor:
    """(N,) mean over pairs of a set's vectors of e^(-sharpness ||x - y||^2): their diversity loss.

    Args:
        sets: (N, K, D) unit vectors.
        sharpness: of the kernel.
    """
    first, second = torch.triu_indices(sets.shape[1], sets.shape[1], 1, device=sets.device)
    sets = full(sets)
    square = (sets[:, first] - sets[:, second]).square().sum(2)
    return torch.exp(-sharpness * square).sum(1) / max(1, len(first))


def correlation(sets: Tensor) -> Tensor:
    """(N,) Frobenius norm of what the vectors of a set have in common, over K squared.

    Args:
        sets: (N, K, D) vectors of any length.
    """
    sets = normalize(full(sets), dim=2)
    alone = torch.eye(sets.shape[1], dtype=torch.bool, device=sets.device)
    gram = (sets @ sets.mT).masked_fill(alone, 0)
    norm: Tensor = torch.linalg.vector_norm(gram.flatten(1), dim=1)
    return norm / sets.shape[1] ** 2


def closeness(vectors: Tensor, *, sharpness: float = 2.0) -> Tensor:
    """Mean over pairs of vectors of e^(-sharpness ||x - y||), the distance not squared.

    Args:
        vectors: (K, D).
        sharpness: of the kernel.
    """
    if len(vectors) < 2:
        return vectors.sum() * 0
    return torch.exp(-sharpness * torch.pdist(full(vectors))).mean()
