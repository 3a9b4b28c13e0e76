"""Slots that compete for the parts of an item (Kim et al., CVPR 2023, section 3.2)."""

from __future__ import annotations

import math
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from counterfoil.models.blocks.pool import chosen
from counterfoil.models.blocks.tower import hidden, positive
from counterfoil.records import Encoded

Positions = Literal["none", "sine"]


@final
class Slots(nn.Module):
    """A few learnt vectors that gather what they find in an item's parts, in several rounds.

    In every round, all of which share their weights, a softmax over the slots divides each part
    among them; each slot adds the mean of the parts by its shares, then a small network.

    Departs from the authors' code in: padding gets no share (theirs gives 1 / K of it to each of K
    slots), and places are counted in the item's own length (theirs in that of the longest of the
    batch); `released_padding` does both as they do.
    """

    def __init__(
        self,
        *,
        width: int,
        part_width: int,
        slots: int = 4,
        heads: int = 4,
        head_width: int = 512,
        rounds: int = 4,
        inner: int = 4,
        dropout: float = 0.1,
        positions: Positions = "none",
        released_padding: bool = False,
    ) -> None:
        """Keyword arguments.

        Args:
            width: of a slot.
            part_width: of the parts.
            slots: how many.
            heads: of the attention.
            head_width: width of each of them.
            rounds: how often the slots look at the parts.
            inner: width inside the small network, as a multiple of `width`.
            dropout: share of entries dropped in training, behind the attention and inside the
                small network.
            positions: "sine" adds codes of their places to the keys of the parts.
            released_padding: treat padding as the authors' code does, see above.

        Raises:
            ValueError: a size below 1, or a word that is not known.
        """
        super().__init__()
        positive(slots=slots, heads=heads, head_width=head_width, rounds=rounds, inner=inner)
        chosen("positions", positions, get_args(Positions))
        self.heads, self.rounds, self.positions = heads, rounds, positions
        self.released_padding = released_padding
        self.scale = head_width**-0.5
        self.latents = nn.Parameter(torch.randn(slots, width))
        self.slot_norm, self.part_norm = nn.LayerNorm(width), nn.LayerNorm(part_width)
        self.query = nn.Linear(width, heads * head_width, bias=False)
        self.key = nn.Linear(part_width, heads * head_width, bias=False)
        self.value = nn.Linear(part_width, heads * head_width, bias=False)
        self.out = nn.Linear(heads * head_width, width)
        self.inner_norm = nn.LayerNorm(width)
        self.enter, self.leave = nn.Linear(width, inner * width), nn.Linear(inner * width, width)
        self.last_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, parts: Encoded) -> Tensor:
        """(N, K, width) slots of N items; keys and values are made once for all rounds."""
        tokens = parts.tokens if self.released_padding else hidden(parts.tokens, parts.mask)
        normal = self.part_norm(tokens)
        coded = normal + self._codes(parts.mask, normal) if self.positions == "sine" else normal
        key, value = self._split(self.key(coded)), self._split(self.value(normal))
        slots = self.latents.expand(len(parts), -1, -1)
        for _ in range(self.rounds):
            found = self._found(self.slot_norm(slots), key, value, parts.mask)
            slots = slots + self.dropout(self.out(found))
            entered = gelu(self.enter(self.inner_norm(slots)))
            slots = slots + self.leave(self.dropout(entered))
        last: Tensor = self.last_norm(slots)
        return last

    def _found(self, slots: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """(N, K, heads * head_width) what each slot gathers."""
        likeness = self._split(self.query(slots)) @ key.mT * self.scale
        padding = ~mask[:, None, None]
        if self.released_padding:
            share = likeness.masked_fill(padding, torch.finfo(likeness.dtype).min).softmax(2)
        else:
            share = likeness.softmax(2).masked_fill(padding, 0)
        share = share / (share.sum(3, keepdim=True) + 1e-7)
        found: Tensor = (share @ value).transpose(1, 2).flatten(2)
        return found

    def _split(self, vectors: Tensor) -> Tensor:
        """(N, L, heads * head_width) as (N, heads, L, head_width)."""
        return vectors.view(*vectors.shape[:2], self.heads, -1).transpose(1, 2)

    def _codes(self, mask: Tensor, like: Tensor) -> Tensor:
        length = mask.sum(1, keepdim=True)
        if self.released_padding:
            length = torch.full_like(length, mask.shape[1])
        return codes(length, mask.shape[1], like)


def codes(length: Tensor, places: int, like: Tensor) -> Tensor:
    """(N, places, F) sines and cosines of each place as a share of the circle.

    Args:
        length: (N, 1) places that make a whole circle.
        places: how many to code.
        like: (N, places, F) gives width, type and device.
    """
    width = like.shape[-1]
    place = torch.arange(1, places + 1, device=like.device, dtype=torch.float)
    angle = place / (length + 1e-6) * (2 * math.pi)
    entry = torch.arange(width, device=like.device)
    slower = 10000.0 ** (2 * (entry // 2) / width)
    turn = angle.unsqueeze(2) / slower
    return torch.where(entry % 2 == 0, turn.sin(), turn.cos()).to(like.dtype)
