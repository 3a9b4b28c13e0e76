"""Late interaction (MaxSim): each vector of one item takes its best vector of the other.

With unit vectors q_i of the words of a text and d_j of the regions of an image,

    t2i = sum_i max_j q_i . d_j        ColBERT (arXiv:2004.12832), ColPali (arXiv:2407.01449)
    i2t = sum_j max_i q_i . d_j

or the means in place of the sums (FILIP, arXiv:2111.07783, eq. 3-4). Padding of the side that is
searched is left out before the maximum, padding of the other side adds nothing after it.

It is the attention of `counterfoil.models.layers.cross_attention` with hard assignment: texts are
packed without padding, and one matrix product of a tile's words and regions serves both directions.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from counterfoil.core.types import Embeddings
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.attention_model import (
    nonempty,
    score_aligned,
    torch_scores,
)
from counterfoil.models.layers.cross_attention import Direction, HardAssignment, QueryPooling
from counterfoil.models.layers.fused import align_pairs
from counterfoil.models.layers.kernel_scores import kernel_scores
from counterfoil.models.layers.pooling import check_choice, full_precision

MaxSimDirection = Literal["t2i", "i2t", "both"]
CELLS_AT_ONCE = 1 << 24  # similarities of aligned pairs: 64 MB of float32


class MaxSimModel(RetrievalModel, ABC):
    """A model that scores by MaxSim; an image without vectors counts as one zero vector.

    Attributes:
        direction: "t2i" sums or averages over words, "i2t" over regions; "both" is the mean of the
            two.
        mean: average over vectors instead of adding them.
    """

    has_kernels = True
    direction: MaxSimDirection = "t2i"
    mean: bool = True

    @property
    def score_name(self) -> str:
        items = {"t2i": "words", "i2t": "regions", "both": "words and of regions"}[self.direction]
        return f"MaxSim, {'mean' if self.mean else 'sum'} of {items}"

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (P,) scores of image p with text p."""
        heads, pooling = self._scoring()
        images, texts = _in_full_precision(nonempty(images)), _in_full_precision(texts)
        size = max(1, CELLS_AT_ONCE // max(1, images.mask.shape[1] * texts.mask.shape[1]))
        parts = [images.tokens.new_zeros(0)]
        with torch.autocast(images.tokens.device.type, enabled=False):
            for rows in (slice(first, first + size) for first in range(0, len(images), size)):
                pairs = align_pairs(heads, images.rows(rows), texts.rows(rows))
                parts.append(score_aligned(pairs, heads, pooling))
        return torch.cat(parts)

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (I, T) scores: by kernels on a GPU, else one matrix product per tile."""
        scoring = self._scoring()
        with torch.autocast(images.tokens.device.type, enabled=False):
            # a kernel adds products of half precision in float32
            scores = kernel_scores(images, texts, *scoring)
            if scores is not None:
                return scores
            images, texts = _in_full_precision(nonempty(images)), _in_full_precision(texts)
            return torch_scores(images, texts, *scoring)

    @property
    def maps_attention(self) -> bool:
        """Whether `word_region_maps` is attention; it is what the score takes the best of."""
        return False

    def word_region_maps(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (P, L, R) inner products of the words of text p with the regions of image p.

        The score takes the best of each word ("t2i"), of each region ("i2t") or of both.
        """
        heads, _ = self._scoring()
        images, texts = _in_full_precision(images), _in_full_precision(texts)
        with torch.autocast(images.tokens.device.type, enabled=False):
            return align_pairs(heads, images, texts).affinity

    def _scoring(self) -> tuple[tuple[HardAssignment, ...], QueryPooling]:
        ways = get_args(Direction) if self.direction == "both" else (self.direction,)
        pooling = QueryPooling("Mean" if self.mean else "Sum", divisor=len(ways))
        return tuple(HardAssignment(way) for way in ways), pooling


def check_direction(direction: str) -> None:
    """Refuse a direction of MaxSim that is not known."""
    check_choice("direction", direction, get_args(MaxSimDirection))


def _in_full_precision(side: Embeddings) -> Embeddings:
    return replace(side, tokens=full_precision(side.tokens))
