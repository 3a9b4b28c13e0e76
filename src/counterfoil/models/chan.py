"""CHAN: cross-modal hard aligning (Pan, Wu and Zhang, CVPR 2023)."""

from __future__ import annotations

from typing import Literal, final, get_args

import torch
from torch import Tensor

from counterfoil.matcher import Matcher, one_view
from counterfoil.models.blocks.affinity import Aligned, aligned, asked, clean, hidden_regions
from counterfoil.models.blocks.aggregate import Pooling, pooled
from counterfoil.models.blocks.assignment import Assignment
from counterfoil.models.blocks.attention import Attended, Attention
from counterfoil.models.blocks.head import Head
from counterfoil.models.blocks.listed import listed
from counterfoil.models.blocks.packing import Packed, tiled
from counterfoil.models.blocks.pool import chosen, unit
from counterfoil.models.blocks.selfattention import SelfAttention, Sight
from counterfoil.models.blocks.tower import ImageTower, TextTower, inhabited
from counterfoil.models.vse import same_width
from counterfoil.records import Batch, Encoded, Items, Pairs, Views

Coding = Literal["VHA", "THA", "VSA"]
RegionBlock = Literal["basic", "selfattention", "transformer"]


@final
class CHAN(Matcher):
    """Each word is coded by its most similar region, and the similarities become one score.

    No affinity of padding is ever looked at: captions are packed, regions masked with -inf.

    Departs from the authors' code in: padded regions are no keys of the self-attention, and the
    transformer attends within an image (`sees`); an affinity of -1 is an affinity, not padding;
    softmax pooling gives no NaN with padding; an image without regions is one zero region.

    Attributes:
        score_scale: 1 / beta for "LSE", whose score is not brought back to cosines; else 1. The
            authors' margin of 0.05 is in these units, so it is 0.005 of a cosine there.
    """

    def __init__(
        self,
        *,
        image: ImageTower,
        text: TextTower,
        block: RegionBlock = "basic",
        coding: Coding = "VHA",
        pooling: Pooling = "LSE",
        alpha: float = 0.1,
        beta: float = 0.1,
        heads: int = 8,
        sees: Sight = "regions",
        normalise_images: bool = True,
        normalise_texts: bool = True,
    ) -> None:
        """Keyword arguments.

        Args:
            image: reads images.
            text: reads texts; every token counts as a word, BERT's special ones too.
            block: what regions learn from each other: "basic" nothing (with BERT),
                "selfattention" (with a GRU) or "transformer", see `SelfAttention`.
            coding: "VHA": each word takes its best region; "THA": each region its best word;
                "VSA": each region attends to the words.
            pooling: how the similarities become one score; "LSE" with a GRU, "Mean" with BERT.
            alpha: temperature of "VSA".
            beta: temperature of "LSE" and "Softmax".
            heads: of the self-attention.
            sees: what it attends to; the authors' weights were trained with "padding", those of a
                transformer with "batch". Then an item's encoding depends on its batch.
            normalise_images: bring region vectors to length 1.
            normalise_texts: bring word vectors to length 1.

        Raises:
            ValueError: a word that is not known, a temperature that is not positive, or parts of
                different widths.
        """
        super().__init__()
        chosen("block", block, get_args(RegionBlock))
        chosen("coding", coding, get_args(Coding))
        chosen("pooling", pooling, get_args(Pooling))
        chosen("sees", sees, get_args(Sight))
        same_width(image, text)
        for name, temperature in (("alpha", alpha), ("beta", beta)):
            if temperature <= 0:
                raise ValueError(f"{name}={temperature} is no temperature; it must be positive")
        self.image, self.text = image, text
        self.block = (
            None
            if block == "basic"
            else SelfAttention(
                width=image.width, heads=heads, perceptron=block == "transformer", sees=sees
            )
        )
        self.coding = _head(coding, alpha)
        self.pooling: Pooling = pooling
        self.beta = beta
        self.score_scale = 1 / beta if pooling == "LSE" else 1.0
        self.normalise = (normalise_images, normalise_texts)

    def encode_images(self, images: Items) -> Encoded:
        """N images as region vectors."""
        bag: Encoded = self.image(images)
        bag = bag if self.block is None else self.block(bag)
        return unit(bag) if self.normalise[0] else bag

    def encode_texts(self, texts: Items) -> Encoded:
        """N texts as word vectors."""
        bag: Encoded = self.text(texts)
        return unit(bag) if self.normalise[1] else bag

    def pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """(P,) scores of aligned pairs."""
        return self._score(aligned((self.coding,), _filled(images), texts))

    def listed(self, images: Encoded, texts: Encoded, pairs: Pairs) -> Tensor:
        """(P,) scores of pairs of rows of two pools."""
        return self._score(listed((self.coding,), _filled(images), texts, pairs))

    def grid(self, images: Encoded, texts: Encoded) -> Tensor:
        """(I, T) scores."""
        return tiled(clean(_filled(images), gram=False), texts, self._tile)

    def forward(self, batch: Batch) -> Views:
        """Trains as it is used."""
        return one_view(self, batch)

    def similarities(self, images: Encoded, texts: Encoded) -> Tensor:
        """(P, L) of the words of aligned pairs, or (P, R) of the regions, before they are pooled.

        What stands at padding is arbitrary.
        """
        return self._coded(aligned((self.coding,), _filled(images), texts).found(self.coding))

    def _score(self, pairs: Aligned) -> Tensor:
        similarity = self._coded(pairs.found(self.coding))
        return self._pooled(similarity, 1, pairs.asking(self.coding).mask)

    def _tile(self, images: Encoded, texts: Packed) -> Tensor:
        """(T, I) scores."""
        (found,) = asked(images, texts, (self.coding,))
        similarity = self._coded(found)
        if self.coding.direction == "t2i":
            return texts.gathered(similarity, lambda block: self._pooled(block, 1, None))
        return self._pooled(similarity, -1, hidden_regions(images))

    def _coded(self, found: tuple[Tensor, ...]) -> Tensor:
        """Of each query with what it is coded by, which has length 1 where it is attended to."""
        if isinstance(self.coding, Attention):
            return Attended(*found).cosine(torch.ones((), device=found[0].device))
        return found[0]

    def _pooled(self, similarity: Tensor, dim: int, mask: Tensor | None) -> Tensor:
        return pooled(self.pooling, similarity, dim, mask, self.beta)


def _head(coding: Coding, alpha: float) -> Head:
    if coding == "VSA":
        return Attention("i2t", "no_norm", 1 / alpha)
    return Assignment("t2i" if coding == "VHA" else "i2t")


def _filled(images: Encoded) -> Encoded:
    """The same; an image without regions has one, which is zero."""
    return images if bool(images.mask.any(1).all()) else inhabited(images)
