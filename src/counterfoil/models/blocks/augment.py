"""Items that lose some of their regions and words in training (Chen et al., CVPR 2021, supp. 1).

All of it happens inside the model, from PyTorch's global generator, as dropout does: reading stays
the same, and a model in evaluation mode sees everything. What is left stands without holes, so a
mask is True from an item's first token to its last, and no item loses everything.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from counterfoil.records import Encoded, Items

MASKED, REPLACED = 0.5, 0.6  # of the dropped words: a half, a tenth; the rest are deleted


@final
class RegionDrop(nn.Module):
    """`drop_regions` in training, nothing in evaluation."""

    def __init__(self, *, share: float) -> None:
        """Keyword arguments.

        Args:
            share: of the regions that are left out.
        """
        super().__init__()
        self.share = share_of(share, "region_drop")

    def forward(self, items: Items) -> Items:
        """The items, without some of their regions in training."""
        return drop_regions(items, self.share) if self.training else items


@final
class WordDrop(nn.Module):
    """`drop_words` in training, nothing in evaluation."""

    def __init__(self, *, share: float, mask: int, vocabulary: int, ends: bool = True) -> None:
        """Keyword arguments.

        Args:
            share: of the words that are masked, replaced or deleted.
            mask: id of the token that masks a word.
            vocabulary: random words have ids below this.
            ends: see `drop_words`.
        """
        super().__init__()
        self.share = share_of(share, "word_drop")
        self.mask, self.vocabulary, self.ends = mask, vocabulary, ends

    def forward(self, items: Items) -> Items:
        """The items, with some of their words changed in training."""
        if not self.training:
            return items
        return drop_words(
            items, self.share, mask=self.mask, vocabulary=self.vocabulary, ends=self.ends
        )


def drop_regions(items: Items, share: float) -> Items:
    """Leave out each region with probability `share`.

    Args:
        items: N images of L regions.
        share: from 0 up to, not including, 1.
    """
    if not share:
        return items
    return _packed(items, torch.rand(items.mask.shape, device=items.mask.device) >= share)


def drop_words(
    items: Items, share: float, *, mask: int, vocabulary: int, ends: bool = True
) -> Items:
    """Change each word with probability `share`: half are masked, 10 % replaced, 40 % deleted.

    Every piece of a masked word becomes the mask, every piece of a replaced one a random token.
    Special tokens (-1 in `Items.words`) stay as they are.

    Departs from the authors' code in: a text that would lose all its tokens keeps them.

    Args:
        items: N texts of L token ids.
        share: from 0 up to, not including, 1.
        mask: id of the token that masks a word.
        vocabulary: random tokens have ids below this.
        ends: where `Items.words` says nothing, treat the first and the last token as words too,
            as GPO, CHAN and ESA do with ``<start>`` and ``<end>``; DivE does not.
    """
    if not share:
        return items
    words = _words(items, ends=ends)
    fate = torch.rand(words.shape, device=words.device).gather(1, _places(words)) / share
    fate = fate.masked_fill((words < 0) | ~items.mask, 1)
    other = torch.randint(vocabulary, words.shape, device=words.device)
    values = torch.where(fate < REPLACED, other, items.values).masked_fill(fate < MASKED, mask)
    return _packed(replace(items, values=values), (fate < REPLACED) | (fate >= 1))


def drop_cells(bag: Encoded, share: float) -> Encoded:
    """Leave out cells of a grid: of each image another share, from `share` squared up to `share`.

    An image draws r from 0 to 1. Up to `share` it keeps every cell; else each cell is left out with
    probability share * r.

    Args:
        bag: N images of L cells.
        share: from 0 up to, not including, 1.
    """
    if not share:
        return bag
    r = torch.rand(len(bag), 1, device=bag.mask.device)
    out = torch.rand(bag.mask.shape, device=bag.mask.device) < share * r
    order, mask = _order(bag.mask, ~out | (r <= share))
    return Encoded(_taken(bag.tokens, order), mask)


def share_of(share: float, name: str) -> float:
    """Check the share that something drops.

    Raises:
        ValueError: it is not from 0 up to, not including, 1.
    """
    if not 0 <= share < 1:
        raise ValueError(f"{name}={share} is not possible; give a share from 0 to below 1")
    return share


def _words(items: Items, *, ends: bool) -> Tensor:
    """(N, L) which word each token is a piece of; -1 for those that stay."""
    if items.words is not None:
        return items.words
    place = torch.arange(items.mask.shape[1], device=items.mask.device).expand(items.mask.shape)
    if ends:
        return place
    last = items.mask.sum(1, keepdim=True) - 1
    return place.masked_fill((place == 0) | (place >= last), -1)


def _places(words: Tensor) -> Tensor:
    """(N, L) the same number for all pieces of a word, below L."""
    begins = torch.ones_like(words)
    begins[:, 1:] = (words[:, 1:] != words[:, :-1]).long()
    return begins.cumsum(1) - 1


def _packed(items: Items, keep: Tensor) -> Items:
    order, mask = _order(items.mask, keep)
    boxes = None if items.boxes is None else _taken(items.boxes, order)
    words = None if items.words is None else _taken(items.words, order).masked_fill(~mask, -1)
    return replace(items, values=_taken(items.values, order), mask=mask, boxes=boxes, words=words)


def _order(mask: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """(N, L) places with what is kept ahead, in its order, and the mask of that."""
    kept = keep & mask
    kept = torch.where(kept.any(1, keepdim=True), kept, mask)
    order = (~kept).long().argsort(dim=1, stable=True)
    return order, kept.gather(1, order)


def _taken(values: Tensor, order: Tensor) -> Tensor:
    rows = torch.arange(len(order), device=order.device).unsqueeze(1)
    return values[rows, order]
