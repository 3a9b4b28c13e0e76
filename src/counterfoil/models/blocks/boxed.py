"""UNITER's embedding layers: wordpieces with their order, regions with their boxes."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from counterfoil.models.blocks.joint import EPSILON
from counterfoil.models.blocks.tower import (
    ImageTower,
    TextTower,
    fits,
    hidden,
    known_ids,
    positive,
)
from counterfoil.records import Encoded, Items

PLACE = 7  # numbers that say where a region is


@final
class PieceEmbedding(TextTower):
    """norm(word + position + kind), with dropout.

    What the mask hides is embedded as the word 0.
    """

    def __init__(
        self, *, vocabulary: int, positions: int, width: int, dropout: float, mask: int | None
    ) -> None:
        """Keyword arguments.

        Args:
            vocabulary: how many ids there are.
            positions: longest text.
            width: of the vectors.
            dropout: share of entries dropped in training.
            mask: id of the token that hides a word; where None there is one more embedding for
                it, behind the vocabulary.

        Raises:
            ValueError: a size below 1, or a mask outside the vocabulary.
        """
        super().__init__()
        positive(vocabulary=vocabulary, positions=positions, width=width)
        if mask is not None and not 0 <= mask < vocabulary:
            raise ValueError(
                f"mask={mask} is not an id of a vocabulary of {vocabulary}; give the id of the "
                "tokenizer's mask token, or None"
            )
        self.width = width
        self.word_embeddings = nn.Embedding(vocabulary + (mask is None), width)
        self.position_embeddings = nn.Embedding(positions, width)
        self.kind = nn.Parameter(torch.empty(width))
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.dropout = nn.Dropout(dropout)
        self._mask = vocabulary if mask is None else mask

    def forward(self, items: Items) -> Encoded:
        """Token ids (N, L) as vectors.

        Raises:
            ValueError: an id or a length that the model does not know.
        """
        known, longest = self.word_embeddings.num_embeddings, self.position_embeddings
        ids = known_ids(items, longest=longest.num_embeddings, vocabulary=known)
        words = self.word_embeddings(ids)
        order = self.position_embeddings.weight[: ids.shape[1]]
        return Encoded(self.dropout(self.norm(words + order + self.kind)), items.mask)

    def word_table(self) -> nn.Module:
        """What token ids are looked up in."""
        return self.word_embeddings

    @property
    def mask_word(self) -> int:
        """Id of the token that hides a word."""
        return self._mask


@final
class BoxedRegions(ImageTower):
    """norm(norm(features) + norm(place) + kind), with dropout.

    The place of a region is x1, y1, x2, y2, width, height and area, as fractions of the picture.
    """

    def __init__(self, *, features: int, width: int, dropout: float, hides: bool) -> None:
        """Keyword arguments.

        Args:
            features: width of a region's features.
            width: of the vectors.
            dropout: share of entries dropped in training.
            hides: have a learnt vector that stands for the features of a hidden region.

        Raises:
            ValueError: a size below 1.
        """
        super().__init__()
        positive(features=features, width=width)
        self.width, self.features = width, features
        self.fc, self.place = nn.Linear(features, width), nn.Linear(PLACE, width)
        self.fc_norm, self.place_norm, self.norm = (
            nn.LayerNorm(width, eps=EPSILON) for _ in range(3)
        )
        self.kind = nn.Parameter(torch.empty(width))
        self.veil = nn.Parameter(torch.empty(features)) if hides else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, items: Items, veiled: Tensor | None = None) -> Encoded:
        """Regions (N, R, F) as vectors.

        Args:
            items: with their boxes.
            veiled: (N, R) bool, True where the features of a region are hidden.

        Raises:
            ValueError: features of another width, regions without boxes, or nothing that could
                stand for hidden ones.
        """
        fits(items, self.features)
        values = hidden(items.values, items.mask).to(self.fc.weight.dtype)
        if veiled is not None:
            values = torch.where(veiled.unsqueeze(2), self._veil(), values)
        where = places(self._boxes(items).to(values.dtype))
        seen = self.fc_norm(self.fc(values)) + self.place_norm(self.place(where))
        return Encoded(self.dropout(self.norm(seen + self.kind)), items.mask)

    @staticmethod
    def _boxes(items: Items) -> Tensor:
        if items.boxes is None:
            raise ValueError(
                "this model reads where regions are, and these image features have no boxes; give "
                "features with boxes, or choose a model that does without"
            )
        return hidden(items.boxes, items.mask)

    def _veil(self) -> Tensor:
        if self.veil is None:
            raise ValueError(
                "this model has nothing that stands for a hidden region; build it with the outputs "
                "regress or classify"
            )
        return self.veil


def places(boxes: Tensor) -> Tensor:
    """(N, R, 7) x1, y1, x2, y2, width, height and area of regions (N, R, 4), all as fractions."""
    size = boxes[..., 2:] - boxes[..., :2]
    return torch.cat([boxes, size, size.prod(2, keepdim=True)], 2)
