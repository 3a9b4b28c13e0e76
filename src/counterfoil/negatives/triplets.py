"""Triplets of a batch whose negative comes too near, and the items that they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.engine.items import everywhere
from counterfoil.records import Batch, Items


@final
@dataclass(frozen=True, slots=True)
class Triplets:
    """Anchors of one side whose hardest negative comes too near; places in the pools.

    Attributes:
        number: (K,) which anchor pairs.
        anchor: (K,) the image or text that stays.
        positive: (K,) its counterpart.
        negative: (K,) the hardest wrong one.
    """

    number: Tensor
    anchor: Tensor
    positive: Tensor
    negative: Tensor

    def __len__(self) -> int:
        return len(self.number)


def broken(batch: Batch, grid: Tensor, margin: float) -> tuple[Triplets, Triplets]:
    """Image anchors, then text anchors, whose hardest negative breaks the margin.

    Args:
        batch: the batch.
        grid: (I, T) scores of the anchor block.
        margin: in units of a score.
    """
    image, text = batch.anchors.image, batch.anchors.text
    wrong, true = grid.masked_fill(batch.positive, -torch.inf), grid[image, text]
    found = []
    for scores, anchor, positive in ((wrong, image, text), (wrong.T, text, image)):
        hardest, negative = scores.max(1)
        number = (margin + hardest[anchor] - true > 0).nonzero().squeeze(1)
        kept = anchor[number]
        found.append(Triplets(number, kept, positive[number], negative[kept]))
    return found[0], found[1]


def pools(batch: Batch) -> tuple[Items, Items]:
    """The images and texts of all processes.

    Raises:
        ValueError: they are not made of parts that can be edited.
    """
    if batch.images.values.dim() != 3 or batch.texts.values.is_floating_point():
        raise ValueError(
            f"images of shape {tuple(batch.images.values.shape)} and texts of shape "
            f"{tuple(batch.texts.values.shape)} cannot be edited; edited negatives need region "
            "features and words"
        )
    images = everywhere(batch.images, len(batch.image_rows))
    if images.mask.shape[1] < 2:
        raise ValueError(
            "images of one vector each have no regions to edit; use region features, or train "
            "without edited negatives"
        )
    return images, everywhere(batch.texts, len(batch.text_rows))
