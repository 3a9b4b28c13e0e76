"""From a bag of vectors to one vector."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterfoil.models.blocks.tower import every, hidden
from counterfoil.records import Encoded

Pool = Literal["mean", "max", "mean+max", "first", "last"]
POOLS = ("mean", "max", "mean+max", "first", "last")


def pool(kind: Pool, bag: Encoded) -> Tensor:
    """(N, D) one vector per item; zero for an item without any.

    Args:
        kind: "mean+max" is the sum of both; "last" is the last real vector, the final state of a
            recurrent network; "first" is a transformer's class token.
        bag: (N, L, D).
    """
    tokens = hidden(bag.tokens, bag.mask)
    if kind == "first":
        return tokens[:, 0]
    count = bag.mask.sum(1)
    if kind == "last":
        return tokens[torch.arange(len(bag), device=tokens.device), (count - 1).clamp(min=0)]
    mean = tokens.sum(1) / count.clamp(min=1).unsqueeze(1)
    if kind == "mean":
        return mean
    top = tokens.masked_fill(~bag.mask.unsqueeze(-1), -torch.inf).amax(1)
    top = top.masked_fill((count == 0).unsqueeze(1), 0)
    return top if kind == "max" else mean + top


def single(vectors: Tensor) -> Encoded:
    """(N, D) as bags of one vector."""
    tokens = vectors.unsqueeze(1)
    return Encoded(tokens, every(tokens))


def unit(bag: Encoded) -> Encoded:
    """Every vector at length 1; a zero vector stays zero."""
    return Encoded(normalize(bag.tokens, dim=-1), bag.mask)


def chosen(name: str, given: str, allowed: tuple[str, ...]) -> None:
    """Check an argument that takes one of a few words.

    Raises:
        ValueError: it is none of them.
    """
    if given not in allowed:
        raise ValueError(f"{name}={given!r} is not known; use one of {', '.join(allowed)}")
