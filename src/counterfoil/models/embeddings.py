"""A model for precomputed embeddings."""

from __future__ import annotations

from typing import final

from torch import Tensor

from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.base import SingleVectorModel
from counterfoil.models.layers.pooling import single_vector, unit_vectors


@final
class EmbeddingModel(SingleVectorModel):
    """Precomputed vectors (N, 1, D), compared by cosine or inner product; no parameters.

    Image and text vectors must come from one model.
    """

    def __init__(self, *, normalise: bool = True) -> None:
        """Initialise the module.

        Args:
            normalise: bring vectors to length 1, so that the score is a cosine.
        """
        super().__init__()
        self.normalise = (normalise, normalise)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Return the image vectors, normalised if set."""
        return self._vectors(images, "image")

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Return the text vectors, normalised if set."""
        return self._vectors(texts, "text")

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        if images.tokens.shape[-1] != texts.tokens.shape[-1]:
            raise ValueError(
                f"image vectors are {images.tokens.shape[-1]} wide and text vectors "
                f"{texts.tokens.shape[-1]}; both must come from one model"
            )
        return super().score_matrix(images, texts)

    def _vectors(self, items: ModalityBatch, noun: str) -> Embeddings:
        if items.values.dim() != 3 or items.values.shape[1] != 1:
            raise ValueError(
                f"{noun} vectors have shape {tuple(items.values.shape)}; "
                f"one vector per {noun} is needed, (N, 1, D)"
            )
        values = items.values[:, 0]
        bag = single_vector(values if values.is_floating_point() else values.float())
        return unit_vectors(bag) if all(self.normalise) else bag
