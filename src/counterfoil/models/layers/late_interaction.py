"""Late interaction (MaxSim): each vector of one item takes its best vector of the other.

With unit vectors q_i of the words of a text and d_j of the regions of an image,

    t2i = sum_i max_j q_i . d_j        ColBERT (arXiv:2004.12832), ColPali (arXiv:2407.01449)
    i2t = sum_j max_i q_i . d_j

or the means in place of the sums (FILIP, arXiv:2111.07783, eq. 3-4). Padding of the side that is
searched is left out before the maximum, padding of the other side adds nothing after it.

As in `counterfoil.models.layers.cross_attention`, texts are packed without padding, and one matrix
product of a tile's words and regions serves both directions.
"""

from __future__ import annotations

from abc import ABC
from typing import Literal, get_args

import torch
from torch import Tensor

from counterfoil.core.types import Embeddings
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.attention_model import nonempty
from counterfoil.models.layers.cross_attention import (
    Direction,
    HardAssignment,
    PackedTexts,
    score_tiles,
)
from counterfoil.models.layers.kernel_scores import QueryPooling, kernel_scores
from counterfoil.models.layers.pooling import check_choice, full_precision, zero_padded

MaxSimDirection = Literal["t2i", "i2t", "both"]
CELLS_AT_ONCE = 1 << 24  # similarities of aligned pairs: 64 MB of float32


class MaxSimModel(RetrievalModel, ABC):
    """A model that scores by MaxSim; an image without vectors counts as one zero vector.

    Attributes:
        direction: "t2i" sums or averages over words, "i2t" over regions; "both" is the mean of the
            two.
        mean: average over vectors instead of adding them.
    """

    direction: MaxSimDirection = "t2i"
    mean: bool = True

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (P,) scores of image p with text p."""
        images = nonempty(images)
        size = max(1, CELLS_AT_ONCE // max(1, images.mask.shape[1] * texts.mask.shape[1]))
        parts = [images.tokens.new_zeros(0, dtype=torch.float32)]
        for start in range(0, len(images), size):
            rows = slice(start, start + size)
            parts.append(self._aligned(images.rows(rows), texts.rows(rows)))
        return torch.cat(parts)

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (I, T) scores: by kernels on a GPU, else one matrix product per tile."""
        images = nonempty(images)
        heads = tuple(
            HardAssignment(way) for way in get_args(Direction) if self.direction in (way, "both")
        )
        pooling = QueryPooling("Mean" if self.mean else "Sum", scale=1 / len(heads))
        with torch.autocast(images.tokens.device.type, enabled=False):
            scores = kernel_scores(images, texts, heads, pooling)
        if scores is not None:
            return scores
        images = Embeddings(zero_padded(images.tokens, images.mask), images.mask)
        return score_tiles(images, texts, self._tile)

    def _aligned(self, images: Embeddings, texts: Embeddings) -> Tensor:
        words, regions = (zero_padded(side.tokens, side.mask) for side in (texts, images))
        with torch.autocast(words.device.type, enabled=False):
            similarity = torch.bmm(full_precision(words), full_precision(regions).mT)  # (P, L, R)
        scores = []
        if self.direction != "i2t":
            best = _best(similarity, images.mask[:, None], 2)
            scores.append(self._pooled(best, texts.mask))
        if self.direction != "t2i":
            best = _best(similarity, texts.mask[:, :, None], 1)
            scores.append(self._pooled(best, images.mask))
        return scores[0] if len(scores) == 1 else (scores[0] + scores[1]) / 2

    def _pooled(self, best: Tensor, mask: Tensor) -> Tensor:
        total = best.masked_fill(~mask, 0).sum(-1)
        return total / mask.sum(-1).clamp(min=1) if self.mean else total

    def _tile(self, images: Embeddings, texts: PackedTexts) -> Tensor:
        """Return the (T, I) scores of a tile."""
        (n_images, regions), words = images.mask.shape, texts.words
        flat = images.tokens.flatten(0, 1)
        with torch.autocast(words.device.type, enabled=False):
            similarity = full_precision(words) @ full_precision(flat).T
        similarity = similarity.view(-1, n_images, regions)  # (W, I, R)
        mask = None if bool(images.mask.all()) else images.mask
        scores = []
        if self.direction != "i2t":
            best = _best(similarity, None if mask is None else mask[None], 2)  # (W, I)
            scores.append(
                texts.reduce_words(best, lambda block: block.mean(1) if self.mean else block.sum(1))
            )
        if self.direction != "t2i":
            best = torch.cat(
                [
                    similarity[run.words].view(run.n, run.length, n_images, regions).max(1).values
                    for run in texts.runs()
                ]
            )  # (T, I, R)
            scores.append(self._pooled(best, images.mask[None]))
        return scores[0] if len(scores) == 1 else (scores[0] + scores[1]) / 2


def check_direction(direction: str) -> None:
    """Refuse a direction of MaxSim that is not known."""
    check_choice("direction", direction, get_args(MaxSimDirection))


def _best(similarity: Tensor, mask: Tensor | None, dim: int) -> Tensor:
    """Return maxima along an axis over real vectors; 0 where there are none.

    `max` sends the gradient to the first best vector, where `amax` would share it among equals.
    """
    if mask is None:
        return similarity.max(dim).values
    best = similarity.masked_fill(~mask, -torch.inf).max(dim).values
    return best.masked_fill(~mask.any(dim), 0)
