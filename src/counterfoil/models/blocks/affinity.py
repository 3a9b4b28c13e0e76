"""Attention between all images and all captions, or between aligned pairs.

All with all goes through one matrix product: see `counterfoil.models.blocks.fused`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.models.blocks.attention import Attended, Attention
from counterfoil.models.blocks.fused import Fused, Plan
from counterfoil.models.blocks.head import Block, Head
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


def hidden_regions(images: Encoded | Side) -> Tensor | None:
    """The mask of the regions where it hides some; None when all are real."""
    return None if bool(images.mask.all()) else images.mask


def attended(images: Encoded, texts: Packed, heads: tuple[Attention, ...]) -> tuple[Attended, ...]:
    """Attend with every image and every caption, in one or both directions: see `asked`."""
    return tuple(Attended(*found) for found in asked(images, texts, heads))


def asked(
    images: Encoded, texts: Packed, heads: tuple[Head, ...]
) -> tuple[tuple[Tensor, ...], ...]:
    """What heads find with every image and every caption.

    Args:
        images: what `clean` gave.
        texts: packed captions.
        heads: what is asked of the same affinities.

    Returns:
        For each head its results: (W, I) when words ask, (T, I, R) when regions do.
    """
    device, dtype = images.tokens.device.type, images.tokens.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    _, by_regions = grams_wanted(heads)
    word_gram = own_products(texts.padded()) if by_regions else None
    plan = Plan(heads, tuple(texts.runs()), hidden_regions(images), dtype)
    flat = Fused.apply(  # type: ignore[no-untyped-call]
        plan, texts.words, images.tokens, images.gram, word_gram
    )
    return tuple(plan.split(flat))


def grams_wanted(heads: tuple[Head, ...]) -> tuple[bool, bool]:
    """Whether heads read the Gram matrices of regions, and those of words."""
    wanted = {head.direction for head in heads if head.grams}
    return "t2i" in wanted, "i2t" in wanted


def aligned(heads: tuple[Head, ...], images: Encoded, texts: Encoded) -> Aligned:
    """P images with P texts.

    Args:
        heads: what is asked of the same affinities.
        images: P of them.
        texts: P of them.
    """
    by_words, by_regions = grams_wanted(heads)
    images, texts = clean(images, gram=by_words), clean(texts, gram=by_regions)
    affinity = full(torch.bmm(texts.tokens, images.tokens.transpose(1, 2)))
    return Aligned(
        affinity,
        Side(images.mask, squares(images) if by_regions else None, images.gram),
        Side(texts.mask, squares(texts) if by_words else None, texts.gram),
    )


@final
@dataclass(frozen=True, slots=True)
class Side:
    """One side of P pairs, without its vectors.

    Attributes:
        mask: (P, L) bool, True where a vector is real.
        square: (P, L) squared lengths of vectors that attend.
        gram: (P, L, L) inner products of vectors that are attended to.
    """

    mask: Tensor
    square: Tensor | None
    gram: Tensor | None


@final
@dataclass(frozen=True, slots=True)
class Aligned:
    """P images with P texts, without their vectors.

    Attributes:
        affinity: (P, L, R) inner products of words and regions, 0 at padding.
        images: regions.
        texts: words.
    """

    affinity: Tensor
    images: Side
    texts: Side

    def asking(self, head: Head) -> Side:
        """The side that attends."""
        return self.texts if head.direction == "t2i" else self.images

    def block(self, head: Head) -> Block:
        """The pairs as one block, each with its own context.

        When words attend the pairs take the images' place, (1, L, P, R), and else the captions',
        (P, L, 1, R).
        """
        words, regions = self.texts.mask, hidden_regions(self.images)
        if head.direction == "t2i":
            at, seen = self.affinity.transpose(0, 1)[None], words.T[None, :, :, None]
            some = None if regions is None else regions[None, None]
            return Block(at, self.images.gram, seen, some)
        at, seen = self.affinity[:, :, None], words[:, :, None, None]
        some = None if regions is None else regions[:, None, None]
        return Block(at, self.texts.gram, seen, some)

    def found(self, head: Head) -> tuple[Tensor, ...]:
        """(P, L) results of words, or (P, R) of regions."""
        results = head.attend(self.block(head))
        if head.direction == "t2i":
            return tuple(result[0].T for result in results)
        return tuple(result[:, 0] for result in results)

    def cosine(self, head: Attention) -> Tensor:
        """(P, L) cosines of words, or (P, R) of regions, with what they attend to."""
        square = self.asking(head).square
        assert square is not None
        return Attended(*self.found(head)).cosine(square)

    def weights(self, head: Attention) -> Tensor:
        """(P, L, R) attention."""
        weights = head.weights(self.block(head))
        return weights[0].transpose(0, 1) if head.direction == "t2i" else weights[:, :, 0]
