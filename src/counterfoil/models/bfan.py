"""BFAN: bidirectional focal attention (Liu et al., ACM MM 2019)."""

from __future__ import annotations

from typing import final, get_args

from torch import Tensor

from counterfoil.core.types import Batch, Embeddings, EncodedViews, ModalityBatch, Pairs
from counterfoil.models.base import RetrievalModel, encode_batch
from counterfoil.models.layers.cross_attention import (
    CrossAttention,
    PackedTexts,
    Rule,
    aggregate,
    score_tiles,
)
from counterfoil.models.layers.fused import (
    AlignedPairs,
    align_listed,
    align_pairs,
    attend_all,
    prepare_context,
    region_mask,
    squared_lengths,
)
from counterfoil.models.layers.pooling import (
    ImageTower,
    TextTower,
    check_choice,
    squared_norms,
    unit_vectors,
)
from counterfoil.models.vsepp import check_same_width


@final
class BFAN(RetrievalModel):
    """Words attend to regions and regions to words, and both drop what matters little to them.

    The score is the mean cosine of the words with what they attend to, plus that of the regions:
    a sum of two cosines in [-2, 2]. It is exact, but no attended vector is ever formed, and one
    product serves both directions: see `counterfoil.models.layers.cross_attention`.

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
            focus: what is kept, see `counterfoil.models.layers.cross_attention`. Published results
                are the ensemble of an "equal" and a "prob" model.
            lambda_softmax: inverse temperature of the attention.
            normalise_images: bring region vectors to length 1.
            normalise_texts: bring word vectors to length 1.
        """
        super().__init__()
        check_choice("focus", focus, get_args(Rule))
        check_same_width(image, text)
        self.image, self.text = image, text
        self.heads = (
            CrossAttention("t2i", "clipped_l2norm", lambda_softmax, focus=focus),
            CrossAttention("i2t", "clipped_l2norm", lambda_softmax, focus=focus),
        )
        self.normalise = (normalise_images, normalise_texts)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """N images as region vectors, with Gram matrices where the score reads them."""
        bag = self.image(images)
        return prepare_context(unit_vectors(bag) if self.normalise[0] else bag)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """N texts as word vectors."""
        bag: Embeddings = self.text(texts)
        return unit_vectors(bag) if self.normalise[1] else bag

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """(P,) scores of aligned pairs."""
        return self._score(align_pairs(self.heads, images, texts))

    def score_indices(self, images: Embeddings, texts: Embeddings, pairs: Pairs) -> Tensor:
        """(P,) scores of pairs of rows of two pools."""
        return self._score(align_listed(self.heads, images, texts, pairs))

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """(I, T) scores."""
        return score_tiles(prepare_context(images), texts, self._tile)

    def forward(self, batch: Batch) -> EncodedViews:
        """Trains as it is used."""
        return encode_batch(self, batch)

    def attention_maps(self, images: Embeddings, texts: Embeddings) -> tuple[Tensor, Tensor]:
        """(P, L, R) attention of aligned pairs: of words over regions, and of regions over words.

        The first sums to 1 over the regions, the second over the words.
        """
        pairs = align_pairs(self.heads, images, texts)
        by_words, by_regions = (pairs.weights(head) for head in self.heads)
        return by_words, by_regions

    def _score(self, pairs: AlignedPairs) -> Tensor:
        by_words, by_regions = (
            _mean(pairs.cosine(head), 1, pairs.queries(head).mask) for head in self.heads
        )
        return by_words + by_regions

    def _tile(self, images: Embeddings, texts: PackedTexts) -> Tensor:
        """(T, I) scores."""
        words, regions = attend_all(images, texts, self.heads)
        cosine = words.cosine(squared_norms(texts.words).unsqueeze(1))
        by_words = texts.reduce_words(cosine, lambda block: _mean(block, 1, None))
        return by_words + _mean(regions.cosine(squared_lengths(images)), -1, region_mask(images))


def _mean(cosine: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    return aggregate("Mean", cosine, dim, mask, 0.0)
