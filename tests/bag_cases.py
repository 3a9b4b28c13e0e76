"""Bags of vectors of several lengths, for tests of models and layers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from counterfoil.core.types import Embeddings, ModalityBatch

WIDTH = 6


def bag(
    lengths: list[int],
    width: int = WIDTH,
    *,
    seed: int = 0,
    longest: int = 0,
    garbage: float = torch.nan,
) -> Embeddings:
    """Float64 items of so many vectors, whatever room there is; garbage is what is hidden."""
    rng = torch.Generator().manual_seed(seed)
    mask = torch.arange(longest or max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    tokens = torch.full((*mask.shape, width), garbage, dtype=torch.double)
    for item, length in zip(tokens, lengths, strict=True):
        item[:length] = torch.randn(length, width, dtype=torch.double, generator=rng)
    return Embeddings(tokens, mask)


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


def whole(values: Tensor, places: int | None = None) -> ModalityBatch:
    """Items of which nothing is hidden; pictures have one place."""
    places = places or (1 if values.dim() == 4 else values.shape[1])
    mask = torch.ones(len(values), places, dtype=torch.bool)
    return ModalityBatch(torch.arange(len(values)), values, mask)


def each_pair(
    images: Embeddings, texts: Embeddings, scores: Tensor
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """The real vectors of every image and every text, and the score of both."""
    for i, t in product(range(len(images)), range(len(texts))):
        regions, words = images.tokens[i][images.mask[i]], texts.tokens[t][texts.mask[t]]
        yield regions, words, float(scores[i, t].detach())
