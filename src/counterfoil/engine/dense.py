"""The whole score matrix, for when it is small."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.engine.sweep import Reducer
from counterfoil.engine.tiles import Tile


@final
class Dense(Reducer):
    """Keeps every score.

    Attributes:
        scores: (I, T) float32.
    """

    scores: Tensor

    def __init__(self, images: int, texts: int) -> None:
        """Room for `images` x `texts` scores, 4 bytes each."""
        self.images, self.texts = images, texts

    def start(self, images: int, texts: int, device: torch.device) -> None:
        """Allocate the matrix."""
        assert (images, texts) == (self.images, self.texts)
        self.scores = torch.zeros(images, texts, device=device)

    def update(self, tile: Tile) -> None:
        """Copy the tile to its place."""
        self.scores[tile.images.unsqueeze(1), tile.texts] = tile.scores

    def merge(self) -> None:
        """Put the processes' tiles together; each tile is zero on all processes but one."""
        self.scores = world.gather(self.scores).sum(0)
