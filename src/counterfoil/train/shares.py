"""Who computes which rows of a batch, and how all of them come together again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.records import Batch, Encoded, View, Views


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


def whole(batch: Batch, share: Views) -> Views:
    """The views of the whole batch; the model's own losses are added up over processes."""
    views = {
        name: View(
            gathered(view.images, len(batch.image_rows) * view.copies),
            gathered(view.texts, len(batch.text_rows) * view.copies),
            view.copies,
        )
        for name, view in share.views.items()
    }
    auxiliary = {
        name: world.gather_rows(loss.reshape(1)).sum() for name, loss in share.auxiliary.items()
    }
    return replace(share, views=views, auxiliary=auxiliary)
