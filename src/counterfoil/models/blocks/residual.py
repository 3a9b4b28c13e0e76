"""One vector from a bag whose vectors have read each other (HREM: Fu et al., CVPR 2023)."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from counterfoil.models.blocks.inner import full
from counterfoil.models.blocks.pool import pool
from counterfoil.models.blocks.tower import hidden, split_among
from counterfoil.records import Encoded

HIGHEST = 2


@final
class ResidualPool(nn.Module):
    """The two highest values of every feature, mixed with the mean of a transformer layer.

    Departs from the authors' code in: an item of one vector does not change how its successors are
    pooled; an empty item gives zeros.
    """

    def __init__(
        self,
        *,
        width: int,
        heads: int = 16,
        dropout: float = 0.1,
        residual: float = 0.8,
        shrinking: bool = False,
    ) -> None:
        """Keyword arguments.

        Args:
            width: of the vectors.
            heads: of the attention.
            dropout: share of entries dropped in training.
            residual: weight of the highest values; the mean has the rest.
            shrinking: pool as the authors' code does, see `top_mean`.

        Raises:
            ValueError: a width that the heads do not divide, or a weight beyond 0 to 1.
        """
        super().__init__()
        if not 0 <= residual <= 1:
            raise ValueError(f"residual={residual} is no share; give a number from 0 to 1")
        self.residual, self.shrinking = residual, shrinking
        self.layer = attention_layer(width, heads, dropout)

    def forward(self, bag: Encoded) -> Tensor:
        """(N, D) one vector per item, mixed in at least single precision."""
        bag = Encoded(hidden(bag.tokens, bag.mask), bag.mask)
        read = full(self.layer(bag.tokens, src_key_padding_mask=_unseen(bag)))
        mean = pool("mean", Encoded(read, bag.mask))
        top = top_mean(Encoded(full(bag.tokens), bag.mask), HIGHEST, shrinking=self.shrinking)
        return self.residual * top + (1 - self.residual) * mean


def attention_layer(width: int, heads: int, dropout: float) -> nn.TransformerEncoderLayer:
    """Attention and a network as wide as what it reads, each normalised after its residual.

    Raises:
        ValueError: a width that the heads do not divide.
    """
    split_among(heads, width)
    return nn.TransformerEncoderLayer(width, heads, width, dropout, batch_first=True)


def top_mean(bag: Encoded, highest: int, *, shrinking: bool = False) -> Tensor:
    """(N, D) mean of the `highest` values of every feature, of all where there are fewer.

    Args:
        bag: (N, L, D).
        highest: how many values.
        shrinking: an item of fewer vectors sets the number for all that follow in the batch, as in
            the authors' code, so that a vector depends on its neighbours.
    """
    count = bag.mask.sum(1).clamp(max=highest)
    count = count.cummin(0).values if shrinking else count
    left = bag.tokens.masked_fill(~bag.mask.unsqueeze(-1), -torch.inf)
    total = torch.zeros_like(left[:, 0])
    for rank in range(min(highest, left.shape[1])):
        value, place = left.max(1)
        total = total + value.masked_fill((rank >= count).unsqueeze(-1), 0)
        if rank + 1 < highest:
            left = left.scatter(1, place.unsqueeze(1), -torch.inf)
    return total / count.clamp(min=1).unsqueeze(-1)


def _unseen(bag: Encoded) -> Tensor | None:
    """Where attention must not look; an empty item looks at its padding, which is zero."""
    unseen = ~bag.mask & bag.mask.any(1, keepdim=True)
    return unseen if bool(unseen.any()) else None
