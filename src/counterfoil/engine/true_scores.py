"""The score of every true pair, as it stands in the matrix."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.engine.sweep import Reducer
from counterfoil.engine.tiles import Tile


@final
class TrueScores(Reducer):
    """Keeps the score of each text with the image it describes.

    Attributes:
        scores: (T,) float32, -inf for a text of no image; filled by `merge`.
    """

    scores: Tensor

    def __init__(self, owner: Tensor) -> None:
        """A score for every text.

        Args:
            owner: (T,) image row that each text describes, -1 for none.
        """
        self.owner = owner

    def start(self, images: int, texts: int, device: torch.device) -> None:
        """Make room for the scores."""
        assert len(self.owner) == texts
        self.owner = self.owner.to(device)
        self.scores = torch.full((texts,), -torch.inf, device=device)

    def update(self, tile: Tile) -> None:
        """Pick the true pairs of the tile."""
        row, column = tile.true(self.owner)
        self.scores[tile.texts[column]] = tile.scores[row, column]

    def merge(self) -> None:
        """Take each score from whoever saw it."""
        self.scores = world.gather(self.scores).amax(0)
