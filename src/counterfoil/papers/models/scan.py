"""SCAN: stacked cross attention (Lee et al., ECCV 2018)."""

from __future__ import annotations

from typing import Literal, final, get_args

from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.checkpoints import (
    Checkpoint,
    ConvertedModel,
    convert_towers,
    gru_tower_names,
)
from counterfoil.models.layers.attention_model import AttentionModel
from counterfoil.models.layers.cross_attention import (
    CrossAttention,
    Direction,
    QueryPooling,
    RawNorm,
)
from counterfoil.models.layers.fused import prepare_context
from counterfoil.models.layers.pooling import ImageTower, TextTower, check_choice

Aggregate = Literal["LogSumExp", "Mean", "Max", "Sum"]


@final
class SCAN(AttentionModel):
    """Stacked cross attention: words attend to regions ("t2i") or regions to words ("i2t").

    The score aggregates the cosines of queries and attended vectors.

    Departs from the authors' code in: shapes are kept with one image, one word or one region;
    images may have different numbers of regions; unknown norms are refused when built.
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
    ) -> None:
        """Initialise the module.

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

        Raises:
            ValueError: an option that is not known, or towers of different widths.
        """
        super().__init__(image, text, normalise=(normalise_images, normalise_texts))
        check_choice("direction", direction, get_args(Direction))
        check_choice("raw_norm", raw_norm, get_args(RawNorm))
        check_choice("aggregate", aggregate, get_args(Aggregate))
        self.attention = CrossAttention(direction, raw_norm, lambda_softmax)
        self.heads = (self.attention,)
        self.aggregate: Aggregate = aggregate
        self.lambda_lse = lambda_lse
        self.query_pooling = QueryPooling(aggregate, lambda_lse)

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as region vectors, with Gram matrices where words attend to them."""
        regions = self.scale_images(self.image(images))
        # the Gram matrices are computed once here, not for every tile of texts
        return prepare_context(regions) if self.attention.direction == "t2i" else regions


NAMES = gru_tower_names("a SCAN")
OPTIONS = {
    "cross_attn": "direction",
    "raw_feature_norm": "raw_norm",
    "agg_func": "aggregate",
    "lambda_softmax": "lambda_softmax",
    "lambda_lse": "lambda_lse",
}


def scan_from_checkpoint(checkpoint: Checkpoint) -> ConvertedModel:
    """Convert a checkpoint of SCAN; without its options, t2i LogSumExp as published."""
    options = {name: value for name, value in checkpoint.options.items() if value is not None}
    if options.get("cross_attn") == "i2t":
        options = {"lambda_softmax": 4.0, "lambda_lse": 5.0, **options}
    state = NAMES.renamed(checkpoint.state)
    return convert_towers(SCAN, Checkpoint(state, options), state, options=OPTIONS)
