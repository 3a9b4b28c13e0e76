"""Pixels through a small convolutional patch embedding, trained from nothing."""

from __future__ import annotations

from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn

from counterfoil.models.blocks.tower import ImageTower, every, positive
from counterfoil.records import Encoded, Items


@final
class Residual(nn.Module):
    """x + conv(gelu(norm(x)))."""

    def __init__(self, *, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape in and out."""
        change: Tensor = self.conv(nn.functional.gelu(self.norm(x)))
        return x + change


@final
class Patches(ImageTower):
    """Square pictures as (size / patch)^2 region vectors.

    Each halving is a strided convolution, a group norm and a GELU; then come residual
    convolutions, and a learned vector for each place. Nothing looks at another picture of the
    batch.
    """

    def __init__(
        self,
        *,
        size: int = 64,
        patch: int = 16,
        width: int = 256,
        channels: int = 32,
        depth: int = 2,
    ) -> None:
        """Keyword arguments.

        Args:
            size: side of a picture in pixels; a multiple of `patch`.
            patch: side of a patch; a power of two.
            width: of the joint space.
            channels: after the first halving; each halving doubles them, up to four times that.
            depth: residual convolutions on the grid of patches.

        Raises:
            ValueError: the sizes do not fit each other.
        """
        super().__init__()
        positive(size=size, width=width, channels=channels)
        if patch < 2 or patch & (patch - 1) or size % patch:
            raise ValueError(
                f"patch={patch} does not fit pictures of {size} pixels; use a power of two from 2 "
                "that divides the size"
            )
        self.width, self.size = width, size
        halvings = patch.bit_length() - 1
        sizes = [3, *(channels * min(4, 2**k) for k in range(halvings))]
        stages = [_halve(a, b) for a, b in pairwise(sizes)]
        rest = (Residual(channels=sizes[-1]) for _ in range(depth))
        self.stem = nn.Sequential(*stages, *rest)
        self.fc = nn.Linear(sizes[-1], width)
        self.place = nn.Parameter(torch.randn((size // patch) ** 2, width) * 0.02)

    def forward(self, items: Items) -> Encoded:
        """Embed every patch; rows of the picture follow each other."""
        wanted = (3, self.size, self.size)
        if tuple(items.values.shape[1:]) != wanted:
            raise ValueError(
                f"pictures of shape {tuple(items.values.shape[1:])} do not fit a model that reads "
                f"{wanted}; resize them"
            )
        pixels = items.values.to(self.fc.weight.dtype)
        grid = self.stem(pixels.contiguous(memory_format=torch.channels_last))
        tokens = self.fc(grid.flatten(2).transpose(1, 2)) + self.place
        return Encoded(tokens, every(tokens))


def _halve(channels: int, more: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, more, 3, stride=2, padding=1), nn.GroupNorm(1, more), nn.GELU()
    )
