"""A source of negatives: for each anchor the texts of its neighbours in the batch."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from counterfoil.core.types import Batch, EncodedViews, Needs, Pairs, Role
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.sources import MinedExtras, NegativeSource


@final
class NextTexts(NegativeSource):
    """The texts of the anchors that follow in the batch, as hard texts.

    Args:
        count: N, texts of each anchor.
    """

    gives = Needs(roles=frozenset({Role.HARD_TEXT}))

    def __init__(self, *, count: int = 2) -> None:
        self.count = count

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        scores: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        anchors = batch.anchors
        shifts = torch.arange(1, self.count + 1, device=anchors.text.device)
        places = torch.arange(len(anchors.text), device=anchors.text.device)[:, None] + shifts
        texts = anchors.text[places % len(anchors.text)]
        images = anchors.image[:, None].expand_as(texts)
        # a caption of the anchor's own image is no negative: place -1 is an empty pair
        same = batch.image_rows.to(images.device)[anchors.image[places % len(anchors.text)]]
        own = batch.image_rows.to(images.device)[images] == same
        return MinedExtras(pairs={Role.HARD_TEXT: Pairs(images, texts.masked_fill(own, -1))})
