"""Base class of models whose score pools the cross-attention of words and regions."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from counterfoil.core.types import Embeddings, Pairs
from counterfoil.models.layers.cross_attention import (
    AttendedProducts,
    AttentionHead,
    PackedTexts,
    score_tiles,
)
from counterfoil.models.layers.fused import (
    AlignedPairs,
    align_listed,
    align_pairs,
    apply_heads,
    needed_grams,
    prepare_context,
    region_mask,
    squared_lengths,
)
from counterfoil.models.layers.pooling import ensure_nonempty, squared_norms
from counterfoil.models.layers.towers import TwoTowerModel


class AttentionModel(TwoTowerModel, ABC):
    """A model whose score pools the similarities of queries with what they attend to.

    Queries are words that attend to regions ("t2i"), or regions that attend to words ("i2t"). The
    scores of several attention heads are added. An image without regions counts as a single zero
    region. A subclass sets `heads` and implements `pool`.

    The score is exact, although no attended vector is ever formed: see
    `counterfoil.models.layers.cross_attention`.
    """

    heads: tuple[AttentionHead, ...]

    @abstractmethod
    def pool(self, similarity: Tensor, dim: int, mask: Tensor | None) -> Tensor:
        """Pool the similarities along the queries' axis to one score; a mask may be broadcast."""

    def similarity(self, results: tuple[Tensor, ...], square: Tensor | None) -> Tensor:
        """Return the cosine of each query with its attended vector; `square`: of the queries."""
        assert square is not None
        return AttendedProducts(*results).cosine(square)

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        return self._score(align_pairs(self.heads, nonempty(images), texts))

    def score_indices(self, images: Embeddings, texts: Embeddings, pairs: Pairs) -> Tensor:
        return self._score(align_listed(self.heads, nonempty(images), texts, pairs))

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (I, T) scores, tile by tile, with one matrix product per tile."""
        by_words, _ = needed_grams(self.heads)
        images = prepare_context(nonempty(images), gram=by_words)
        return score_tiles(images, texts, self._score_tile)

    def _score(self, pairs: AlignedPairs) -> Tensor:
        scores = []
        for head in self.heads:
            queries = pairs.queries(head)
            similarity = self.similarity(pairs.attend(head), queries.square)
            scores.append(self.pool(similarity, 1, queries.mask))
        return torch.stack(scores).sum(0)

    def _score_tile(self, images: Embeddings, texts: PackedTexts) -> Tensor:
        """Return the (T, I) scores of a tile."""
        scores = []
        for head, results in zip(self.heads, apply_heads(images, texts, self.heads), strict=True):
            if head.direction == "t2i":
                square = squared_norms(texts.words).unsqueeze(1) if head.grams else None
                similarity = self.similarity(results, square)  # (W, I)
                scores.append(
                    texts.reduce_words(similarity, lambda block: self.pool(block, 1, None))
                )
            else:
                square = squared_lengths(images) if head.grams else None
                similarity = self.similarity(results, square)  # (T, I, R)
                scores.append(self.pool(similarity, -1, region_mask(images)))
        return torch.stack(scores).sum(0)


def nonempty(images: Embeddings) -> Embeddings:
    """Return the images; those without regions get a single zero vector."""
    return images if bool(images.mask.any(1).all()) else ensure_nonempty(images)
