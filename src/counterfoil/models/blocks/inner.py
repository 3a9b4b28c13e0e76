"""Inner products and squared lengths of vectors, never in half precision."""

from __future__ import annotations

import torch
from torch import Tensor

from counterfoil.records import Encoded


def full(tensor: Tensor) -> Tensor:
    """The same in single precision, or in double where it is."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def square(tokens: Tensor) -> Tensor:
    """Squared lengths of the vectors on the last axis, in at least single precision."""
    length: Tensor = torch.linalg.vector_norm(full(tokens), dim=-1)
    return length.square()  # many times as fast as the sum of a tensor of squares


def inner_pairs(images: Encoded, texts: Encoded) -> Tensor:
    """(P,) inner products of aligned items of one vector each."""
    return (full(images.tokens[:, 0]) * full(texts.tokens[:, 0])).sum(-1)


def inner_grid(images: Encoded, texts: Encoded) -> Tensor:
    """(I, T) inner products of items of one vector each."""
    with torch.autocast(images.tokens.device.type, enabled=False):
        return full(images.tokens[:, 0]) @ full(texts.tokens[:, 0]).T
