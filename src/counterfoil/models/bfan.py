"""BFAN: bidirectional focal attention (Liu et al., ACM MM 2019)."""

from __future__ import annotations

from typing import final, get_args

from torch import Tensor

from counterfoil.matcher import Matcher, one_view
from counterfoil.models.blocks.affinity import (
    Aligned,
    aligned,
    attended,
    clean,
    hidden_regions,
    squares,
)
from counterfoil.models.blocks.aggregate import aggregate
from counterfoil.models.blocks.attention import Attention
from counterfoil.models.blocks.focal import Rule
from counterfoil.models.blocks.inner import square
from counterfoil.models.blocks.listed import listed
from counterfoil.models.blocks.packing import Packed, tiled
from counterfoil.models.blocks.pool import chosen, unit
from counterfoil.models.blocks.tower import ImageTower, TextTower
from counterfoil.models.vse import same_width
from counterfoil.records import Batch, Encoded, Items, Pairs, Views


@final
class BFAN(Matcher):
    """Words attend to regions and regions to words, and both drop what matters little to them.

    The score is the mean cosine of the words with what they attend to, plus that of the regions:
    a sum of two cosines in [-2, 2]. It is exact, but no attended vector is ever formed, and one
    product serves both directions: see `counterfoil.models.blocks.attention`.

    Departs from the authors' code in: a uniform context stays uniform instead of giving NaN (B1);
    shapes are kept with one image, one word or one region (S2); images may have different numbers
    of regions; "prob" needs no context x context product.

    Attributes:
        score_scale: 2.0: a score is the sum of two mean cosines. The authors' margin of 0.2 is in
            these units.
    """

    score_scale = 2.0

    def __init__(
        self,
        *,
        image: ImageTower,
        text: TextTower,
        focus: Rule = "equal",
        lambda_softmax: float = 20.0,
        normalise_images: bool = True,
        normalise_texts: bool = True,
    ) -> None:
        """Keyword arguments.

        Args:
            image: reads images.
            text: reads texts.
            focus: what is kept, see `counterfoil.models.blocks.focal`. Published results are
                the ensemble of an "equal" and a "prob" model.
            lambda_softmax: inverse temperature of the attention.
            normalise_images: bring region vectors to length 1.
            normalise_texts: bring word vectors to length 1.
        """
        super().__init__()
        chosen("focus", focus, get_args(Rule))
        same_width(image, text)
        self.image, self.text = image, text
        self.heads = (
            Attention("t2i", "clipped_l2norm", lambda_softmax, focus=focus),
            Attention("i2t", "clipped_l2norm", lambda_softmax, focus=focus),
        )
        self.normalise = (normalise_images, normalise_texts)

    def encode_images(self, images: Items) -> Encoded:
        """N images as region vectors, with Gram matrices where the score reads them."""
        bag = self.image(images)
        return clean(unit(bag) if self.normalise[0] else bag)

    def encode_texts(self, texts: Items) -> Encoded:
        """N texts as word vectors."""
        bag: Encoded = self.text(texts)
        return unit(bag) if self.normalise[1] else bag

    def pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """(P,) scores of aligned pairs."""
        return self._score(aligned(self.heads, images, texts))

    def listed(self, images: Encoded, texts: Encoded, pairs: Pairs) -> Tensor:
        """(P,) scores of pairs of rows of two pools."""
        return self._score(listed(self.heads, images, texts, pairs))

    def grid(self, images: Encoded, texts: Encoded) -> Tensor:
        """(I, T) scores."""
        return tiled(clean(images), texts, self._tile)

    def forward(self, batch: Batch) -> Views:
        """Trains as it is used."""
        return one_view(self, batch)

    def attention_maps(self, images: Encoded, texts: Encoded) -> tuple[Tensor, Tensor]:
        """(P, L, R) attention of aligned pairs: of words over regions, and of regions over words.

        The first sums to 1 over the regions, the second over the words.
        """
        pairs = aligned(self.heads, images, texts)
        by_words, by_regions = (pairs.weights(head) for head in self.heads)
        return by_words, by_regions

    def _score(self, pairs: Aligned) -> Tensor:
        by_words, by_regions = (
            _mean(pairs.cosine(head), 1, pairs.asking(head).mask) for head in self.heads
        )
        return by_words + by_regions

    def _tile(self, images: Encoded, texts: Packed) -> Tensor:
        """(T, I) scores."""
        words, regions = attended(images, texts, self.heads)
        cosine = words.cosine(square(texts.words).unsqueeze(1))
        by_words = texts.gathered(cosine, lambda block: _mean(block, 1, None))
        return by_words + _mean(regions.cosine(squares(images)), -1, hidden_regions(images))


def _mean(cosine: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    return aggregate("Mean", cosine, dim, mask, 0.0)
