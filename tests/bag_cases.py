"""Bags of vectors for the tests of cross-attention hosts."""

from __future__ import annotations

import torch

from counterfoil.core.types import Embeddings

WIDTH = 6


def bags(seed: int = 0, images: int = 3, texts: int = 4) -> tuple[Embeddings, Embeddings]:
    """Float64 images of 1 to 5 regions and texts of 1 to 6 words; garbage is what is hidden."""
    rng = torch.Generator().manual_seed(seed)
    found = []
    for n, longest in ((images, 5), (texts, 6)):
        tokens = torch.randn(n, longest, WIDTH, dtype=torch.double, generator=rng)
        counts = torch.randint(1, longest + 1, (n, 1), generator=rng)
        counts[:2] = torch.tensor([[1], [longest]])[:n]
        mask = torch.arange(longest) < counts
        found.append(Embeddings(tokens.masked_fill(~mask.unsqueeze(-1), torch.nan), mask))
    return found[0], found[1]
