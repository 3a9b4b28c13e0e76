"""Who computes which rows of a batch, and how they come together again."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.records import Encoded


def mine(count: int, device: torch.device) -> Tensor | slice:
    """This process's share of `count` rows; the last row stands in where they do not divide."""
    mine = world.share(count)
    if mine.stop <= count:
        return mine
    return torch.arange(mine.start, mine.stop, device=device).clamp(max=count - 1)


def shared(count: int, score: Callable[[Tensor | slice], Tensor], device: torch.device) -> Tensor:
    """`score` of all rows, of which each process computes a share."""
    return world.gather_rows(score(mine(count, device)))[:count]


def gathered(share: Encoded, count: int) -> Encoded:
    """All processes' items, without those that only stood in."""
    share = share.padded(world.largest(share.tokens.shape[1]))
    gram = None if share.gram is None else world.gather_rows(share.gram)[:count]
    tokens, mask = world.gather_rows(share.tokens), world.gather_rows(share.mask)
    return Encoded(tokens[:count], mask[:count], gram)
