"""Images and texts side by side, as sequences of one transformer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from counterfoil.models.blocks.joint import Packing
from counterfoil.records import Encoded, Pairs

TOGETHER = {"cpu": 4096, "cuda": 2**17}  # tokens read together where only scores are wanted


def packed(images: Encoded, texts: Encoded) -> tuple[Packing, Tensor]:
    """P texts, each with its image behind it: where their tokens stand, and they (S, D)."""
    mask = torch.cat([texts.mask, images.mask], 1)
    packing = Packing.of(mask)
    tokens = torch.cat([texts.tokens, images.tokens], 1)
    return packing, tokens[packing.sequence, packing.column]


def listed(pool: Tensor, images: Encoded, texts: Encoded, pairs: Pairs) -> tuple[Packing, Tensor]:
    """The same of listed pairs of two pools, without a padded copy of any.

    Args:
        pool: all tokens of the texts, then of the images, as `pooled` gives them.
        images: of the pool.
        texts: of the pool.
        pairs: (P,) which of them.
    """
    long, wide = texts.mask.shape[1], images.mask.shape[1]
    packing = Packing.of(torch.cat([texts.mask[pairs.text], images.mask[pairs.image]], 1))
    said = pairs.text[packing.sequence] * long + packing.column
    seen = pairs.image[packing.sequence] * wide + packing.column - long + texts.mask.numel()
    return packing, pool[torch.where(packing.column < long, said, seen)]


def pooled(images: Encoded, texts: Encoded) -> Tensor:
    """All tokens of the texts, then of the images."""
    return torch.cat([texts.tokens.flatten(0, 1), images.tokens.flatten(0, 1)])


def together(images: Encoded, texts: Encoded, pairs: Pairs) -> tuple[Tensor, Iterator[Pairs]]:
    """Listed pairs ordered by length, and that order cut where enough tokens have come together."""
    lengths = texts.mask.sum(1)[pairs.text] + images.mask.sum(1)[pairs.image]
    lengths, order = lengths.sort(stable=True)
    most = TOGETHER.get(lengths.device.type, TOGETHER["cuda"])
    sizes = [size for size in (lengths.cumsum(0) // most).bincount().tolist() if size]
    parts = (Pairs(pairs.image[rows], pairs.text[rows]) for rows in torch.split(order, sizes))
    return order, parts


def sides(images: Encoded | None, texts: Encoded | None) -> tuple[Encoded, Encoded]:
    """Both, an absent one as items without tokens."""
    one = texts if images is None else images
    assert one is not None, "nothing was given"
    none = Encoded(one.tokens[:, :0], one.mask[:, :0])
    return none if images is None else images, none if texts is None else texts
