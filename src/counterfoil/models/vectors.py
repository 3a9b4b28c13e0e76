"""Ready-made embeddings as a model."""

from __future__ import annotations

from typing import final

from torch import Tensor

from counterfoil.matcher import Matcher, one_view
from counterfoil.models.blocks.inner import inner_grid, inner_pairs
from counterfoil.models.blocks.pool import single, unit
from counterfoil.records import Batch, Encoded, Items, Views


@final
class Vectors(Matcher):
    """Items that already are vectors (N, 1, D), compared by cosine or inner product.

    It has no parameters.
    """

    def __init__(self, *, normalise: bool = True) -> None:
        """Keyword arguments.

        Args:
            normalise: bring vectors to length 1, so that the score is a cosine.
        """
        super().__init__()
        self.normalise = normalise

    def encode_images(self, images: Items) -> Encoded:
        """The vectors."""
        return self._take(images, "image")

    def encode_texts(self, texts: Items) -> Encoded:
        """The vectors."""
        return self._take(texts, "text")

    def pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """(P,) inner products of aligned rows."""
        return inner_pairs(images, texts)

    def grid(self, images: Encoded, texts: Encoded) -> Tensor:
        """(I, T) inner products."""
        if images.tokens.shape[-1] != texts.tokens.shape[-1]:
            raise ValueError(
                f"image vectors are {images.tokens.shape[-1]} wide and text vectors "
                f"{texts.tokens.shape[-1]}; both must come from one model"
            )
        return inner_grid(images, texts)

    def forward(self, batch: Batch) -> Views:
        """The same in training."""
        return one_view(self, batch)

    def _take(self, items: Items, what: str) -> Encoded:
        if items.values.dim() != 3 or items.values.shape[1] != 1:
            raise ValueError(
                f"{what} vectors have shape {tuple(items.values.shape)}; "
                f"one vector per {what} is needed, (N, 1, D)"
            )
        values = items.values[:, 0]
        bag = single(values if values.is_floating_point() else values.float())
        return unit(bag) if self.normalise else bag
