"""A transformer over two modalities, packed: no token of padding is ever computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from counterfoil.models.blocks.tower import positive, split_among

EPSILON = 1e-12


@final
@dataclass(frozen=True, slots=True)
class Packing:
    """Where S real tokens of P sequences stand, sequence after sequence.

    Attributes:
        sequence: (S,) which sequence a token belongs to.
        column: (S,) where it stood among the real and hidden ones.
        first: (P',) rows of the first token of every sequence that has one.
        at: (S,) its place in (P, longest), flat.
        shape: P and the longest sequence.
        columns: C, real and hidden.
        keys: (P, 1, 1, longest) True at real tokens; None where there is no padding.
    """

    sequence: Tensor
    column: Tensor
    first: Tensor
    at: Tensor
    shape: tuple[int, int]
    columns: int
    keys: Tensor | None

    @staticmethod
    def of(mask: Tensor) -> Packing:
        """The tokens that a mask (P, C) calls real."""
        sequence, column = mask.nonzero(as_tuple=True)
        lengths = mask.sum(1)
        longest = int(lengths.max()) if mask.numel() else 0
        place = (mask.cumsum(1) - 1)[mask]
        keys = None
        if len(sequence) < len(mask) * longest:
            keys = torch.arange(longest, device=mask.device) < lengths.unsqueeze(1)
            keys = keys[:, None, None]
        first = (place == 0).nonzero().squeeze(1)
        at = sequence * longest + place
        return Packing(sequence, column, first, at, (len(mask), longest), mask.shape[1], keys)

    def only(self, kept: Tensor) -> Packing:
        """Some of the tokens: (S,) bool, True where one is kept."""
        mask = torch.zeros(self.shape, dtype=torch.bool, device=kept.device)
        mask.view(-1)[self.at[kept]] = True
        return replace(Packing.of(mask), column=self.column[kept], columns=self.columns)

    def rows(self, sequence: Tensor, column: Tensor) -> Tensor:
        """(M,) rows of the tokens that stood there; -1 where one is not packed."""
        table = self.sequence.new_full((self.shape[0], self.columns), -1)
        table[self.sequence, self.column] = torch.arange(len(self.sequence), device=table.device)
        return table[sequence, column]

    def padded(self, tokens: Tensor) -> Tensor:
        """(P, longest, D) of (S, D), zero at padding."""
        if self.keys is None:
            return tokens.view(*self.shape, tokens.shape[1])
        room = tokens.new_zeros(self.shape[0] * self.shape[1], tokens.shape[1])
        return room.index_copy(0, self.at, tokens).view(*self.shape, tokens.shape[1])

    def packed(self, padded: Tensor) -> Tensor:
        """(S, D) of (P, longest, D)."""
        flat = padded.flatten(0, 1)
        return flat if self.keys is None else flat[self.at]


@final
class JointLayer(nn.Module):
    """Attention within each sequence, then a perceptron, each added and normalised (post-LN)."""

    def __init__(self, *, width: int, heads: int, inner: int, dropout: float) -> None:
        """Keyword arguments.

        Args:
            width: of the tokens.
            heads: of the attention.
            inner: width of the perceptron.
            dropout: share dropped of attention weights and of what is added.
        """
        super().__init__()
        self.heads, self.share = heads, dropout
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.wide, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)
        self.last_norm = nn.LayerNorm(width, eps=EPSILON)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, packing: Packing, kept: Tensor | None = None) -> Tensor:
        """(S, D) to the same, or to those that are kept.

        Args:
            tokens: of all sequences.
            packing: where they stand.
            kept: (S,) bool, which tokens are wanted; None for all.
        """
        width = tokens.shape[1]
        asking, asked = packing, tokens
        if kept is None:
            query, key, value = self.enter(tokens).chunk(3, 1)
        else:
            asking, asked = packing.only(kept), tokens[kept]
            weight, bias = self.enter.weight, self.enter.bias
            query = linear(asked, weight[:width], bias[:width])
            key, value = linear(tokens, weight[width:], bias[width:]).chunk(2, 1)
        found = scaled_dot_product_attention(
            self._heads(query, asking),
            self._heads(key, packing),
            self._heads(value, packing),
            attn_mask=packing.keys,
            dropout_p=self.share if self.training else 0.0,
        )
        found = asking.packed(found.transpose(1, 2).flatten(2))
        asked = self.norm(asked + self.dropout(self.leave(found)))
        told = self.narrow(gelu(self.wide(asked)))
        out: Tensor = self.last_norm(asked + self.dropout(told))
        return out

    def _heads(self, tokens: Tensor, packing: Packing) -> Tensor:
        each = tokens.shape[1] // self.heads
        return packing.padded(tokens).view(*packing.shape, self.heads, each).transpose(1, 2)


@final
class JointEncoder(nn.Module):
    """BERT's encoder over packed sequences; what the last layer need not say is not computed."""

    def __init__(self, *, layers: int, width: int, heads: int, inner: int, dropout: float) -> None:
        """Keyword arguments.

        Args:
            layers: how many.
            width: see `JointLayer`.
            heads: see `JointLayer`.
            inner: see `JointLayer`.
            dropout: see `JointLayer`.

        Raises:
            ValueError: a size below 1, or heads that do not divide the width.
        """
        super().__init__()
        positive(layers=layers, inner=inner)
        split_among(heads, width)
        self.layers = nn.ModuleList(
            JointLayer(width=width, heads=heads, inner=inner, dropout=dropout)
            for _ in range(layers)
        )

    def forward(self, tokens: Tensor, packing: Packing, kept: Tensor | None = None) -> Tensor:
        """(S, D) last hidden states, or (K, D) of the tokens that are kept; see `JointLayer`."""
        for layer in self.layers[:-1]:
            tokens = layer(tokens, packing)
        last: Tensor = self.layers[-1](tokens, packing, kept)
        return last
