"""Items with some of their regions or words changed."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from counterfoil.records import Items


def editable(items: Items, *, specials: bool) -> Tensor:
    """(N, L) bool, True for tokens that may be changed.

    Args:
        items: the items.
        specials: special tokens may be, where `Items.words` tells them.
    """
    if specials or items.words is None:
        return items.mask
    return items.mask & (items.words >= 0)


def overwritten(
    into: Items,
    source: Items,
    ranks: tuple[Tensor, Tensor],
    may: tuple[Tensor, Tensor],
    *,
    share: float,
) -> Items:
    """The most important tokens of one item overwritten by those of another, rank by rank.

    As many as are `share` of what may be changed, at least one, and at most what the other has.

    Args:
        into: N items.
        source: N items, as long.
        ranks: (N, L) importance of the tokens of both.
        may: (N, L) bool, tokens of both that count.
        share: of the tokens that are overwritten.
    """
    count = torch.minimum(_count(may[0], share), may[1].sum(1))
    to, place = _places(ranks[0], may[0], count)
    _, other = _places(ranks[1], may[1], count)
    values = into.values.clone()
    values[to, place] = source.values[to, other]
    if into.boxes is None or source.boxes is None:
        return _new(into, values)
    boxes = into.boxes.clone()
    boxes[to, place] = source.boxes[to, other]
    return replace(_new(into, values), boxes=boxes)


def without_regions(items: Items, rank: Tensor, *, share: float) -> Items:
    """The most important regions replaced by the mean of all others.

    Args:
        items: N images.
        rank: (N, L) importance of the regions.
        share: of the regions that are replaced, at least one.
    """
    row, place = _places(rank, items.mask, _count(items.mask, share))
    rest = items.mask.clone()
    rest[row, place] = False
    real = items.values.masked_fill(~rest.unsqueeze(2), 0)
    mean = real.sum(1) / rest.sum(1, keepdim=True).clamp(min=1)
    values = items.values.clone()
    values[row, place] = mean[row].to(values.dtype)
    return _new(items, values)


def without_words(items: Items, rank: Tensor, may: Tensor, *, share: float, mask: int) -> Items:
    """The most important words replaced by the token that hides a word.

    Args:
        items: N texts.
        rank: (N, L) importance of the words.
        may: (N, L) bool, words that count.
        share: of the words that are hidden, at least one.
        mask: id of that token.
    """
    row, place = _places(rank, may, _count(may, share))
    values = items.values.clone()
    values[row, place] = mask
    return _new(items, values)


def stacked(parts: list[Items]) -> Items:
    """Items one after the other, all of one length."""
    first = parts[0]
    return Items(
        torch.cat([part.ids for part in parts]),
        torch.cat([part.values for part in parts]),
        torch.cat([part.mask for part in parts]),
        None if first.boxes is None else torch.cat([p.boxes for p in parts if p.boxes is not None]),
        None,
        None if first.words is None else torch.cat([p.words for p in parts if p.words is not None]),
    )


def _new(items: Items, values: Tensor) -> Items:
    """Items that stand in no corpus."""
    return replace(items, ids=torch.full_like(items.ids, -1), values=values, targets=None)


def _count(may: Tensor, share: float) -> Tensor:
    """(N,) how many tokens are changed."""
    there = may.sum(1)
    return torch.minimum((there.double() * share).long().clamp(min=1), there)


def _places(rank: Tensor, may: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Row and place of the `count` highest ranks of each row, the highest first."""
    order = rank.masked_fill(~may, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    taken = torch.arange(order.shape[1], device=order.device) < count.unsqueeze(1)
    row, nth = taken.nonzero(as_tuple=True)
    return row, order[row, nth]
