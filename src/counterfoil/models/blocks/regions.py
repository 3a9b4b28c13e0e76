"""Ready-made features: detected regions, grid cells, or one vector per image."""

from __future__ import annotations

from typing import final

from counterfoil.models.blocks.augment import RegionDrop
from counterfoil.models.blocks.tower import ImageTower, fits, hidden, positive, projection
from counterfoil.records import Encoded, Items


@final
class Regions(ImageTower):
    """One linear layer per region (VSE++, SCAN); a global feature is a single region."""

    def __init__(self, *, features: int, width: int = 1024, region_drop: float = 0.0) -> None:
        """Keyword arguments.

        Args:
            features: width of the features as they are read.
            width: of the joint space.
            region_drop: share of regions that are left out in training.
        """
        super().__init__()
        positive(features=features, width=width)
        self.width = width
        self.augment = RegionDrop(share=region_drop)
        self.fc = projection(features, width)

    def forward(self, items: Items) -> Encoded:
        """Project every region."""
        fits(items, self.fc.in_features)
        items = self.augment(items)
        values = items.values.to(self.fc.weight.dtype)
        return Encoded(self.fc(hidden(values, items.mask)), items.mask)
