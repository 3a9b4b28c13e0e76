"""GPO, or VSE-infinity: one vector per item, pooled by rank (Chen et al., CVPR 2021)."""

from __future__ import annotations

from typing import final

from torch import Tensor

from counterfoil.matcher import Matcher, one_view
from counterfoil.models.blocks.gpo import GeneralPool
from counterfoil.models.blocks.inner import inner_grid, inner_pairs
from counterfoil.models.blocks.pool import single, unit
from counterfoil.models.blocks.tower import ImageTower, TextTower
from counterfoil.models.vse import same_width
from counterfoil.records import Batch, Encoded, Items, Views


@final
class GPO(Matcher):
    """Two towers, a learned pooling for each, and the cosine.

    Detected regions are read by `MLPRegions`, grid cells by one linear layer, words by a `GRU` in
    both directions or by `Bert`; the first and the last token of a text are pooled as words.

    Departs from the authors' code in: zero vectors give no NaN, and padding takes no part in the
    batch statistics of `MLPRegions`.
    """

    def __init__(
        self,
        *,
        image: ImageTower,
        text: TextTower,
        positions: int = 32,
        hidden: int = 32,
        temperature: float = 0.1,
        normalise_images: bool = True,
        normalise_texts: bool = True,
    ) -> None:
        """Keyword arguments.

        Args:
            image: reads images.
            text: reads texts.
            positions: width of a position's encoding in the poolings.
            hidden: width of their recurrent networks.
            temperature: of the weights of the ranks.
            normalise_images: bring image vectors to length 1.
            normalise_texts: bring text vectors to length 1.

        Raises:
            ValueError: the towers end in spaces of different widths.
        """
        super().__init__()
        same_width(image, text)
        self.image, self.text = image, text
        self.image_pool, self.text_pool = (
            GeneralPool(positions=positions, hidden=hidden, temperature=temperature)
            for _ in range(2)
        )
        self.normalise = (normalise_images, normalise_texts)

    def encode_images(self, images: Items) -> Encoded:
        """N images as one vector each."""
        vectors = single(self.image_pool(self.image(images)))
        return unit(vectors) if self.normalise[0] else vectors

    def encode_texts(self, texts: Items) -> Encoded:
        """N texts as one vector each."""
        vectors = single(self.text_pool(self.text(texts)))
        return unit(vectors) if self.normalise[1] else vectors

    def pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """(P,) scores of aligned pairs."""
        return inner_pairs(images, texts)

    def grid(self, images: Encoded, texts: Encoded) -> Tensor:
        """(I, T) scores."""
        return inner_grid(images, texts)

    def forward(self, batch: Batch) -> Views:
        """Trains as it is used."""
        return one_view(self, batch)
