"""SCAN: stacked cross attention (Lee et al., ECCV 2018)."""

from __future__ import annotations

from shutil import which
from typing import final, get_args

from torch import Tensor

from counterfoil.core.types import Embeddings, ModalityBatch, Pairs
from counterfoil.models.checkpoints import (
    Checkpoint,
    ConvertedModel,
    convert_towers,
    gru_tower_names,
)
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
)
from counterfoil.models.layers.towers import TwoTowerModel


@final
class SCAN(TwoTowerModel):
    """Stacked cross attention: words attend to regions ("t2i") or regions to words ("i2t").

    The score aggregates the cosines of queries and attended vectors. It is exact, although no
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
            image: encoder of images.
            text: encoder of texts.
            direction: "t2i": words attend to regions; "i2t": regions attend to words.
            raw_norm: normalisation of the affinities before the softmax, see `CrossAttention`.
            aggregate: aggregation of the cosines to one score.
            lambda_softmax: inverse temperature of the attention; in the paper 9 (t2i) and 4 (i2t).
            lambda_lse: inverse temperature of LogSumExp; in the paper 6 (t2i), and 5 or 20 (i2t).
            normalise_images: scale region vectors to length 1.
            normalise_texts: scale word vectors to length 1.
            compiled: let `torch.compile` fuse the attention's arithmetic; needs a C++ compiler.

        Raises:
            ValueError: an option that is not known, towers of different widths, or no compiler.
        """
        super().__init__(image, text, normalise=(normalise_images, normalise_texts))
        check_choice("direction", direction, get_args(Direction))
        check_choice("raw_norm", raw_norm, get_args(RawNorm))
        check_choice("aggregate", aggregate, get_args(Aggregate))
        if compiled and not any(map(which, ("c++", "g++", "clang++"))):
            raise ValueError("compiled=True needs a C++ compiler; install g++ or leave it False")
        self.attention = CrossAttention(direction, raw_norm, lambda_softmax, compiled)
        self.aggregate: Aggregate = aggregate
        self.lambda_lse = lambda_lse

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as region vectors, with Gram matrices where words attend to them.

        Where regions attend (i2t), an image without regions gets a single zero vector, so that the
        aggregation over regions is never empty.
        """
        regions = self.scale_images(self.image(images))
        # the Gram matrices are computed once here, not for every tile of texts
        return prepare_context(regions) if self._words_attend else ensure_nonempty(regions)

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (P,) scores of image p with text p."""
        return self._score(align_pairs((self.attention,), images, texts))

    def score_indices(self, images: Embeddings, texts: Embeddings, pairs: Pairs) -> Tensor:
        """Return the (P,) scores of listed pairs of rows."""
        return self._score(align_listed((self.attention,), images, texts, pairs))

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (I, T) scores, tile by tile, with one matrix product per tile."""
        score_tile = self._tile_by_words if self._words_attend else self._tile_by_regions
        return score_tiles(prepare_context(images, gram=self._words_attend), texts, score_tile)

    def attention_maps(self, images: Embeddings, texts: Embeddings) -> Tensor:
        """Return the (P, L, R) attention of image p and text p; sums to 1 over the context."""
        return align_pairs((self.attention,), images, texts).weights(self.attention)

    @property
    def _words_attend(self) -> bool:
        return self.attention.direction == "t2i"

    def _score(self, pairs: AlignedPairs) -> Tensor:
        return self._aggregate(pairs.cosine(self.attention), 1, pairs.queries(self.attention).mask)

    def _tile_by_words(self, images: Embeddings, texts: PackedTexts) -> Tensor:
        """Return the (T, I) scores of a tile in which words attend."""
        (attended,) = attend_all(images, texts, (self.attention,))
        cosine = attended.cosine(squared_norms(texts.words).unsqueeze(1))  # (W, I)
        return texts.reduce_words(cosine, lambda block: self._aggregate(block, 1))

    def _tile_by_regions(self, images: Embeddings, texts: PackedTexts) -> Tensor:
        """Return the (T, I) scores of a tile in which regions attend."""
        (attended,) = attend_all(images, texts, (self.attention,))
        cosine = attended.cosine(squared_lengths(images))  # (T, I, R)
        return self._aggregate(cosine, -1, region_mask(images))

    def _aggregate(self, cosine: Tensor, dim: int, mask: Tensor | None = None) -> Tensor:
        return aggregate(self.aggregate, cosine, dim, mask, self.lambda_lse)


NAMES = gru_tower_names("a SCAN")
OPTIONS = {
    "cross_attn": "direction",
    "raw_feature_norm": "raw_norm",
    "agg_func": "aggregate",
    "lambda_softmax": "lambda_softmax",
    "lambda_lse": "lambda_lse",
}


def scan_from_checkpoint(checkpoint: Checkpoint) -> ConvertedModel:
    """Convert a checkpoint of SCAN; without its options, t2i LogSumExp as published.

    Raises:
        ValueError: it is not a SCAN checkpoint.
    """
    options = dict(checkpoint.options)
    if options.get("cross_attn") == "i2t":
        options = {"lambda_softmax": 4.0, "lambda_lse": 5.0, **options}
    state = NAMES.renamed(checkpoint.state)
    return convert_towers(SCAN, Checkpoint(state, options), state, options=OPTIONS)
