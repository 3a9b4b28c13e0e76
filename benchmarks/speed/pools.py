"""Ready embeddings for the engine's benchmarks, and the cheapest matcher there is."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.base import RetrievalModel
from counterfoil.scoring.encode import EmbeddedDataset

CAPTIONS = 5


@final
class Product(RetrievalModel):
    """The inner product of ready embeddings."""

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        return Embeddings(images.values, images.mask)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        return Embeddings(texts.values, texts.mask)

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        return (images.tokens[:, 0] * texts.tokens[:, 0]).sum(-1)

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        return images.tokens[:, 0] @ texts.tokens[:, 0].T


def pool(images: int, texts: int, width: int, *, signal: float) -> tuple[Tensor, Tensor, Tensor]:
    """Unit image vectors, unit text vectors and each text's owner.

    Args:
        images: how many.
        texts: how many; five to an image.
        width: of a vector.
        signal: share of its image in a text before it is normalised.
    """
    rng = torch.Generator().manual_seed(0)
    left = normalize(torch.randn(images, width, generator=rng), dim=1)
    text_to_image = torch.arange(texts) // CAPTIONS % images
    right = (
        torch.randn(texts, width, generator=rng).div_(width**0.5).add_(left[text_to_image] * signal)
    )
    return left, normalize(right, dim=1), text_to_image


def rising(images: int, texts: int, width: int) -> tuple[Tensor, Tensor]:
    """Vectors whose scores rise with both rows: the worst order for a running threshold."""
    rng = torch.Generator().manual_seed(0)
    left = torch.randn(images, width, generator=rng).div_(100 * width**0.5)
    right = torch.randn(texts, width, generator=rng).div_(100 * width**0.5)
    left[:, 0], right[:, 0] = torch.linspace(0, 1, images), 1
    left[:, 1], right[:, 1] = 1, torch.linspace(0, 1, texts)
    return left, right


def member(images: Tensor, texts: Tensor) -> EmbeddedDataset:
    """The embeddings as one member of a sweep; nothing is copied."""
    return EmbeddedDataset(
        Product(), *(Embeddings(v.unsqueeze(1), _ones(v)) for v in (images, texts))
    )


def _ones(vectors: Tensor) -> Tensor:
    return torch.ones(len(vectors), 1, dtype=torch.bool)
