"""FILIP: fine-grained late interaction of patches and words (Yao et al., ICLR 2022)."""

from __future__ import annotations

from typing import final

from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.layers.late_interaction import (
    MaxSimDirection,
    MaxSimModel,
    check_direction,
)
from counterfoil.models.layers.pooling import ImageTower, TextTower
from counterfoil.models.layers.towers import TwoTowerModel


@final
class FILIP(MaxSimModel, TwoTowerModel):
    """Mean of the best cosine of each word among the patches, and of each patch among the words.

    FILIP: Fine-grained Interactive Language-Image Pre-Training (arXiv:2111.07783), eq. 3-4.

    Departs from the paper in: both directions make one score, their mean, where the paper gives
    each a softmax of its own; all tokens count, also those of low similarity in the batch.
    """

    def __init__(
        self,
        *,
        image: ImageTower,
        text: TextTower,
        direction: MaxSimDirection = "both",
        mean: bool = True,
    ) -> None:
        """Initialise the module.

        Args:
            image: encoder of images.
            text: encoder of texts.
            direction: "t2i" compares words with their best patches, "i2t" patches with their best
                words; "both" is the mean of the two.
            mean: average over vectors; else they are added, as in ColBERT.

        Raises:
            ValueError: a direction that is not known, or towers of different widths.
        """
        super().__init__(image, text)
        check_direction(direction)
        self.direction, self.mean = direction, mean

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        """Encode N images as (N, R, D) unit vectors."""
        return self.scale_images(self.image(images))
