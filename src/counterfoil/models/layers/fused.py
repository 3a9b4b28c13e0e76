"""The exact fast score: all images with all captions through one matrix product.

Why no attended vector is needed is derived in `counterfoil.models.layers.cross_attention`; with
weights p over context vectors c_k and G their Gram matrix,

    q . sum_k p_k c_k = sum_k p_k (q . c_k)          |sum_k p_k c_k|^2 = p^T G p

This file applies such attention heads in three ways, all with the same result:

- `apply_heads`: every image with every caption, for score matrices (`FusedAttention`);
- `align_pairs`: P images with P captions, row by row;
- `align_listed`: pairs of rows of two pools, without copying the pools (`ListedProducts`).

Layout of the first. Captions are packed, so the product holds real words only; W words in all:

        regions.flatten(0, 1).T (D, I R)
                                |  image 0   |  image 1   | ...
      words (W, D)              |  r0 .. rR  |  r0 .. rR  |
        caption 0, word 0   ->  [  ....      |  ....      |     ]
        caption 0, word 1   ->  [  ....      |  ....      |     ]  affinity (W, I R)
        caption 1, word 0   ->  [  ....      |  ....      |     ]
        ...

    n captions of equal length L are n L adjacent rows, so `view(n, L, I, R)` is a dense block of
    them without a copy. Blocks are cut to `CELLS_IN_CACHE` affinities, so that softmax, reductions
    and Gram products of one block run in the cache.

Never materialised: attended vectors (I, T, L, D), in either direction; padded words; and, saved
for the gradient, any attention weights. Only inputs and the affinity matrix are saved, and the
weights are computed again, block by block.

The gradient is exact because the forward pass is ordinary differentiable algebra in two inputs,
affinity S = X Y^T and Gram matrices. `AttentionHead.derivative` gives d S and d G in closed form;
then d X = d S Y and d Y = d S^T X, two more products of the size of the first. The Gram matrices
are inputs here, so autograd carries d G to the vectors. Where a loss looks at few pairs (the
hardest negatives), d S is zero elsewhere and only those pairs are visited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from counterfoil.core.types import Embeddings, Pairs
from counterfoil.models.layers.cross_attention import (
    AttentionBlock,
    AttentionHead,
    CrossAttention,
    LengthRun,
    PackedTexts,
)
from counterfoil.models.layers.pooling import full_precision, squared_norms

CELLS_IN_CACHE = 1 << 20  # affinities of one block
PAIRS_AT_ONCE = 512  # in the sparse gradient
SPARSE = 0.15  # if fewer pairs than this share have a gradient, only they are visited


@final
@dataclass(frozen=True, slots=True)
class FusedPlan:
    """The settings of one fused call."""

    heads: tuple[AttentionHead, ...]  # attention heads, all of which read the same affinities
    runs: tuple[LengthRun, ...]  # captions by length
    mask: Tensor | None  # (I, R) bool, or None when all regions are real
    dtype: torch.dtype  # of the large products; all else has at least single precision

    def split(self, flat: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        """Group a flat tuple of all heads' results by head."""
        ends = list(accumulate((head.results for head in self.heads), initial=0))
        return [flat[a:b] for a, b in pairwise(ends)]

    def blocks(self, affinity: Tensor, regions: int) -> Iterator[tuple[LengthRun, Tensor]]:
        """Yield views (n, L, I, R) of the affinity (W, I R) that fit in the cache."""
        for run in self.runs:
            for cut in run.cut(CELLS_IN_CACHE // max(1, affinity.shape[1])):
                block = affinity[cut.words].view(cut.n, cut.length, -1, regions)
                yield cut, block

    def block(
        self, head: AttentionHead, run: LengthRun, affinity: Tensor, grams: GramMatrices
    ) -> AttentionBlock:
        """Combine a view of the affinity with the Gram matrices and mask that the head reads."""
        mask = None if self.mask is None else self.mask[None, None]  # (1, 1, I, R)
        return AttentionBlock(affinity, grams.of(head, run), None, mask)


@final
@dataclass(frozen=True, slots=True)
class GramMatrices:
    """Gram matrices (I, R, R) of regions and (T, L, L) of words, or their gradients."""

    regions: Tensor | None
    words: Tensor | None

    def of(self, head: AttentionHead, run: LengthRun) -> Tensor | None:
        """Return a view of those of the head's context in a run; None if it reads none."""
        if not head.grams:
            return None
        if head.direction == "t2i":
            return self.regions
        assert self.words is not None
        return self.words[run.captions, : run.length, : run.length]

    def zeros(self) -> GramMatrices:
        """Return zeros of the same shapes, to accumulate gradients in."""
        zeros = (None if g is None else torch.zeros_like(g) for g in (self.regions, self.words))
        return GramMatrices(*zeros)


def _result_rows(head: AttentionHead, run: LengthRun) -> slice:
    """Rows of a head's results that belong to a run: words for t2i, captions for i2t."""
    return run.words if head.direction == "t2i" else run.captions


def _query_block(head: AttentionHead, view: Tensor, rows: Tensor) -> Tensor:
    """View rows of a head's results as a block without its context axis."""
    n, words, images, regions = view.shape
    return rows.view(n, words, images) if head.direction == "t2i" else rows.view(n, images, regions)


@final
class FusedAttention(torch.autograd.Function):
    """Apply heads to words (W, D), regions (I, R, D) and Gram matrices."""

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
            flat = regions.flatten(0, 1).to(plan.dtype)  # (I R, D)
            affinity = full_precision(words.to(plan.dtype) @ flat.T)  # (W, I R), the one product
            results = [
                _empty_results(plan, head, affinity, (images, per_image)) for head in plan.heads
            ]
            for run, view in plan.blocks(affinity, per_image):
                # all heads read a block while it is in the cache
                for head, tensors in zip(plan.heads, results, strict=True):
                    parts = head.attend(plan.block(head, run, view, grams))
                    for tensor, part in zip(tensors, parts, strict=True):
                        tensor[_result_rows(head, run)] = part.view(-1, *tensor.shape[1:])
        ctx.plan = plan
        ctx.save_for_backward(words, regions, region_gram, word_gram, affinity)
        fixed = (tensors[head.learnt :] for head, tensors in zip(plan.heads, results, strict=True))
        ctx.mark_non_differentiable(*(tensor for tensors in fixed for tensor in tensors))
        return tuple(tensor for tensors in results for tensor in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        words, regions, region_gram, word_gram, affinity = ctx.saved_tensors
        by_head = zip(ctx.plan.heads, ctx.plan.split(grads), strict=True)
        d_results = [tensors[: head.learnt] for head, tensors in by_head]
        gradient = FusedGradient(
            ctx.plan, words, regions, affinity, GramMatrices(region_gram, word_gram), d_results
        )
        with torch.autocast(words.device.type, enabled=False):
            # a loss on hardest negatives reads a few pairs of each row: where most gradients are
            # zero, single pairs are cheaper, though they leave the one product of the whole block
            pairs = gradient.nonzero_pairs()
            sparse = int(pairs.sum()) < SPARSE * pairs.numel()
            d_words, d_regions, grams = gradient.sparse(pairs) if sparse else gradient.dense()
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
    """The backward pass of `FusedAttention`."""

    plan: FusedPlan  # as in the forward pass
    words: Tensor  # (W, D)
    regions: Tensor  # (I, R, D)
    affinity: Tensor  # (W, I R), saved by the forward pass
    grams: GramMatrices  # Gram matrices
    d_results: list[tuple[Tensor, ...]]  # gradients of the results of each head that have one

    def nonzero_pairs(self) -> Tensor:
        """(T, I) bool, True at pairs of a caption and an image with a gradient."""
        rows = []
        for run in self.plan.runs:
            any_head = torch.zeros(1, dtype=torch.bool, device=self.words.device)
            for head, grads in zip(self.plan.heads, self.d_results, strict=True):
                for nonzero in (grad[_result_rows(head, run)] != 0 for grad in grads):
                    if head.direction == "t2i":  # (n L, I): any word of the caption
                        pairs = nonzero.view(run.n, run.length, -1).any(1)
                    else:  # (n, I, R): any region of the image
                        pairs = nonzero.any(2)
                    any_head = any_head | pairs
            rows.append(any_head)
        return torch.cat(rows)

    def dense(self) -> tuple[Tensor, Tensor, GramMatrices]:
        """Return gradients of words, regions and Gram matrices; visits every block."""
        plan, d_grams = self.plan, self.grams.zeros()
        d_affinity = torch.empty_like(self.affinity)
        for run, view in plan.blocks(self.affinity, self.regions.shape[1]):
            total: Tensor | None = None
            for head, grads in zip(plan.heads, self.d_results, strict=True):
                rows = (_query_block(head, view, grad[_result_rows(head, run)]) for grad in grads)
                block = plan.block(head, run, view, self.grams)
                d_block, d_gram = head.derivative(block, *rows)
                if d_gram is not None and (sum_of_grams := d_grams.of(head, run)) is not None:
                    sum_of_grams.add_(d_gram)
                total = d_block if total is None else total.add_(d_block)
            assert total is not None
            d_affinity[run.words] = total.flatten(0, 1).flatten(1)  # (n, L, I, R) -> (n L, I R)
        # the heads share one affinity, so their gradients have been added, and two products follow;
        # S = X Y^T: d X = d S Y, d Y = d S^T X
        low = d_affinity.to(plan.dtype)
        flat = self.regions.flatten(0, 1).to(plan.dtype)
        d_words = (low @ flat).to(self.words.dtype)
        d_regions = (low.T @ self.words.to(plan.dtype)).view_as(self.regions)
        return d_words, d_regions.to(self.regions.dtype), d_grams

    def sparse(self, pairs: Tensor) -> tuple[Tensor, Tensor, GramMatrices]:
        """Return the same as `dense`; visits only these pairs (T, I)."""
        d_words, d_regions = torch.zeros_like(self.words), torch.zeros_like(self.regions)
        d_grams = self.grams.zeros()
        for run in self.plan.runs:
            rows = pairs[run.captions].nonzero()
            if not len(rows):
                continue
            words = self.words[run.words].view(run.n, run.length, -1)
            d_run = d_words[run.words].view_as(words)  # a view: adding to it writes d_words
            for caption, image in (part.unbind(1) for part in torch.split(rows, PAIRS_AT_ONCE)):
                d_affinity = self._pair_gradient(run, caption, image, d_grams).to(self.plan.dtype)
                regions = self.regions[image].to(self.plan.dtype)
                # captions and images repeat among the pairs, so gradients are added by index
                d_run.index_add_(0, caption, torch.bmm(d_affinity, regions).to(d_run.dtype))
                part = torch.bmm(d_affinity.mT, words[caption].to(self.plan.dtype))
                d_regions.index_add_(0, image, part.to(d_regions.dtype))
        return d_words, d_regions, d_grams

    def _pair_gradient(
        self, run: LengthRun, caption: Tensor, image: Tensor, d_grams: GramMatrices
    ) -> Tensor:
        """Return the gradient (P, L, R) of the affinities of P pairs, and add to `d_grams`."""
        images, regions = self.regions.shape[:2]
        view = self.affinity[run.words].view(run.n, run.length, images, regions)
        pairs = view[caption, :, image]  # (P, L, R)
        mask = None if self.plan.mask is None else self.plan.mask[image]
        total = torch.zeros_like(pairs)
        for head, grads in zip(self.plan.heads, self.d_results, strict=True):
            gram, sum_of_grams = self.grams.of(head, run), d_grams.of(head, run)
            if head.direction == "t2i":
                context = image
                by_word = (g[run.words].view(run.n, run.length, -1) for g in grads)
                rows = [rows[caption, :, image].T[None] for rows in by_word]
            else:
                context = caption
                rows = [g[run.captions][caption, image][:, None] for g in grads]
            block = _pairs_as_block(
                head, pairs, None if gram is None else gram[context], None, mask
            )
            d_block, d_gram = head.derivative(block, *rows)
            total += _block_as_pairs(head, d_block)
            if sum_of_grams is not None and d_gram is not None:
                sum_of_grams.index_add_(0, context, d_gram)
        return total


def _pairs_as_block(
    head: AttentionHead,
    affinity: Tensor,
    gram: Tensor | None,
    words: Tensor | None,
    regions: Tensor | None,
) -> AttentionBlock:
    """View the affinities (P, L, R) of P pairs as one block, with masks (P, L) and (P, R).

    Each pair has a context of its own, so the pairs take the axis along which the Gram matrices
    are numbered: the images' for t2i, (1, L, P, R), and the captions' for i2t, (P, L, 1, R).
    """
    if head.direction == "t2i":
        return AttentionBlock(
            affinity.transpose(0, 1)[None],
            gram,
            None if words is None else words.T[None, :, :, None],
            None if regions is None else regions[None, None],
        )
    return AttentionBlock(
        affinity[:, :, None],
        gram,
        None if words is None else words[:, :, None, None],
        None if regions is None else regions[:, None, None],
    )


def _block_as_pairs(head: AttentionHead, block: Tensor) -> Tensor:
    """Return (P, L, R) from a block of `_pairs_as_block`."""
    return block[0].transpose(0, 1) if head.direction == "t2i" else block[:, :, 0]


# Preparation of the inputs, and the two entries: all with all, and aligned pairs.


def prepare_context(items: Embeddings, *, gram: bool = True) -> Embeddings:
    """Set padding to zero, and add Gram matrices if `gram` is set."""
    tokens, products, mask = items.tokens, items.gram, items.mask
    no_padding = bool(mask.all())
    if not no_padding:
        tokens = tokens.masked_fill(~mask.unsqueeze(-1), 0)
    if not gram:
        products = None
    elif products is None:
        products = gram_matrices(tokens)
    elif not no_padding:
        products = products.masked_fill(~(mask.unsqueeze(1) & mask.unsqueeze(2)), 0)
    return Embeddings(tokens, mask, products)


def gram_matrices(tokens: Tensor) -> Tensor:
    """Return (N, L, L) inner products of each item's own vectors, never in half precision."""
    with torch.autocast(tokens.device.type, enabled=False):
        gram: Tensor = _Gram.apply(full_precision(tokens))  # type: ignore[no-untyped-call]
        return gram


@final
class _Gram(torch.autograd.Function):
    """G = X X^T, whose gradient is one product, d X = (d G + d G^T) X, where `bmm` takes two."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(vectors)
        return torch.bmm(vectors, vectors.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (vectors,) = ctx.saved_tensors
        with torch.autocast(vectors.device.type, enabled=False):
            return torch.bmm(grad + grad.mT, vectors)


def _word_grams(texts: PackedTexts) -> Tensor:
    """Return (T, L, L) inner products of each text's own words, zero behind its last word."""
    longest = max(texts.lengths, default=0)
    grams = [gram_matrices(block) for block in texts.split(texts.words)]
    return torch.cat([pad(g, (0, longest - g.shape[1]) * 2) for g in grams])


def squared_lengths(items: Embeddings) -> Tensor:
    """Return (N, L) squared lengths of the vectors, from the Gram matrices if there are any."""
    if items.gram is None:
        return squared_norms(items.tokens)
    return items.gram.diagonal(dim1=1, dim2=2)


def region_mask(images: Embeddings | AttentionSide) -> Tensor | None:
    """Return the mask of the regions, or None when all are real."""
    return None if bool(images.mask.all()) else images.mask


def apply_heads(
    images: Embeddings, texts: PackedTexts, heads: tuple[AttentionHead, ...]
) -> tuple[tuple[Tensor, ...], ...]:
    """Apply attention heads to every image with every caption, in one product.

    Returns:
        The results of each head: (W, I) when words attend, (T, I, R) when regions do.
    """
    device, dtype = images.tokens.device.type, images.tokens.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    _, by_regions = needed_grams(heads)
    word_gram = _word_grams(texts) if by_regions else None
    plan = FusedPlan(heads, tuple(texts.runs()), region_mask(images), dtype)
    results = FusedAttention.apply(  # type: ignore[no-untyped-call]
        plan, texts.words, images.tokens, images.gram, word_gram
    )
    return tuple(plan.split(results))


def needed_grams(heads: tuple[AttentionHead, ...]) -> tuple[bool, bool]:
    """Return whether heads read the Gram matrices of regions, and those of words."""
    directions = {head.direction for head in heads if head.grams}
    return "t2i" in directions, "i2t" in directions


def align_pairs(
    heads: tuple[AttentionHead, ...], images: Embeddings, texts: Embeddings
) -> AlignedPairs:
    """Compute the affinities of P images with P texts, as these heads read them."""
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
    """One modality of P pairs, without its vectors."""

    mask: Tensor  # (P, L) bool, True where a vector is real
    square: Tensor | None  # (P, L) squared lengths of vectors that attend
    gram: Tensor | None  # (P, L, L) inner products of vectors that are attended to


@final
@dataclass(frozen=True, slots=True)
class AlignedPairs:
    """The affinities of P images with P texts, from which heads compute scores."""

    affinity: Tensor  # (P, L, R) inner products of words and regions, 0 at padding
    images: AttentionSide  # masks, lengths and Gram matrices of regions
    texts: AttentionSide  # the same of words

    def queries(self, head: AttentionHead) -> AttentionSide:
        """Return the side that attends."""
        return self.texts if head.direction == "t2i" else self.images

    def block(self, head: AttentionHead) -> AttentionBlock:
        """View the pairs as one block that the head can attend to."""
        gram = self.images.gram if head.direction == "t2i" else self.texts.gram
        return _pairs_as_block(head, self.affinity, gram, self.texts.mask, region_mask(self.images))

    def attend(self, head: AttentionHead) -> tuple[Tensor, ...]:
        """Return the head's results: (P, L) for words, or (P, R) for regions."""
        results = head.attend(self.block(head))
        if head.direction == "t2i":
            return tuple(result[0].T for result in results)
        return tuple(result[:, 0] for result in results)

    def weights(self, head: CrossAttention) -> Tensor:
        """Return the attention (P, L, R)."""
        return _block_as_pairs(head, head.weights(self.block(head)))


# Pairs listed by their rows in two pools, as in training on negatives.
#
# An image occurs in many pairs. Gathering both sides of all pairs, as `align_pairs` needs it, costs
# more than their scores. So on the CPU each pair is multiplied in place, one small product after
# another, in the order of the images: an image's regions are in the cache for all its pairs, and
# only the pools are saved for the gradient. On a GPU so many small products would be slower than
# the copies, so there `align_pairs` is used.


def align_listed(
    heads: tuple[AttentionHead, ...], images: Embeddings, texts: Embeddings, pairs: Pairs
) -> AlignedPairs:
    """Compute the affinities of listed pairs of rows; equal to `align_pairs` of those rows."""
    device = images.tokens.device
    by_words, by_regions = needed_grams(heads)
    images, pairs = prepare_context(images, gram=by_words), pairs.to(device)
    image, text = pairs.image, pairs.text
    if device.type != "cpu":
        return align_pairs(heads, images.rows(image), texts.rows(text))
    # a product reads each text up to its last real word, so only padding before it must be zero
    if bool((texts.mask[:, 1:] > texts.mask[:, :-1]).any()):
        texts = prepare_context(texts, gram=False)
    affinity, region_squares, word_products = ListedProducts.apply(  # type: ignore[no-untyped-call]
        _listed_plan(images, texts, pairs, (by_words, by_regions)), images.tokens, texts.tokens
    )
    word_products = word_products.index_select(0, text)
    if by_regions:  # (P, L, L) Gram matrices, with the squared lengths on the diagonal
        word_squares = word_products.diagonal(dim1=1, dim2=2)
    else:  # (P, L) squared lengths
        word_squares = word_products if by_words else None
    return AlignedPairs(
        affinity,
        AttentionSide(
            images.mask[image],
            region_squares.index_select(0, image) if by_regions else None,
            None if images.gram is None else images.gram.index_select(0, image),
        ),
        AttentionSide(texts.mask[text], word_squares, word_products if by_regions else None),
    )


@final
@dataclass(frozen=True, slots=True)
class ListedPlan:
    """The settings of `ListedProducts`."""

    pairs: Pairs  # rows of the pools
    lengths: Tensor  # (T,) length of each text up to its last real word
    by_words: bool  # words attend, so their squared lengths are needed
    by_regions: bool  # regions attend, so theirs are needed, and the texts' Gram matrices
    dtype: torch.dtype  # of the affinities; all else has at least single precision

    def visits(self) -> Iterator[tuple[int, int, int, bool, bool]]:
        """Yield, image after image, each pair's index, image and text, and if these are new."""
        order = self.pairs.image.argsort(stable=True)
        rows = (order, self.pairs.image[order], self.pairs.text[order])
        images, texts = set[int](), set[int]()
        for index, image, text in zip(*(x.tolist() for x in rows), strict=True):
            yield index, image, text, image not in images, text not in texts
            images.add(image)
            texts.add(text)

    def words(self, items: Tensor, texts: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return views of the words of each text of the pool, or of `texts`, without padding."""
        lengths = self.lengths if texts is None else self.lengths[texts]
        # split into words, padding, words, padding, ...: every other part
        sizes = torch.stack([lengths, items.shape[1] - lengths], 1).flatten()
        return torch.split(items.flatten(0, 1), sizes.tolist())[::2]


def _listed_plan(
    images: Embeddings, texts: Embeddings, pairs: Pairs, by: tuple[bool, bool]
) -> ListedPlan:
    autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if autocast else images.tokens.dtype
    position = torch.arange(1, texts.mask.shape[1] + 1)
    return ListedPlan(pairs, (texts.mask * position).amax(1), *by, dtype)


@final
class ListedProducts(torch.autograd.Function):
    """Affinities of listed pairs, and squared lengths or Gram matrices of the pools.

    Returns affinities (P, L, R), squared lengths of regions (I, R), and squared lengths (T, L) or
    Gram matrices (T, L, L) of words. Items that occur in no pair get 0.
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
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        images, texts = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            d_images, d_texts = _listed_backward(
                ctx.plan, full_precision(images), full_precision(texts), *grads
            )
        return None, d_images.to(images.dtype), d_texts.to(texts.dtype)


def _listed_forward(
    plan: ListedPlan, images: Tensor, texts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    # tensors for the results, then views into them: every product is written where it belongs
    affinity = torch.zeros(len(plan.pairs.image), texts.shape[1], images.shape[1], dtype=plan.dtype)
    region_lengths = full_precision(images).new_zeros(images.shape[:2])
    word_products = full_precision(texts).new_zeros(
        *texts.shape[:2], *(texts.shape[1:2] if plan.by_regions else ())
    )
    pair_affinity = plan.words(affinity, plan.pairs.text)
    low_words, low_regions = plan.words(texts.to(plan.dtype)), images.to(plan.dtype).mT.unbind()
    same_dtype = plan.dtype == full_precision(texts).dtype
    words = low_words if same_dtype else plan.words(full_precision(texts))
    regions, lengths = (
        x.unbind() if plan.by_regions else () for x in (full_precision(images), region_lengths)
    )
    products = plan.words(word_products) if plan.by_regions or plan.by_words else ()
    for index, image, text, new_image, new_text in plan.visits():
        # an item's own lengths are computed right before its first product, which reads the same
        # vectors again, from the cache
        if new_image and plan.by_regions:
            torch.linalg.vector_norm(regions[image], dim=1, out=lengths[image])
        if new_text and plan.by_regions:
            torch.mm(words[text], words[text].T, out=products[text][:, : len(words[text])])
        elif new_text and plan.by_words:
            torch.linalg.vector_norm(words[text], dim=1, out=products[text])
        torch.mm(low_words[text], low_regions[image], out=pair_affinity[index])
    return (
        full_precision(affinity),
        region_lengths.square_(),
        word_products if plan.by_regions else word_products.square_(),
    )


def _listed_backward(
    plan: ListedPlan,
    images: Tensor,
    texts: Tensor,
    d_affinity: Tensor,
    d_region_squares: Tensor,
    d_word_products: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return gradients of the pools, visiting pairs in the same order as the forward pass."""
    # x.new_zeros(x.shape) is contiguous whatever the layout of x, as `plan.words` needs it
    d_images, d_texts = (x.new_zeros(x.shape) for x in (images, texts))
    words, d_words = plan.words(texts), plan.words(d_texts)
    regions, d_regions = images.unbind(), d_images.unbind()
    d_pairs = plan.words(d_affinity, plan.pairs.text)
    # d |v|^2 = 2 v; and for G = X X^T, d X = (d G + d G^T) X
    region_factors = (2 * d_region_squares).unsqueeze(2).unbind()
    word_factors = plan.words(
        d_word_products + d_word_products.mT
        if plan.by_regions
        else 2 * d_word_products.unsqueeze(2)
    )
    for index, image, text, new_image, new_text in plan.visits():
        _add_product(d_words[text], d_pairs[index], regions[image], first=new_text)
        _add_product(d_regions[image], d_pairs[index].T, words[text], first=new_image)
        if new_image and plan.by_regions:
            d_regions[image].addcmul_(regions[image], region_factors[image])
        if new_text and plan.by_regions:
            d_words[text].addmm_(word_factors[text][:, : len(words[text])], words[text])
        elif new_text and plan.by_words:
            d_words[text].addcmul_(words[text], word_factors[text])
    return d_images, d_texts


def _add_product(total: Tensor, left: Tensor, right: Tensor, *, first: bool) -> None:
    """Add a product in place; the first one overwrites zeros, which saves reading them."""
    if first:
        torch.mm(left, right, out=total)
    else:
        total.addmm_(left, right)
