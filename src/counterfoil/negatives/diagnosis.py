"""What mined lists are like: how hard, how crowded, and how often they may be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.core.console import progress
from counterfoil.engine.modes import evaluating
from counterfoil.engine.tiles import Member, device_of
from counterfoil.negatives.suspects import Looked, Suspects
from counterfoil.records import Pairs

_NUMBERS = 2**24  # that the encodings of the pairs scored together may hold
BOUNDS = (1, 5, 20, 100)  # last ranks of the parts of a list


@final
@dataclass(frozen=True, slots=True)
class Ranks:
    """What stands at some ranks of the lists.

    Attributes:
        first: the first of the ranks, from 1.
        last: the last of them.
        pairs: how many pairs stand there in the lists that were looked at.
        gap: median of their scores less their anchor pairs' scores; None where none is known.
        suspected: percent of the pairs that each estimate suspects; None where none is decided.
    """

    first: int
    last: int
    pairs: int
    gap: float | None
    suspected: tuple[float | None, ...]


def by_rank(
    looked: Looked, estimates: Sequence[Suspects], gaps: Tensor | None
) -> tuple[Ranks, ...]:
    """Parts of the lists, hardest first, and then the whole.

    Args:
        looked: the lists.
        estimates: of which pairs are true.
        gaps: (S, h) scores of the pairs less those of their anchor pairs, where they are known.
    """
    depth = looked.listed.shape[1]
    lasts = [*(bound for bound in BOUNDS if bound < depth), depth]
    parts = list(zip([1, *(last + 1 for last in lasts)], lasts))
    if len(parts) > 1:
        parts.append((1, depth))
    return tuple(_part(looked, estimates, gaps, first, last) for first, last in parts)


def pair_scores(members: Sequence[Member], pairs: Pairs) -> Tensor:
    """(P,) mean score of the members for each of P pairs of rows, a bounded number at a time."""
    found = torch.zeros(len(pairs.image))
    with progress("pairs scored", len(members) * len(found)) as advance:
        for member in members:
            each = member.images.tokens[0].numel() + member.texts.tokens[0].numel()
            size, where = max(1, _NUMBERS // each), device_of(member)
            with evaluating([member.matcher]):
                for start in range(0, len(found), size):
                    part = slice(start, start + size)
                    images = member.images.rows(pairs.image[part]).to(where)
                    texts = member.texts.rows(pairs.text[part]).to(where)
                    found[part] += member.matcher.pairs(images, texts).float().cpu()
                    advance(len(images))
    return found / max(1, len(members))


def _part(
    looked: Looked, estimates: Sequence[Suspects], gaps: Tensor | None, first: int, last: int
) -> Ranks:
    ranks = slice(first - 1, last)
    listed = looked.listed[:, ranks]
    known = gaps[:, ranks][listed] if gaps is not None else torch.zeros(0)
    suspected = []
    for estimate in estimates:
        decided = int(estimate.known[:, ranks].sum())
        found = int(estimate.found[:, ranks].sum())
        suspected.append(100 * found / decided if decided else None)
    gap = float(known.median()) if len(known) else None
    return Ranks(first, last, int(listed.sum()), gap, tuple(suspected))
