"""Raw items put together: padded, one after the other, of all processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from counterfoil import world
from counterfoil.records import Items


def padded(items: Items, length: int) -> Items:
    """The same items with room for `length` tokens; what they were to learn is left out."""
    more = length - items.mask.shape[1]

    def wider(tensor: Tensor, fill: int = 0) -> Tensor:
        room = (0, 0) * (tensor.dim() - 2) + (0, more)
        return pad(tensor, room, value=fill) if more > 0 else tensor

    return Items(
        items.ids,
        wider(items.values),
        wider(items.mask),
        None if items.boxes is None else wider(items.boxes),
        None,
        None if items.words is None else wider(items.words, -1),
    )


def joined(parts: Sequence[Items]) -> Items:
    """Items one after the other, padded to the longest; boxes and words where all have them."""
    longest = max(part.mask.shape[1] for part in parts)
    parts = [padded(part, longest) for part in parts]
    boxes = [part.boxes for part in parts if part.boxes is not None]
    words = [part.words for part in parts if part.words is not None]
    return Items(
        torch.cat([part.ids for part in parts]),
        torch.cat([part.values for part in parts]),
        torch.cat([part.mask for part in parts]),
        torch.cat(boxes) if len(boxes) == len(parts) else None,
        None,
        torch.cat(words) if len(words) == len(parts) else None,
    )


def everywhere(share: Items, count: int) -> Items:
    """All processes' items, the first `count` of them, padded to the longest.

    Args:
        share: this process's; every process has as many.
        count: how many there are, without those that only stand in.
    """
    share = padded(share, world.largest(share.mask.shape[1]))

    def whole(tensor: Tensor) -> Tensor:
        return world.gather(tensor).flatten(0, 1)[:count]

    return Items(
        whole(share.ids),
        whole(share.values),
        whole(share.mask),
        None if share.boxes is None else whole(share.boxes),
        None,
        None if share.words is None else whole(share.words),
    )
