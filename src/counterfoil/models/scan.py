"""SCAN: stacked cross attention (Lee et al., ECCV 2018)."""

from __future__ import annotations

from shutil import which
from typing import final, get_args

from torch import Tensor

from counterfoil.core.types import Batch, Embeddings, EncodedViews, ModalityBatch, Pairs
from counterfoil.models.base import RetrievalModel, encode_batch
from counterfoil.models.layers.cross_attention import (
    Aggregate,
    CrossAttention,
    Direction,
    PackedTexts,
    RawNorm,
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
    ensure_nonempty,
    squared_norms,
    unit_vectors,
)
from counterfoil.models.vsepp import check_same_width


@final
class SCAN(RetrievalModel):
    """Each word attends to the regions ("t2i") or each region to the words ("i2t").

    The score gathers the cosines of the queries with what they attend to. It is exact, but no
    attended vector is ever formed: see `counterfoil.models.layers.cross_attention`.

    Departs from the authors' code in: shapes are kept with one image, one word or one region (S2);
    images may have different numbers of regions; unknown norms are refused when built (S1).
    """

    def __init__(
        self,
        *,
        image: ImageTower,
        text: TextTower,
        direction: Direction = "t2i",
        raw_norm: RawNorm = "clipped_l2norm",
        aggregate: Aggregate = "LogSumExp",
        lambda_softmax: float = 9.0,
        lambda_lse: float = 6.0,
        normalise_images: bool = True,
        normalise_texts: bool = True,
        compiled: bool = False,
    ) -> None:
        """Keyword arguments.

        Args:
            image: reads images.
            text: reads texts.
            direction: "t2i": words attend to regions; "i2t": regions attend to words.
            raw_norm: what is done to the affinities before the softmax.
            aggregate: how the cosines become one score.
            lambda_softmax: inverse temperature of the attention; the paper has 9 and 4.
            lambda_lse: inverse temperature of LogSumExp; the paper has 6, and 5 or 20.
            normalise_images: bring region vectors to length 1.
            normalise_texts: bring word vectors to length 1.
            compiled: let `torch.compile` fuse the attention's arithmetic; needs a C++ compiler.
        """
        super().__init__()
        check_choice("direction", direction, get_args(Direction))
        check_choice("raw_norm", raw_norm, get_args(RawNorm))
        check_choice("aggregate", aggregate, get_args(Aggregate))
        check_same_width(image, text)
        if compiled and not any(map(which, ("c++", "g++", "clang++"))):
            raise ValueError("compiled=True needs a C++ compiler; install g++ or leave it False")
        self.image, self.text = image, text
        self.attention = CrossAttention(direction, raw_norm, lambda_softmax, compiled)
        self.aggregate: Aggregate = aggregate
        self.lambda_lse = lambda_lse
        self.normalise = (normalise_images, normalise_texts)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """N images as region vectors, with Gram matrices where the score reads them.

        Where regions attend, an image without any has one, which is zero.
        """
        bag = self.image(images)
        bag = unit_vectors(bag) if self.normalise[0] else bag
        return prepare_context(bag) if self._words_attend else ensure_nonempty(bag)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        """N texts as word vectors."""
        bag: Embeddings = self.text(texts)
        return unit_vectors(bag) if self.normalise[1] else bag

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """(P,) scores of aligned pairs."""
        return self._score(align_pairs((self.attention,), images, texts))

    def score_indices(self, images: Embeddings, texts: Embeddings, pairs: Pairs) -> Tensor:
        """(P,) scores of pairs of rows of two pools."""
        return self._score(align_listed((self.attention,), images, texts, pairs))

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """(I, T) scores."""
        score = self._by_words if self._words_attend else self._by_regions
        return score_tiles(prepare_context(images, gram=self._words_attend), texts, score)

    def forward(self, batch: Batch) -> EncodedViews:
        """Trains as it is used."""
        return encode_batch(self, batch)

    def attention_maps(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """(P, L, R) attention of aligned pairs; sums to 1 over what is attended to."""
        return align_pairs((self.attention,), images, texts).weights(self.attention)

    @property
    def _words_attend(self) -> bool:
        return self.attention.direction == "t2i"

    def _score(self, pairs: AlignedPairs) -> Tensor:
        return self._gather(pairs.cosine(self.attention), 1, pairs.queries(self.attention).mask)

    def _by_words(self, images: Embeddings, texts: PackedTexts) -> Tensor:
        """(T, I) scores of a tile."""
        (found,) = attend_all(images, texts, (self.attention,))
        cosine = found.cosine(squared_norms(texts.words).unsqueeze(1))
        return texts.reduce_words(cosine, lambda block: self._gather(block, 1))

    def _by_regions(self, images: Embeddings, texts: PackedTexts) -> Tensor:
        """(T, I) scores of a tile."""
        (found,) = attend_all(images, texts, (self.attention,))
        return self._gather(found.cosine(squared_lengths(images)), -1, region_mask(images))

    def _gather(self, cosine: Tensor, dim: int, mask: Tensor | None = None) -> Tensor:
        return aggregate(self.aggregate, cosine, dim, mask, self.lambda_lse)
