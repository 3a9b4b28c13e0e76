"""BFAN: bidirectional focal attention (Liu et al., ACM MM 2019)."""

from __future__ import annotations

from typing import final, get_args

from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.checkpoints import (
    Checkpoint,
    ConvertedModel,
    convert_towers,
    gru_tower_names,
)
from counterfoil.models.layers.attention_model import AttentionModel
from counterfoil.models.layers.cross_attention import CrossAttention, QueryPooling, Rule
from counterfoil.models.layers.fused import prepare_context
from counterfoil.models.layers.pooling import ImageTower, TextTower, check_choice


@final
class BFAN(AttentionModel):
    """Focal attention in both directions: words to regions and regions to words.

    Focal attention drops the part of the context that matters little to a query. The score is the
    mean cosine of words and their attended vectors plus that of regions, in [-2, 2]. One product
    serves both directions.

    Departs from the authors' code in: a uniform context stays uniform instead of giving NaN;
    shapes are kept with one image, one word or one region; images may have different numbers
    of regions; "prob" needs no context x context product.

    Attributes:
        score_scale: 2.0: a score is the sum of two mean cosines. The authors' margin of 0.2 is in
            these units.
    """

    score_scale = 2.0
    query_pooling = QueryPooling("Mean")

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
        """Initialise the module.

        Args:
            image: encoder of images.
            text: encoder of texts.
            focus: which context is kept, see `cross_attention.focal_weights`. Published results
                are the ensemble of an "equal" and a "prob" model.
            lambda_softmax: inverse temperature of the attention.
            normalise_images: scale region vectors to length 1.
            normalise_texts: scale word vectors to length 1.

        Raises:
            ValueError: a focus that is not known, or towers of different widths.
        """
        super().__init__(image, text, normalise=(normalise_images, normalise_texts))
        check_choice("focus", focus, get_args(Rule))
        self.heads: tuple[CrossAttention, ...] = (
            CrossAttention("t2i", "clipped_l2norm", lambda_softmax, focus=focus),
            CrossAttention("i2t", "clipped_l2norm", lambda_softmax, focus=focus),
        )

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as region vectors, with their Gram matrices."""
        return prepare_context(self.scale_images(self.image(images)))


NAMES = gru_tower_names("a BFAN")
OPTIONS = {"focal_type": "focus", "lambda_softmax": "lambda_softmax"}


def bfan_from_checkpoint(checkpoint: Checkpoint) -> ConvertedModel:
    """Convert a checkpoint of BFAN; without its options, "equal"."""
    return convert_towers(BFAN, checkpoint, NAMES.renamed(checkpoint.state), options=OPTIONS)
