"""Teachers."""

from __future__ import annotations

import torch
from torch import Tensor


def concatenated(vectors: Tensor, weights: Tensor | None = None) -> Tensor:
    """(N, K * D) of (K, N, D) vectors, each teacher's weighed."""
    if weights is not None:
        vectors = vectors * weights.view(-1, 1, 1)
    return torch.cat(list(vectors), 1)
