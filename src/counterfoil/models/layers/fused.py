"""All images with all captions through one matrix product, with exact gradients.

Captions come packed, so the product holds real words only, and captions of one length form dense
blocks (n, L, I, R) small enough for the cache. The gradient is in closed form; a loss that looks
at few pairs (the hardest negatives) pays for those pairs only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from counterfoil.core.types import Embeddings, Pairs
from counterfoil.models.layers.cross_attention import (
    AttendedProducts,
    AttentionBlock,
    AttentionHead,
    CrossAttention,
    LengthRun,
    PackedTexts,
)
from counterfoil.models.layers.pooling import full_precision, squared_norms

CELLS_IN_CACHE = 1 << 20  # affinities of one block
PAIRS_AT_ONCE = 512
SPARSE = 0.15  # where fewer pairs than this share have a gradient, only they are visited


@final
@dataclass(frozen=True, slots=True)
class FusedPlan:
    """What one fused call computes.

    Attributes:
        heads: what is asked of the affinities.
        runs: captions by length.
        mask: (I, R) bool, or None when all regions are real.
        dtype: of the large products; all else has at least single precision.
    """

    heads: tuple[AttentionHead, ...]
    runs: tuple[LengthRun, ...]
    mask: Tensor | None
    dtype: torch.dtype

    def split(self, flat: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        """What belongs to each head, of all their results in a row."""
        ends = list(accumulate((head.results for head in self.heads), initial=0))
        return [flat[a:b] for a, b in pairwise(ends)]

    def blocks(self, affinity: Tensor, regions: int) -> Iterator[tuple[LengthRun, Tensor]]:
        """Views (n, L, I, R) of (W, I * R), small enough for the cache."""
        for run in self.runs:
            for cut in run.cut(CELLS_IN_CACHE // max(1, affinity.shape[1])):
                block = affinity[cut.words].view(cut.n, cut.length, -1, regions)
                yield cut, block

    def block(
        self, head: AttentionHead, run: LengthRun, affinity: Tensor, grams: GramMatrices
    ) -> AttentionBlock:
        """One view with what the head needs beside it."""
        mask = None if self.mask is None else self.mask[None, None]
        return AttentionBlock(affinity, grams.of(head, run), None, mask)


@final
@dataclass(frozen=True, slots=True)
class GramMatrices:
    """(I, R, R) of the regions and (T, L, L) of the words, or gradients of these."""

    regions: Tensor | None
    words: Tensor | None

    def of(self, head: AttentionHead, run: LengthRun) -> Tensor | None:
        """Those of the head's context in a run, as a view, if it reads them."""
        if not head.grams:
            return None
        if head.direction == "t2i":
            return self.regions
        assert self.words is not None
        return self.words[run.captions, : run.length, : run.length]

    def zeros(self) -> GramMatrices:
        """Room for gradients."""
        both = (None if g is None else torch.zeros_like(g) for g in (self.regions, self.words))
        return GramMatrices(*both)


def _head_method(head: AttentionHead, name: str) -> Callable[..., Any]:
    """A method of the head's class, compiled where the head says so."""
    plain: Callable[..., Any] = getattr(type(head), name)
    return _compiled(plain) if head.compiled else plain


@cache
def _compiled(plain: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(plain, dynamic=True)


def _place(head: AttentionHead, run: LengthRun) -> slice:
    """Rows of a head's results that belong to a run."""
    return run.words if head.direction == "t2i" else run.captions


def _query_block(head: AttentionHead, view: Tensor, rows: Tensor) -> Tensor:
    """Rows of a head's results in the shape of a block without its context axis."""
    n, words, images, regions = view.shape
    return rows.view(n, words, images) if head.direction == "t2i" else rows.view(n, images, regions)


@final
class FusedAttention(torch.autograd.Function):
    """Words (W, D), regions (I, R, D) and Gram matrices to what the queries attend to."""

    @staticmethod
    def forward(
        ctx: Any,
        plan: FusedPlan,
        words: Tensor,
        regions: Tensor,
        region_gram: Tensor | None,
        word_gram: Tensor | None,
    ) -> tuple[Tensor, ...]:
        images, per_image, _ = regions.shape
        grams = GramMatrices(region_gram, word_gram)
        with torch.autocast(words.device.type, enabled=False):
            flat = regions.flatten(0, 1).to(plan.dtype)
            affinity = full_precision(words.to(plan.dtype) @ flat.T)
            out = [_empty_results(plan, head, affinity, (images, per_image)) for head in plan.heads]
            for run, view in plan.blocks(affinity, per_image):
                for head, room in zip(plan.heads, out, strict=True):
                    found = _head_method(head, "attend")(head, plan.block(head, run, view, grams))
                    for tensor, part in zip(room, found, strict=True):
                        tensor[_place(head, run)] = part.view(-1, *tensor.shape[1:])
        ctx.plan = plan
        ctx.save_for_backward(words, regions, region_gram, word_gram, affinity)
        fixed = (room[head.learnt :] for head, room in zip(plan.heads, out, strict=True))
        ctx.mark_non_differentiable(*(tensor for tensors in fixed for tensor in tensors))
        return tuple(tensor for room in out for tensor in room)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        words, regions, region_gram, word_gram, affinity = ctx.saved_tensors
        parts = ctx.plan.split(grads)
        pulls = [part[: head.learnt] for head, part in zip(ctx.plan.heads, parts, strict=True)]
        job = FusedGradient(
            ctx.plan, words, regions, affinity, GramMatrices(region_gram, word_gram), pulls
        )
        with torch.autocast(words.device.type, enabled=False):
            touched = job.touched()
            sparse = int(touched.sum()) < SPARSE * touched.numel()
            d_words, d_regions, grams = job.sparse(touched) if sparse else job.dense()
        return None, d_words, d_regions, grams.regions, grams.words


def _empty_results(
    plan: FusedPlan, head: AttentionHead, affinity: Tensor, shape: tuple[int, int]
) -> tuple[Tensor, ...]:
    captions = sum(run.n for run in plan.runs)
    size = (len(affinity), shape[0]) if head.direction == "t2i" else (captions, *shape)
    return tuple(affinity.new_empty(size) for _ in range(head.results))


@final
@dataclass(frozen=True, slots=True)
class FusedGradient:
    """The gradient of `FusedAttention`.

    Attributes:
        pulls: gradients of what each head learns from.
    """

    plan: FusedPlan
    words: Tensor
    regions: Tensor
    affinity: Tensor
    grams: GramMatrices
    pulls: list[tuple[Tensor, ...]]

    def touched(self) -> Tensor:
        """(T, I) pairs with a gradient."""
        rows = []
        for run in self.plan.runs:
            any_head = torch.zeros(1, dtype=torch.bool, device=self.words.device)
            for head, pulls in zip(self.plan.heads, self.pulls, strict=True):
                for moved in (pull[_place(head, run)] != 0 for pull in pulls):
                    by_words = head.direction == "t2i"
                    pairs = moved.view(run.n, run.length, -1).any(1) if by_words else moved.any(2)
                    any_head = any_head | pairs
            rows.append(any_head)
        return torch.cat(rows)

    def dense(self) -> tuple[Tensor, Tensor, GramMatrices]:
        """Visit every block."""
        plan, grams = self.plan, self.grams.zeros()
        d_affinity = torch.empty_like(self.affinity)
        for run, view in plan.blocks(self.affinity, self.regions.shape[1]):
            total: Tensor | None = None
            for head, pulls in zip(plan.heads, self.pulls, strict=True):
                rows = (_query_block(head, view, g[_place(head, run)]) for g in pulls)
                block = plan.block(head, run, view, self.grams)
                moved, gram = _head_method(head, "derivative")(head, block, *rows)
                if (room := grams.of(head, run)) is not None:
                    room.add_(gram)
                total = moved if total is None else total.add_(moved)
            assert total is not None
            d_affinity[run.words] = total.flatten(0, 1).flatten(1)
        narrow = d_affinity.to(plan.dtype)
        flat = self.regions.flatten(0, 1).to(plan.dtype)
        d_words = (narrow @ flat).to(self.words.dtype)
        d_regions = (narrow.T @ self.words.to(plan.dtype)).view_as(self.regions)
        return d_words, d_regions.to(self.regions.dtype), grams

    def sparse(self, touched: Tensor) -> tuple[Tensor, Tensor, GramMatrices]:
        """Visit only the touched pairs."""
        d_words, d_regions = torch.zeros_like(self.words), torch.zeros_like(self.regions)
        grams = self.grams.zeros()
        for run in self.plan.runs:
            found = touched[run.captions].nonzero()
            if not len(found):
                continue
            words = self.words[run.words].view(run.n, run.length, -1)
            d_run = d_words[run.words].view_as(words)
            for caption, image in (part.unbind(1) for part in torch.split(found, PAIRS_AT_ONCE)):
                moved = self._moved(run, caption, image, grams).to(self.plan.dtype)
                regions = self.regions[image].to(self.plan.dtype)
                d_run.index_add_(0, caption, torch.bmm(moved, regions).to(d_run.dtype))
                back = torch.bmm(moved.transpose(1, 2), words[caption].to(self.plan.dtype))
                d_regions.index_add_(0, image, back.to(d_regions.dtype))
        return d_words, d_regions, grams

    def _moved(self, run: LengthRun, caption: Tensor, image: Tensor, grams: GramMatrices) -> Tensor:
        """(P, L, R) gradient of the affinities of P pairs; adds that of the Gram matrices."""
        images, regions = self.regions.shape[:2]
        view = self.affinity[run.words].view(run.n, run.length, images, regions)
        pairs = view[caption, :, image]
        mask = None if self.plan.mask is None else self.plan.mask[image]
        total = torch.zeros_like(pairs)
        for head, pulls in zip(self.plan.heads, self.pulls, strict=True):
            gram, d_gram = self.grams.of(head, run), grams.of(head, run)
            by_words = head.direction == "t2i"
            own = image if by_words else caption
            near = None if gram is None else gram[own]
            if by_words:  # the pairs take the images' place: (1, L, P, R)
                seen = None if mask is None else mask[None, None]
                block = AttentionBlock(pairs.transpose(0, 1)[None], near, None, seen)
                rows = (g[run.words].view(run.n, run.length, -1)[caption, :, image] for g in pulls)
                moved, part = head.derivative(block, *(g.T[None] for g in rows))
                total += moved[0].transpose(0, 1)
            else:  # the captions' place: (P, L, 1, R)
                seen = None if mask is None else mask[:, None, None]
                block = AttentionBlock(pairs[:, :, None], near, None, seen)
                rows = (g[run.captions][caption, image][:, None] for g in pulls)
                moved, part = head.derivative(block, *rows)
                total += moved[:, :, 0]
            if d_gram is not None and part is not None:
                d_gram.index_add_(0, own, part)
        return total


# Attention between all images and all captions, or between aligned pairs.
#
# All with all goes through one matrix product: see `counterfoil.models.layers.fused`.


def prepare_context(items: Embeddings, *, gram: bool = True) -> Embeddings:
    """The same items with zeros where the mask is False, and with Gram matrices if wanted."""
    tokens, own, mask = items.tokens, items.gram, items.mask
    whole = bool(mask.all())
    if not whole:
        tokens = tokens.masked_fill(~mask.unsqueeze(-1), 0)
    if not gram:
        own = None
    elif own is None:
        own = gram_matrices(tokens)
    elif not whole:
        own = own.masked_fill(~(mask.unsqueeze(1) & mask.unsqueeze(2)), 0)
    return Embeddings(tokens, mask, own)


def gram_matrices(tokens: Tensor) -> Tensor:
    """(N, L, L) inner products of each item's own vectors, never in half precision."""
    with torch.autocast(tokens.device.type, enabled=False):
        vectors = full_precision(tokens)
        return torch.bmm(vectors, vectors.transpose(1, 2))


def squared_lengths(items: Embeddings) -> Tensor:
    """(N, L) squared lengths of the vectors; the Gram matrices have them where they are known."""
    if items.gram is None:
        return squared_norms(items.tokens)
    return items.gram.diagonal(dim1=1, dim2=2)


def region_mask(images: Embeddings | AttentionSide) -> Tensor | None:
    """The mask of the regions where it hides some; None when all are real."""
    return None if bool(images.mask.all()) else images.mask


def attend_all(
    images: Embeddings, texts: PackedTexts, heads: tuple[CrossAttention, ...]
) -> tuple[AttendedProducts, ...]:
    """Attend with every image and every caption, in one or both directions: see `asked`."""
    return tuple(AttendedProducts(*found) for found in apply_heads(images, texts, heads))


def apply_heads(
    images: Embeddings, texts: PackedTexts, heads: tuple[AttentionHead, ...]
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
    _, by_regions = needed_grams(heads)
    word_gram = gram_matrices(texts.padded()) if by_regions else None
    plan = FusedPlan(heads, tuple(texts.runs()), region_mask(images), dtype)
    flat = FusedAttention.apply(  # type: ignore[no-untyped-call]
        plan, texts.words, images.tokens, images.gram, word_gram
    )
    return tuple(plan.split(flat))


def needed_grams(heads: tuple[AttentionHead, ...]) -> tuple[bool, bool]:
    """Whether heads read the Gram matrices of regions, and those of words."""
    wanted = {head.direction for head in heads if head.grams}
    return "t2i" in wanted, "i2t" in wanted


def align_pairs(
    heads: tuple[AttentionHead, ...], images: Embeddings, texts: Embeddings
) -> AlignedPairs:
    """P images with P texts.

    Args:
        heads: what is asked of the same affinities.
        images: P of them.
        texts: P of them.
    """
    by_words, by_regions = needed_grams(heads)
    images, texts = prepare_context(images, gram=by_words), prepare_context(texts, gram=by_regions)
    affinity = full_precision(torch.bmm(texts.tokens, images.tokens.transpose(1, 2)))
    return AlignedPairs(
        affinity,
        AttentionSide(images.mask, squared_lengths(images) if by_regions else None, images.gram),
        AttentionSide(texts.mask, squared_lengths(texts) if by_words else None, texts.gram),
    )


@final
@dataclass(frozen=True, slots=True)
class AttentionSide:
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
class AlignedPairs:
    """P images with P texts, without their vectors.

    Attributes:
        affinity: (P, L, R) inner products of words and regions, 0 at padding.
        images: regions.
        texts: words.
    """

    affinity: Tensor
    images: AttentionSide
    texts: AttentionSide

    def asking(self, head: AttentionHead) -> AttentionSide:
        """The side that attends."""
        return self.texts if head.direction == "t2i" else self.images

    def block(self, head: AttentionHead) -> AttentionBlock:
        """The pairs as one block, each with its own context.

        When words attend the pairs take the images' place, (1, L, P, R), and else the captions',
        (P, L, 1, R).
        """
        words, regions = self.texts.mask, region_mask(self.images)
        if head.direction == "t2i":
            at, seen = self.affinity.transpose(0, 1)[None], words.T[None, :, :, None]
            some = None if regions is None else regions[None, None]
            return AttentionBlock(at, self.images.gram, seen, some)
        at, seen = self.affinity[:, :, None], words[:, :, None, None]
        some = None if regions is None else regions[:, None, None]
        return AttentionBlock(at, self.texts.gram, seen, some)

    def found(self, head: AttentionHead) -> tuple[Tensor, ...]:
        """(P, L) results of words, or (P, R) of regions."""
        results = head.attend(self.block(head))
        if head.direction == "t2i":
            return tuple(result[0].T for result in results)
        return tuple(result[:, 0] for result in results)

    def cosine(self, head: CrossAttention) -> Tensor:
        """(P, L) cosines of words, or (P, R) of regions, with what they attend to."""
        square = self.asking(head).square
        assert square is not None
        return AttendedProducts(*self.found(head)).cosine(square)

    def weights(self, head: CrossAttention) -> Tensor:
        """(P, L, R) attention."""
        weights = head.weights(self.block(head))
        return weights[0].transpose(0, 1) if head.direction == "t2i" else weights[:, :, 0]


# Pairs that are listed by their rows in two pools.
#
# A copy of both sides of all pairs costs more than their scores. So on the CPU every pair is
# multiplied where it lies, in the order of the images: what a pair needs is then in the cache when
# it is needed again, and nothing but the pools is kept for the gradient.


def align_listed(
    heads: tuple[AttentionHead, ...], images: Embeddings, texts: Embeddings, pairs: Pairs
) -> AlignedPairs:
    """What the scores of pairs of rows of two pools are made of.

    Args:
        heads: what is asked of the same affinities.
        images: pool of images, about as many as occur: each is looked at.
        texts: pool of texts, likewise.
        pairs: (P,) rows of the pools.
    """
    device = images.tokens.device
    by_words, by_regions = needed_grams(heads)
    images, pairs = prepare_context(images, gram=by_words), pairs.to(device)
    image, text = pairs.image, pairs.text
    if device.type != "cpu":
        return align_pairs(heads, images.rows(image), texts.rows(text))
    if bool((texts.mask[:, 1:] > texts.mask[:, :-1]).any()):  # padding between the words
        texts = prepare_context(texts, gram=False)
    affinity, seen, read = ListedProducts.apply(  # type: ignore[no-untyped-call]
        _listed_plan(images, texts, pairs, (by_words, by_regions)), images.tokens, texts.tokens
    )
    read = read.index_select(0, text)
    return AlignedPairs(
        affinity,
        AttentionSide(
            images.mask[image],
            seen.index_select(0, image) if by_regions else None,
            None if images.gram is None else images.gram.index_select(0, image),
        ),
        AttentionSide(
            texts.mask[text],
            read.diagonal(dim1=1, dim2=2) if by_regions else read if by_words else None,
            read if by_regions else None,
        ),
    )


@final
@dataclass(frozen=True, slots=True)
class ListedPlan:
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


def _listed_plan(
    images: Embeddings, texts: Embeddings, pairs: Pairs, by: tuple[bool, bool]
) -> ListedPlan:
    rounded = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if rounded else images.tokens.dtype
    place = torch.arange(1, texts.mask.shape[1] + 1)
    return ListedPlan(pairs, (texts.mask * place).amax(1), *by, dtype)


@final
class ListedProducts(torch.autograd.Function):
    """Affinities (P, L, R); squares of regions (I, R); squares (T, L) of words or Grams (T, L, L).

    Items of which there is no pair are passed over: what is theirs is 0.
    """

    @staticmethod
    def forward(
        ctx: Any, plan: ListedPlan, images: Tensor, texts: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.plan = plan
        ctx.save_for_backward(images, texts)
        with torch.autocast("cpu", enabled=False):
            return _listed_forward(plan, images, texts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, affinity: Tensor, seen: Tensor, read: Tensor) -> tuple[Any, ...]:
        images, texts = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            found = _listed_backward(
                ctx.plan, full_precision(images), full_precision(texts), (affinity, seen, read)
            )
        return None, found[0].to(images.dtype), found[1].to(texts.dtype)


def _listed_forward(
    plan: ListedPlan, images: Tensor, texts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    affinity = torch.zeros(len(plan.pairs.image), texts.shape[1], images.shape[1], dtype=plan.dtype)
    places = plan.words(affinity, plan.pairs.text)
    left, right = plan.words(texts.to(plan.dtype)), images.to(plan.dtype).mT.unbind()
    words = left if plan.dtype == full_precision(texts).dtype else plan.words(full_precision(texts))
    seen = full_precision(images).new_zeros(images.shape[:2])
    read = full_precision(texts).new_zeros(
        *texts.shape[:2], *(texts.shape[1:2] if plan.by_regions else ())
    )
    regions, lengths = (
        x.unbind() if plan.by_regions else () for x in (full_precision(images), seen)
    )
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
    return full_precision(affinity), seen.square_(), read if plan.by_regions else read.square_()


def _listed_backward(
    plan: ListedPlan, images: Tensor, texts: Tensor, grads: tuple[Tensor, Tensor, Tensor]
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
