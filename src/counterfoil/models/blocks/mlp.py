"""A linear layer and a small network over every region, side by side or stacked."""

from __future__ import annotations

from typing import Literal, final, get_args

from torch import Tensor, nn

from counterfoil.models.blocks.augment import RegionDrop
from counterfoil.models.blocks.norm import normed_tokens
from counterfoil.models.blocks.pool import chosen
from counterfoil.models.blocks.tower import ImageTower, fits, hidden, positive, projection
from counterfoil.records import Encoded, Items

Init = Literal["default", "xavier"]


@final
class MLPRegions(ImageTower):
    """Linear(x) + Linear(ReLU(BatchNorm(Linear(x)))) of every region (Chen et al., CVPR 2021).

    GPO, ESA and HREM let both read the features; in DivE the network reads what the linear layer
    made of them.

    Several processes normalise by their own images each.

    Departs from the authors' code in: padding takes no part in the batch statistics, and a batch
    of a single region is normalised by the running ones.
    """

    def __init__(
        self,
        *,
        features: int,
        width: int = 1024,
        inner: int | None = None,
        init: Init = "default",
        norm_padding: bool = False,
        region_drop: float = 0.0,
        stacked: bool = False,
        dropout: float = 0.0,
    ) -> None:
        """Keyword arguments.

        Args:
            features: width of the features as they are read.
            width: of the joint space.
            inner: width inside the network; half the width where None.
            init: how its two layers start: "default" as PyTorch's do (GPO, ESA), or "xavier" as
                the linear layer beside it does (HREM).
            norm_padding: let padding, as zeros, take part in the batch statistics, as the
                authors' code does.
            region_drop: share of regions that are left out in training.
            stacked: the network reads the output of the linear layer.
            dropout: share of the sum's entries dropped in training.

        Raises:
            ValueError: a size below 1, or a word that is not known.
        """
        super().__init__()
        inner = max(1, width // 2) if inner is None else inner
        positive(features=features, width=width, inner=inner)
        chosen("init", init, get_args(Init))
        layer = projection if init == "xavier" else nn.Linear
        self.width, self.norm_padding = width, norm_padding
        self.augment = RegionDrop(share=region_drop)
        self.fc = projection(features, width)
        self.stacked, self.dropout = stacked, nn.Dropout(dropout)
        self.enter = layer(width if stacked else features, inner)
        self.leave = layer(inner, width)
        self.norm = nn.BatchNorm1d(inner)

    def forward(self, items: Items) -> Encoded:
        """Project every region in both ways."""
        fits(items, self.fc.in_features)
        items = self.augment(items)
        values = hidden(items.values.to(self.fc.weight.dtype), items.mask)
        linear = self.fc(values)
        deep = self._deep(linear if self.stacked else values, items.mask)
        return Encoded(self.dropout(linear + deep), items.mask)

    def _deep(self, values: Tensor, mask: Tensor) -> Tensor:
        """(N, R, width) what the network makes of values."""
        everything = not self.norm.training or self.norm_padding or bool(mask.all())
        normal = normed_tokens(self.norm, self.enter(values), None if everything else mask)
        deep: Tensor = self.leave(normal.relu())
        return deep
