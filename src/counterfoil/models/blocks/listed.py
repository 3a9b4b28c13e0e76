"""Pairs that are listed by their rows in two pools.

A copy of both sides of all pairs costs more than their scores. So on the CPU every pair is
multiplied where it lies, in the order of the images: what a pair needs is then in the cache when
it is needed again, and nothing but the pools is kept for the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from counterfoil.models.blocks.affinity import Aligned, Side, aligned, clean, grams_wanted
from counterfoil.models.blocks.head import Head
from counterfoil.models.blocks.inner import full
from counterfoil.records import Encoded, Pairs


def listed(heads: tuple[Head, ...], images: Encoded, texts: Encoded, pairs: Pairs) -> Aligned:
    """What the scores of pairs of rows of two pools are made of.

    Args:
        heads: what is asked of the same affinities.
        images: pool of images, about as many as occur: each is looked at.
        texts: pool of texts, likewise.
        pairs: (P,) rows of the pools.
    """
    device = images.tokens.device
    by_words, by_regions = grams_wanted(heads)
    images, pairs = clean(images, gram=by_words), pairs.to(device)
    image, text = pairs.image, pairs.text
    if device.type != "cpu":
        return aligned(heads, images.rows(image), texts.rows(text))
    if bool((texts.mask[:, 1:] > texts.mask[:, :-1]).any()):  # padding between the words
        texts = clean(texts, gram=False)
    affinity, seen, read = _Products.apply(  # type: ignore[no-untyped-call]
        _plan(images, texts, pairs, (by_words, by_regions)), images.tokens, texts.tokens
    )
    read = read.index_select(0, text)
    return Aligned(
        affinity,
        Side(
            images.mask[image],
            seen.index_select(0, image) if by_regions else None,
            None if images.gram is None else images.gram.index_select(0, image),
        ),
        Side(
            texts.mask[text],
            read.diagonal(dim1=1, dim2=2) if by_regions else read if by_words else None,
            read if by_regions else None,
        ),
    )


@final
@dataclass(frozen=True, slots=True)
class _Plan:
    """What is computed of two pools.

    Attributes:
        pairs: rows of the pools.
        lengths: (T,) room that each text needs.
        by_words: words attend, so their squared lengths are wanted.
        by_regions: regions attend, so theirs are, and the texts' Gram matrices.
        dtype: of the affinities; all else has at least single precision.
    """

    pairs: Pairs
    lengths: Tensor
    by_words: bool
    by_regions: bool
    dtype: torch.dtype

    def visits(self) -> Iterator[tuple[int, int, int, bool, bool]]:
        """Place, image and text of each pair, and whether image and text come the first time."""
        order = self.pairs.image.argsort(stable=True)
        rows = (order, self.pairs.image[order], self.pairs.text[order])
        images, texts = set[int](), set[int]()
        for place, image, text in zip(*(x.tolist() for x in rows), strict=True):
            yield place, image, text, image not in images, text not in texts
            images.add(image)
            texts.add(text)

    def words(self, items: Tensor, texts: Tensor | None = None) -> tuple[Tensor, ...]:
        """Views of what stands at the words of each text.

        Args:
            items: (N, L, ...) of the pool of texts, or of these.
            texts: (N,) rows of the pool.
        """
        lengths = self.lengths if texts is None else self.lengths[texts]
        sizes = torch.stack([lengths, items.shape[1] - lengths], 1).flatten()
        return torch.split(items.flatten(0, 1), sizes.tolist())[::2]


def _plan(images: Encoded, texts: Encoded, pairs: Pairs, by: tuple[bool, bool]) -> _Plan:
    rounded = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if rounded else images.tokens.dtype
    place = torch.arange(1, texts.mask.shape[1] + 1)
    return _Plan(pairs, (texts.mask * place).amax(1), *by, dtype)


@final
class _Products(torch.autograd.Function):
    """Affinities (P, L, R); squares of regions (I, R); squares (T, L) of words or Grams (T, L, L).

    Items of which there is no pair are passed over: what is theirs is 0.
    """

    @staticmethod
    def forward(
        ctx: Any, plan: _Plan, images: Tensor, texts: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.plan = plan
        ctx.save_for_backward(images, texts)
        with torch.autocast("cpu", enabled=False):
            return _forward(plan, images, texts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, affinity: Tensor, seen: Tensor, read: Tensor) -> tuple[Any, ...]:
        images, texts = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            found = _backward(ctx.plan, full(images), full(texts), (affinity, seen, read))
        return None, found[0].to(images.dtype), found[1].to(texts.dtype)


def _forward(plan: _Plan, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    affinity = torch.zeros(len(plan.pairs.image), texts.shape[1], images.shape[1], dtype=plan.dtype)
    places = plan.words(affinity, plan.pairs.text)
    left, right = plan.words(texts.to(plan.dtype)), images.to(plan.dtype).mT.unbind()
    words = left if plan.dtype == full(texts).dtype else plan.words(full(texts))
    seen = full(images).new_zeros(images.shape[:2])
    read = full(texts).new_zeros(*texts.shape[:2], *(texts.shape[1:2] if plan.by_regions else ()))
    regions, lengths = (x.unbind() if plan.by_regions else () for x in (full(images), seen))
    own = plan.words(read) if plan.by_regions or plan.by_words else ()
    for place, image, text, first, new in plan.visits():
        # what is read here is in the cache for the product
        if first and plan.by_regions:
            torch.linalg.vector_norm(regions[image], dim=1, out=lengths[image])
        if new and plan.by_regions:
            torch.mm(words[text], words[text].T, out=own[text][:, : len(words[text])])
        elif new and plan.by_words:
            torch.linalg.vector_norm(words[text], dim=1, out=own[text])
        torch.mm(left[text], right[image], out=places[place])
    return full(affinity), seen.square_(), read if plan.by_regions else read.square_()


def _backward(
    plan: _Plan, images: Tensor, texts: Tensor, grads: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Gradients of the pools, each row of which is written where it was read."""
    d_images, d_texts = (x.new_zeros(x.shape) for x in (images, texts))  # in rows, as words are
    words, d_words = plan.words(texts), plan.words(d_texts)
    regions, d_regions = images.unbind(), d_images.unbind()
    pulls, seen = plan.words(grads[0], plan.pairs.text), (2 * grads[1]).unsqueeze(2).unbind()
    read = grads[2] + grads[2].mT if plan.by_regions else 2 * grads[2].unsqueeze(2)
    own = plan.words(read)
    for place, image, text, first, new in plan.visits():
        _add(d_words[text], pulls[place], regions[image], fresh=new)
        _add(d_regions[image], pulls[place].T, words[text], fresh=first)
        if first and plan.by_regions:
            d_regions[image].addcmul_(regions[image], seen[image])
        if new and plan.by_regions:
            d_words[text].addmm_(own[text][:, : len(words[text])], words[text])
        elif new and plan.by_words:
            d_words[text].addcmul_(words[text], own[text])
    return d_images, d_texts


def _add(room: Tensor, left: Tensor, right: Tensor, *, fresh: bool) -> None:
    """Add a product; what is fresh is written without being read, which costs half."""
    if fresh:
        torch.mm(left, right, out=room)
    else:
        room.addmm_(left, right)
