"""Pairs of images and texts that are never negatives, held sparsely."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor

from counterfoil.corpus.relation import Relation
from counterfoil.engine.tiles import Tile
from counterfoil.negatives.duplicates import Near


@final
class Exclusions:
    """Pairs by image: image row i goes with `texts` from `starts[i]` to `starts[i + 1]`.

    Args:
        images: (n,) image rows, in any order; a pair may stand twice.
        texts: (n,) text rows.
        shape: how many images and texts there are.
    """

    def __init__(self, images: Tensor, texts: Tensor, shape: tuple[int, int]) -> None:
        keys = torch.from_numpy(np.unique((images * shape[1] + texts).numpy()))
        owner = torch.div(keys, max(1, shape[1]), rounding_mode="floor")
        self.texts, self.shape = keys - owner * shape[1], shape
        counts = torch.bincount(owner, minlength=shape[0])
        self.starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        self._place = torch.full((shape[1],), -1)  # of each text in the tile that is looked at

    def __len__(self) -> int:
        return len(self.texts)

    def to(self, device: torch.device) -> None:
        """Move where the tiles are."""
        self.texts, self.starts = self.texts.to(device), self.starts.to(device)
        self._place = self._place.to(device)

    def places(self, tile: Tile) -> tuple[Tensor, Tensor]:
        """Rows (p,) and columns (p,) of the tile that are excluded."""
        first = self.starts[tile.images]
        counts = self.starts[tile.images + 1] - first
        row = torch.arange(len(first), device=first.device).repeat_interleave(counts)
        place = torch.arange(len(row), device=first.device)
        entry = place + (first - (counts.cumsum(0) - counts)).index_select(0, row)
        self._place[tile.texts] = torch.arange(len(tile.texts), device=first.device)
        column = self._place[self.texts[entry]]
        self._place[tile.texts] = -1
        inside = column >= 0
        return row[inside], column[inside]


def of_captions(near: Near, relation: Relation) -> tuple[Tensor, Tensor]:
    """(n,) images and (n,) texts: a text near one of an image's own captions goes with it."""
    owner = relation.owner
    images = torch.cat([owner[near.left], owner[near.right]])
    texts = torch.cat([near.right, near.left])
    wrong = (images >= 0) & (images != owner[texts])
    return images[wrong], texts[wrong]


def of_pictures(near: Near, relation: Relation) -> tuple[Tensor, Tensor]:
    """(n,) images and (n,) texts: all captions of a near picture go with an image."""
    images = torch.cat([near.left, near.right])
    texts, counts = relation.captions(torch.cat([near.right, near.left]))
    return images.repeat_interleave(counts), texts
