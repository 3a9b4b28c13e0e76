"""Base class of models whose score pools the similarities of queries with what they attend to."""

from __future__ import annotations

import torch
from torch import Tensor

from counterfoil.core.types import Embeddings, Pairs
from counterfoil.models.layers.cross_attention import (
    AttentionHead,
    CrossAttention,
    Direction,
    PackedTexts,
    QueryPooling,
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
from counterfoil.models.layers.kernel_scores import kernel_scores
from counterfoil.models.layers.pooling import ensure_nonempty, squared_norms
from counterfoil.models.layers.towers import TwoTowerModel


class AttentionModel(TwoTowerModel):
    """A model whose score pools the similarities of queries with what they attend to.

    Queries are words that attend to regions ("t2i"), or regions that attend to words ("i2t"). The
    scores of several attention heads are added. An image without regions counts as a single zero
    region. A subclass sets `heads` and `query_pooling`.

    The score is exact, although no attended vector is ever formed: see
    `counterfoil.models.layers.cross_attention`.
    """

    has_kernels = True
    heads: tuple[AttentionHead, ...]
    query_pooling: QueryPooling

    @property
    def score_name(self) -> str:
        return f"cross-attention {' + '.join(dict.fromkeys(h.direction for h in self.heads))}"

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        pairs = align_pairs(self.heads, nonempty(images), texts)
        return score_aligned(pairs, self.heads, self.query_pooling)

    def score_indices(self, images: Embeddings, texts: Embeddings, pairs: Pairs) -> Tensor:
        aligned = align_listed(self.heads, nonempty(images), texts, pairs)
        return score_aligned(aligned, self.heads, self.query_pooling)

    @property
    def maps_attention(self) -> bool:
        """Whether `word_region_maps` is attention; else the similarities that are pooled."""
        return isinstance(_of_direction(self.heads, None), CrossAttention)

    def word_region_maps(
        self, images: Embeddings, texts: Embeddings, direction: Direction | None = None
    ) -> Tensor:
        """Return (P, L, R) numbers of the words of text p with the regions of image p.

        For a head that attends they are its weights, which sum to 1 over the regions ("t2i") or
        over the words ("i2t"); for one that takes the most similar vector, inner products.

        Args:
            images: P images, each with a region.
            texts: P texts.
            direction: of the head; None for the one whose words attend, if there is one.
        """
        head = _of_direction(self.heads, direction)
        pairs = align_pairs(self.heads, images, texts)
        return pairs.weights(head) if isinstance(head, CrossAttention) else pairs.affinity

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (I, T) scores: by kernels on a GPU, else one matrix product per tile."""
        scores = kernel_scores(images, texts, self.heads, self.query_pooling)
        if scores is not None:
            return scores
        return torch_scores(nonempty(images), texts, self.heads, self.query_pooling)


def _of_direction(heads: tuple[AttentionHead, ...], direction: Direction | None) -> AttentionHead:
    """The head of a direction; without one, the first whose words attend, or else the first."""
    wanted = "t2i" if direction is None else direction
    found = [head for head in heads if head.direction == wanted]
    return found[0] if found or direction is not None else heads[0]


def score_aligned(
    pairs: AlignedPairs, heads: tuple[AttentionHead, ...], pooling: QueryPooling
) -> Tensor:
    """Return the (P,) scores of aligned pairs, summed over heads."""
    scores = []
    for head in heads:
        queries = pairs.queries(head)
        similarity = pooling.similarity(pairs.attend(head), queries.square)
        scores.append(pooling.pool(similarity, 1, queries.mask))
    return torch.stack(scores).sum(0)


def torch_scores(
    images: Embeddings,
    texts: Embeddings,
    heads: tuple[AttentionHead, ...],
    pooling: QueryPooling,
) -> Tensor:
    """Return the (I, T) scores, summed over heads, with one matrix product per tile.

    Args:
        images: each has a region.
        texts: each has a word.
        heads: of the attention.
        pooling: of the similarities of each query item.
    """

    def tile(images: Embeddings, texts: PackedTexts) -> Tensor:  # (T, I)
        scores = []
        for head, results in zip(heads, apply_heads(images, texts, heads), strict=True):
            if head.direction == "t2i":
                square = squared_norms(texts.words).unsqueeze(1) if head.grams else None
                of_words = pooling.similarity(results, square)  # (W, I)
                scores.append(
                    texts.reduce_words(of_words, lambda block: pooling.pool(block, 1, None))
                )
            else:
                square = squared_lengths(images) if head.grams else None
                of_regions = pooling.similarity(results, square)  # (T, I, R)
                scores.append(pooling.pool(of_regions, -1, region_mask(images)))
        return torch.stack(scores).sum(0)

    by_words, _ = needed_grams(heads)
    return score_tiles(prepare_context(images, gram=by_words), texts, tile)


def nonempty(images: Embeddings) -> Embeddings:
    """Return the images; those without regions get a single zero vector."""
    return images if bool(images.mask.any(1).all()) else ensure_nonempty(images)
