"""A model: the mean of an item's parts, compared by cosine."""

from __future__ import annotations

from typing import final

from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.base import SingleVectorModel
from counterfoil.models.layers.pooling import (
    ImageTower,
    TextTower,
    pool_vectors,
    single_vector,
    unit_vectors,
)


@final
class MeanOfParts(SingleVectorModel):
    """One vector per item, the mean of what its tower gives, of length 1."""

    def __init__(self, *, image: ImageTower, text: TextTower) -> None:
        super().__init__()
        self.image, self.text = image, text

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        return _mean(self.image(images))

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        return _mean(self.text(texts))


def _mean(parts: Embeddings) -> Embeddings:
    return unit_vectors(single_vector(pool_vectors("mean", parts)))
