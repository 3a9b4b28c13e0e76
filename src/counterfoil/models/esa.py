"""ESA: external space attention, and copies of every item in training (Zhu et al., TCSVT 2023)."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from counterfoil.matcher import Matcher
from counterfoil.models.blocks.augment import share_of
from counterfoil.models.blocks.external import External
from counterfoil.models.blocks.inner import inner_grid, inner_pairs
from counterfoil.models.blocks.pool import single, unit
from counterfoil.models.blocks.tower import ImageTower, TextTower, positive
from counterfoil.models.vse import same_width
from counterfoil.records import INFERENCE, Batch, Encoded, Items, View, Views

EXPANDED = "expanded"


@final
class ESA(Matcher):
    """Two towers, a pooling with weights for each dimension, and the cosine.

    Detected regions are read by `MLPRegions`, grid cells by one linear layer, words by a `GRU` in
    both directions or by `Bert`, each with a dropout of 0.1.

    In training every item of the batch stands `copies` times in the view "expanded". Copies of an
    image differ in the regions that are pooled; its tower reads all of them, once. Copies of a text
    are read one by one, so they differ in what the tower drops, see `word_drop` and `dropout`
    there: without either they are equal, and one copy does. The view for inference is the first
    copy of each, augmented like the others, so that it costs nothing beside them; there a guide may
    join in. In evaluation both views are the same, of one copy, with nothing dropped.

    Departs from the authors' code in: images may have any number of copies, theirs two; zero
    vectors give no NaN; padding takes no part in the batch statistics of `MLPRegions`; and see
    `External`.
    """

    grids = frozenset({INFERENCE, EXPANDED})

    def __init__(
        self,
        *,
        image: ImageTower,
        text: TextTower,
        copies: int = 2,
        region_drop: float = 0.2,
        normalise_images: bool = True,
        normalise_texts: bool = True,
    ) -> None:
        """Keyword arguments.

        Args:
            image: reads images.
            text: reads texts.
            copies: of each item in training; 1 for losses that judge the view for inference alone.
            region_drop: share of regions that a copy of an image is pooled without.
            normalise_images: bring image vectors to length 1.
            normalise_texts: bring text vectors to length 1.

        Raises:
            ValueError: no copy, no share, or towers that end in spaces of different widths.
        """
        super().__init__()
        same_width(image, text)
        positive(copies=copies)
        self.image, self.text = image, text
        self.image_pool, self.text_pool = External(width=image.width), External(width=text.width)
        self.copies, self.region_drop = copies, share_of(region_drop, "region_drop")
        self.normalise = (normalise_images, normalise_texts)

    def encode_images(self, images: Items) -> Encoded:
        """N images as one vector each, of all their regions."""
        return self.pooled(self.image(images))

    def encode_texts(self, texts: Items) -> Encoded:
        """N texts as one vector each."""
        vectors = single(self.text_pool(self.text(texts))[:, 0])
        return unit(vectors) if self.normalise[1] else vectors

    def pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """(P,) scores of aligned pairs."""
        return inner_pairs(images, texts)

    def grid(self, images: Encoded, texts: Encoded) -> Tensor:
        """(I, T) scores."""
        return inner_grid(images, texts)

    def forward(self, batch: Batch) -> Views:
        """Copies of all items side by side, and the first of each."""
        copies, bag = (self.copies if self.training else 1), self.image(batch.images)
        images = self.pooled(bag, self._kept(bag.mask, copies) if self.training else None)
        rows = torch.arange(len(batch.texts), device=batch.texts.mask.device)
        several = batch.texts if copies == 1 else batch.texts.rows(rows.repeat_interleave(copies))
        texts = self.encode_texts(several)
        first = slice(None, None, copies)
        return Views(
            {
                INFERENCE: View(images.rows(first), texts.rows(first)),
                EXPANDED: View(images, texts, copies),
            }
        )

    def pooled(self, bag: Encoded, keep: Tensor | None = None) -> Encoded:
        """Images as one vector for each copy, copies side by side.

        Args:
            bag: what the image tower made of N images of R regions.
            keep: (N, C, R) bool, the regions of each copy; None for one copy with all of them.
        """
        vectors = single(self.image_pool(bag, keep).flatten(0, 1))
        return unit(vectors) if self.normalise[0] else vectors

    def _kept(self, mask: Tensor, copies: int) -> Tensor:
        shape = (len(mask), copies, mask.shape[1])
        return torch.rand(shape, device=mask.device) >= self.region_drop
