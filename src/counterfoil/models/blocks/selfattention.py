"""What the regions of an image, or other fragments, learn from each other."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn

from counterfoil.models.blocks.tower import split_among
from counterfoil.records import Encoded

Sight = Literal["regions", "padding", "batch"]


@final
class SelfAttention(nn.Module):
    """x + attention(norm(x)); a transformer's layer adds a perceptron to it in the same way.

    Departs from CHAN's code in: padding is not attended to, and a transformer's layer attends
    within an image, not across the batch; `sees` brings both back.
    """

    def __init__(
        self, *, width: int, heads: int = 8, perceptron: bool = False, sees: Sight = "regions"
    ) -> None:
        """Keyword arguments.

        Args:
            width: of the vectors.
            heads: of the attention.
            perceptron: add one of four times the width (QuickGELU).
            sees: "regions": the real vectors of the same item; "padding": its padding too;
                "batch": what stands at the same place in all items.

        Raises:
            ValueError: the heads do not divide the width.
        """
        super().__init__()
        split_among(heads, width)
        self.sees: Sight = sees
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.perceptron = Perceptron(width=width) if perceptron else None

    def forward(self, bag: Encoded) -> Encoded:
        """(N, L, D) to the same; what the mask hides is arbitrary."""
        tokens = bag.tokens + self._attended(self.norm(bag.tokens), bag.mask)
        if self.perceptron is not None:
            tokens = self.perceptron(tokens)
        return Encoded(tokens, bag.mask)

    def _attended(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.sees == "batch":
            x = x.transpose(0, 1)
        hidden = None
        if self.sees == "regions" and not bool(mask.all()):
            hidden = ~mask & mask.any(1, keepdim=True)  # an item without any gives no NaN
        found: Tensor = self.attention(x, x, x, key_padding_mask=hidden, need_weights=False)[0]
        return found.transpose(0, 1) if self.sees == "batch" else found


@final
class Perceptron(nn.Module):
    """x + narrow(QuickGELU(wide(norm(x))))."""

    def __init__(self, *, width: int) -> None:
        """Keyword arguments.

        Args:
            width: of the vectors; four times as many are hidden.
        """
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to the same."""
        wide = self.wide(self.norm(x))
        out: Tensor = x + self.narrow(wide * torch.sigmoid(1.702 * wide))
        return out
