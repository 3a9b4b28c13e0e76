"""VSE++: one vector per image and per text (Faghri et al., BMVC 2018)."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor

from counterfoil.matcher import Matcher, one_view
from counterfoil.models.blocks.inner import full, inner_grid, inner_pairs
from counterfoil.models.blocks.pool import POOLS, Pool, chosen, pool, single, unit
from counterfoil.models.blocks.tower import ImageTower, TextTower
from counterfoil.records import Batch, Encoded, Items, Views

CELLS_AT_ONCE = 1 << 24


@final
class VSE(Matcher):
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
        chosen("image_pool", image_pool, POOLS)
        chosen("text_pool", text_pool, POOLS)
        chosen("measure", measure, ("cosine", "order"))
        same_width(image, text)
        self.image, self.text = image, text
        self.pools: tuple[Pool, Pool] = (image_pool, text_pool)
        self.measure = measure
        self.absolute = absolute
        self.normalise = (normalise_images, normalise_texts)

    def encode_images(self, images: Items) -> Encoded:
        """N images as one vector each."""
        return self._finish(self.image(images), self.pools[0], self.normalise[0])

    def encode_texts(self, texts: Items) -> Encoded:
        """N texts as one vector each."""
        return self._finish(self.text(texts), self.pools[1], self.normalise[1])

    def pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """(P,) scores of aligned pairs."""
        if self.measure == "cosine":
            return inner_pairs(images, texts)
        return broken(full(images.tokens[:, 0]), full(texts.tokens[:, 0]))

    def grid(self, images: Encoded, texts: Encoded) -> Tensor:
        """(I, T) scores."""
        if self.measure == "cosine":
            return inner_grid(images, texts)
        image, text = full(images.tokens[:, 0]), full(texts.tokens[:, 0])
        step = max(1, CELLS_AT_ONCE // max(1, text.numel()))
        return torch.cat([broken(part.unsqueeze(1), text) for part in torch.split(image, step)])

    def forward(self, batch: Batch) -> Views:
        """Trains as it is used."""
        return one_view(self, batch)

    def _finish(self, bag: Encoded, kind: Pool, normalise: bool) -> Encoded:
        one = single(pool(kind, bag))
        one = unit(one) if normalise else one
        return Encoded(one.tokens.abs(), one.mask) if self.absolute else one


def broken(image: Tensor, text: Tensor) -> Tensor:
    """How far the image fails to dominate the text in every coordinate, negated (eq. 8)."""
    length: Tensor = torch.linalg.vector_norm((text - image).clamp(min=0), dim=-1)
    return -length


def same_width(image: ImageTower, text: TextTower) -> None:
    """Check that both towers end in one space.

    Raises:
        ValueError: they do not.
    """
    if image.width != text.width:
        raise ValueError(
            f"the image tower gives {image.width} numbers per vector and the text tower "
            f"{text.width}; give both the same width"
        )
