"""VSE++: one vector per image and per text (Faghri et al., BMVC 2018)."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor

from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.base import SingleVectorModel
from counterfoil.models.checkpoints import (
    Checkpoint,
    ConvertedModel,
    convert_towers,
    gru_tower_names,
)
from counterfoil.models.layers.pooling import (
    POOLS,
    ImageTower,
    Pool,
    TextTower,
    check_choice,
    full_precision,
    pool_vectors,
    single_vector,
)
from counterfoil.models.layers.towers import TwoTowerModel

CELLS_AT_ONCE = 1 << 24


@final
class VSEPP(TwoTowerModel, SingleVectorModel):
    """One vector per item, compared by cosine or by the order-embedding similarity (section 3).

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
        """Initialise the module.

        Args:
            image: encoder of images.
            text: encoder of texts.
            image_pool: pooling of region vectors.
            text_pool: pooling of word vectors.
            measure: "cosine" (a plain product when not normalised), or "order":
                -||max(0, text - image)||.
            absolute: take absolute values of the vectors, as order embeddings need.
            normalise_images: scale image vectors to length 1.
            normalise_texts: scale text vectors to length 1.
        """
        super().__init__(image, text, normalise=(normalise_images, normalise_texts))
        check_choice("image_pool", image_pool, POOLS)
        check_choice("text_pool", text_pool, POOLS)
        check_choice("measure", measure, ("cosine", "order"))
        self.pools: tuple[Pool, Pool] = (image_pool, text_pool)
        self.measure = measure
        self.absolute = absolute

    @property
    def score_name(self) -> str:
        return "order violation" if self.measure == "order" else super().score_name

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as one vector each."""
        return self._absolute(self.scale_images(_pooled(self.image(images), self.pools[0])))

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """Encode N texts as one vector each."""
        return self._absolute(self.scale_texts(_pooled(self.text(texts), self.pools[1])))

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        if self.measure == "cosine":
            return super().score_pairs(images, texts)
        return order_similarity(
            full_precision(images.tokens[:, 0]), full_precision(texts.tokens[:, 0])
        )

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        if self.measure == "cosine":
            return super().score_matrix(images, texts)
        image, text = full_precision(images.tokens[:, 0]), full_precision(texts.tokens[:, 0])
        # the difference of all pairs is (I, T, D): a few images at a time
        step = max(1, CELLS_AT_ONCE // max(1, text.numel()))
        return torch.cat(
            [order_similarity(part.unsqueeze(1), text) for part in torch.split(image, step)]
        )

    def _absolute(self, vectors: Embeddings) -> Embeddings:
        return Embeddings(vectors.tokens.abs(), vectors.mask) if self.absolute else vectors


def _pooled(bag: Embeddings, pool: Pool) -> Embeddings:
    return single_vector(pool_vectors(pool, bag))


def order_similarity(image: Tensor, text: Tensor) -> Tensor:
    """Return -||max(0, text - image)||: 0 where the image is larger in every coordinate (eq. 8)."""
    violation: Tensor = torch.linalg.vector_norm((text - image).clamp(min=0), dim=-1)
    return -violation


NAMES = gru_tower_names("a VSE++")


def vsepp_from_checkpoint(checkpoint: Checkpoint) -> ConvertedModel:
    """Convert a checkpoint of VSE++."""
    options = {"measure": "measure", "use_abs": "absolute"}
    state = NAMES.renamed(checkpoint.state)
    return convert_towers(VSEPP, checkpoint, state, options=options)
