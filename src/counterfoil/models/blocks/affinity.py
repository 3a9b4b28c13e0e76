"""Attention between all images and all captions, or between aligned pairs.

All with all goes through one matrix product: see `counterfoil.models.blocks.fused`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from counterfoil.models.blocks.attention import Attended, Attention, Block
from counterfoil.models.blocks.fused import Fused, Plan
from counterfoil.models.blocks.inner import full, square
from counterfoil.models.blocks.packing import Packed
from counterfoil.records import Encoded


def clean(items: Encoded, *, gram: bool = True) -> Encoded:
    """The same items with zeros where the mask is False, and with Gram matrices if wanted."""
    tokens, own, mask = items.tokens, items.gram, items.mask
    whole = bool(mask.all())
    if not whole:
        tokens = tokens.masked_fill(~mask.unsqueeze(-1), 0)
    if not gram:
        own = None
    elif own is None:
        own = own_products(tokens)
    elif not whole:
        own = own.masked_fill(~(mask.unsqueeze(1) & mask.unsqueeze(2)), 0)
    return Encoded(tokens, mask, own)


def own_products(tokens: Tensor) -> Tensor:
    """(N, L, L) inner products of each item's own vectors, never in half precision."""
    with torch.autocast(tokens.device.type, enabled=False):
        vectors = full(tokens)
        return torch.bmm(vectors, vectors.transpose(1, 2))


def squares(items: Encoded) -> Tensor:
    """(N, L) squared lengths of the vectors; the Gram matrices have them where they are known."""
    if items.gram is None:
        return square(items.tokens)
    return items.gram.diagonal(dim1=1, dim2=2)


def attended(images: Encoded, texts: Packed, heads: tuple[Attention, ...]) -> tuple[Attended, ...]:
    """Attend with every image and every caption, in one or both directions.

    Args:
        images: what `clean` gave.
        texts: packed captions.
        heads: attentions that share the affinities.

    Returns:
        For each head (W, I) when words attend, (T, I, R) when regions do.
    """
    device, dtype = images.tokens.device.type, images.tokens.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    mask = None if bool(images.mask.all()) else images.mask
    by_regions = any(head.direction == "i2t" for head in heads)
    word_gram = own_products(texts.padded()) if by_regions else None
    plan = Plan(heads, tuple(texts.runs()), mask, dtype)
    flat = Fused.apply(  # type: ignore[no-untyped-call]
        plan, texts.words, images.tokens, images.gram, word_gram
    )
    return tuple(Attended(*flat[3 * h : 3 * h + 3]) for h in range(len(heads)))


def aligned(heads: tuple[Attention, ...], images: Encoded, texts: Encoded) -> tuple[Block, ...]:
    """P images with P texts, cleaned, as one block for each head.

    When words attend the pairs take the images' place, (1, L, P, R), and else the captions',
    (P, L, 1, R), so that each has its own context.
    """
    affinity = full(torch.bmm(texts.tokens, images.tokens.transpose(1, 2)))
    return tuple(_aligned(head, affinity, images, texts) for head in heads)


def _aligned(head: Attention, affinity: Tensor, images: Encoded, texts: Encoded) -> Block:
    if head.direction == "t2i":
        assert images.gram is not None
        words, regions = texts.mask.T[None, :, :, None], images.mask[None, None]
        return Block(affinity.transpose(0, 1)[None], images.gram, words, regions)
    assert texts.gram is not None
    words, regions = texts.mask[:, :, None, None], images.mask[:, None, None]
    return Block(affinity[:, :, None], texts.gram, words, regions)
