"""VSE++: one vector per image and per text (Faghri et al., BMVC 2018)."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor

from counterfoil.core.types import Batch, Embeddings, EncodedViews, ModalityBatch
from counterfoil.models.base import RetrievalModel, encode_batch
from counterfoil.models.layers.pooling import (
    POOLS,
    ImageTower,
    Pool,
    TextTower,
    check_choice,
    full_precision,
    inner_pairs,
    inner_products,
    pool_vectors,
    single_vector,
    unit_vectors,
)

CELLS_AT_ONCE = 1 << 24


@final
class VSEPP(RetrievalModel):
    """Global vectors compared by cosine, or by how far they break an order (section 3).

    Departs from the authors' code in: a zero vector scores 0 (theirs gives NaN), and regions or
    words may be pooled in several ways; theirs are ``image_pool="mean"`` of one global feature and
    ``text_pool="last"`` of a unidirectional GRU.
    """

    def __init__(
        self,
        *,
        image: ImageTower,
        text: TextTower,
        image_pool: Pool = "mean",
        text_pool: Pool = "last",
        measure: Literal["cosine", "order"] = "cosine",
        absolute: bool = False,
        normalise_images: bool = True,
        normalise_texts: bool = True,
    ) -> None:
        """Keyword arguments.

        Args:
            image: reads images.
            text: reads texts.
            image_pool: how region vectors become one.
            text_pool: how word vectors become one.
            measure: "cosine" (a plain product when not normalised), or "order":
                -||max(0, text - image)||.
            absolute: take absolute values of the vectors, as order embeddings want.
            normalise_images: bring image vectors to length 1.
            normalise_texts: bring text vectors to length 1.
        """
        super().__init__()
        check_choice("image_pool", image_pool, POOLS)
        check_choice("text_pool", text_pool, POOLS)
        check_choice("measure", measure, ("cosine", "order"))
        check_same_width(image, text)
        self.image, self.text = image, text
        self.pools: tuple[Pool, Pool] = (image_pool, text_pool)
        self.measure = measure
        self.absolute = absolute
        self.normalise = (normalise_images, normalise_texts)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """N images as one vector each."""
        return self._finish(self.image(images), self.pools[0], self.normalise[0])

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """N texts as one vector each."""
        return self._finish(self.text(texts), self.pools[1], self.normalise[1])

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """(P,) scores of aligned pairs."""
        if self.measure == "cosine":
            return inner_pairs(images, texts)
        return order_similarity(
            full_precision(images.tokens[:, 0]), full_precision(texts.tokens[:, 0])
        )

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """(I, T) scores."""
        if self.measure == "cosine":
            return inner_products(images, texts)
        image, text = full_precision(images.tokens[:, 0]), full_precision(texts.tokens[:, 0])
        step = max(1, CELLS_AT_ONCE // max(1, text.numel()))
        return torch.cat(
            [order_similarity(part.unsqueeze(1), text) for part in torch.split(image, step)]
        )

    def forward(self, batch: Batch) -> EncodedViews:
        """Trains as it is used."""
        return encode_batch(self, batch)

    def _finish(self, bag: Embeddings, kind: Pool, normalise: bool) -> Embeddings:
        one = single_vector(pool_vectors(kind, bag))
        one = unit_vectors(one) if normalise else one
        return Embeddings(one.tokens.abs(), one.mask) if self.absolute else one


def order_similarity(image: Tensor, text: Tensor) -> Tensor:
    """How far the image fails to dominate the text in every coordinate, negated (eq. 8)."""
    length: Tensor = torch.linalg.vector_norm((text - image).clamp(min=0), dim=-1)
    return -length


def check_same_width(image: ImageTower, text: TextTower) -> None:
    """Check that both towers end in one space.

    Raises:
        ValueError: they do not.
    """
    if image.width != text.width:
        raise ValueError(
            f"the image tower gives {image.width} numbers per vector and the text tower "
            f"{text.width}; give both the same width"
        )
