"""Cross-modal attention (SCAN, BFAN) computed exactly, without ever forming an attended vector.

A query q attends to context vectors c_k with weights p_k, and the score needs the cosine of q and
the attended vector a = sum_k p_k c_k. Written out, that is an (I, T, L, D) tensor: every word, with
every image, gets a vector of its own. But the cosine needs only two numbers of a:

    q . a   = sum_k p_k (q . c_k)         q . c_k is an entry of the raw product words x regions
    |a|^2   = p^T G p,  G_jk = c_j . c_k  one Gram matrix per context item, shared by all queries

So one product of words and regions gives the affinities, from which the weights p are made, and
both numbers follow by reductions over the context axis. This is algebra, not an approximation.
The cosine does not change when p is scaled, so the softmax is never divided by its sum either.

Both directions read the same block of affinities:

                           regions R of image i
                         +---------------------+
        words L of       |                     |   t2i: a word attends along a row    (query L,
        caption t        |   affinity[t, :, i] |        context R, G is the image's R x R)
                         |       (L, R)        |   i2t: a region attends down a column (query R,
                         +---------------------+        context L, G is the caption's L x L)

Axes of a block are always (n, L, I, R): n captions of the same length of L words, I images of R
regions. `CrossAttention.query` and `.context` are the axes 1 and 3, or the reverse. What comes out
has the shape of the block without its context axis: (n, L, I) for words, (n, I, R) for regions.

`counterfoil.models.layers.fused` applies these heads to all images with all captions, to aligned
pairs, and to listed pairs, and holds the gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple, Protocol, final

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from counterfoil.core.types import Embeddings
from counterfoil.gpu import Pooling
from counterfoil.models.layers.pooling import full_precision

Direction = Literal["t2i", "i2t"]


@final
@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """Affinities of n captions of L words with I images of R regions."""

    affinity: Tensor  # (n, L, I, R) inner products; 0 at padding
    # of the context vectors: (I, R, R) when words attend, (n, L, L) when regions do; None for a
    # head that does not read it
    gram: Tensor | None = None
    # (n, L, I, 1)-broadcastable bool, True where a word is real; None when all are
    words: Tensor | None = None
    # (1, 1, I, R) bool, True where a region is real; None when all are
    regions: Tensor | None = None


def padding_bias(mask: Tensor) -> Tensor:
    """Return 0 where a vector is real and -inf at padding, in float32.

    Adding it is several times as fast as `masked_fill`, whose branch the CPU cannot predict.
    """
    return mask.float().log()


def where_positive(condition: Tensor, values: Tensor) -> Tensor:
    """Return the values where the condition, which has no gradient, is above 0, and 0 elsewhere.

    Several times as fast as `masked_fill` too.
    """
    chosen: Tensor = torch.ops.aten.threshold_backward(values, condition, 0.0)
    return chosen


class AttentionHead(Protocol):
    """An attention of one modality's vectors (queries) to the other's (context)."""

    results: ClassVar[int]  # number of tensors that `attend` returns
    learnt: ClassVar[int]  # number of those, from the first on, that have a gradient
    grams: ClassVar[bool]  # whether the Gram matrices of the context are read

    @property
    def direction(self) -> Direction:
        """Words attend to regions ("t2i") or regions to words ("i2t")."""

    def attend(self, block: AttentionBlock) -> tuple[Tensor, ...]:
        """Return `results` tensors, in the block's shape without its context axis."""

    def derivative(self, block: AttentionBlock, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return gradients of affinity and Gram matrix, given those of the `learnt` results."""


# Focal attention (BFAN): drop the context that a query attends to less than to the rest.


Rule = Literal["equal", "prob"]
Focus = Rule | Literal["none"]
ROUNDINGS = 64  # a weight this few roundings below the bar counts as above it


def focal_weights(focus: Focus, weight: Tensor, context: int, mask: Tensor | None) -> Tensor:
    """Set the weights that focal attention drops to 0 (BFAN, ACM MM 2019).

    "equal" keeps what is above the mean; "prob" keeps k where sum_j (w_k - w_j) sqrt(w_j) > 0,
    which is w_k > sum_j w_j^1.5 / sum_j sqrt(w_j). Neither depends on the scale of the weights,
    and the choice is not differentiated.

    Departs from the authors' code in: the largest weight is always kept, so a uniform context
    stays uniform instead of giving NaN.

    Args:
        focus: the rule.
        weight: not negative, 0 at padding.
        context: axis of the context.
        mask: bool, broadcastable, True where the context is real; None when all of it is.
    """
    if focus == "none":
        return weight
    with torch.no_grad():
        if focus == "prob":  # the mean of the weights w, each weighted by sqrt(w)
            root = weight.sqrt()
            share = root.sum(context, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
            bar = root.mul_(weight).sum(context, keepdim=True) / share
        elif mask is None:
            bar = weight.mean(context, keepdim=True)
        else:
            real = mask.sum(context, keepdim=True).clamp(min=1)
            bar = weight.sum(context, keepdim=True) / real
        above = weight - bar * (1 - ROUNDINGS * torch.finfo(weight.dtype).eps)
    return where_positive(above, weight)


# Captions packed without padding, and tiles of images x captions that fit in memory.


IMAGES_AT_ONCE = 128
CELLS_AT_ONCE = 1 << 24  # affinities in one product: 64 MB of float32


@final
@dataclass(frozen=True, slots=True)
class LengthRun:
    """A run of n consecutive packed captions of equal length L.

    Their words are rows of one matrix (W, D), so the run is a view (n, L, D), without a copy.
    """

    word: int
    caption: int
    n: int
    length: int

    @property
    def words(self) -> slice:
        """Rows of the words of these captions."""
        return slice(self.word, self.word + self.n * self.length)

    @property
    def captions(self) -> slice:
        """Indices of these captions."""
        return slice(self.caption, self.caption + self.n)

    def cut(self, words: int) -> list[LengthRun]:
        """Split into runs of at most `words` words, but at least one caption each."""
        step = max(1, words // self.length)
        return [
            LengthRun(
                self.word + c * self.length, self.caption + c, min(step, self.n - c), self.length
            )
            for c in range(0, self.n, step)
        ]


@final
@dataclass(frozen=True, slots=True)
class PackedTexts:
    """Captions without padding, sorted by length so that equal lengths are adjacent."""

    words: Tensor  # (W, D) real words of all captions, caption after caption
    lengths: tuple[int, ...]  # words of each caption, ascending

    def runs(self) -> list[LengthRun]:
        """Return the runs of captions of equal length."""
        runs: list[LengthRun] = []
        word = 0
        for caption, length in enumerate(self.lengths):
            if runs and runs[-1].length == length:
                last = runs[-1]
                runs[-1] = LengthRun(last.word, last.caption, last.n + 1, length)
            else:
                runs.append(LengthRun(word, caption, 1, length))
            word += length
        return runs

    def split(self, rows: Tensor) -> list[Tensor]:
        """Split (W, K), a row for each word, into views (n, L, K), one for each run."""
        runs = self.runs()
        # one split, not a slice for each run: the gradient of every slice would fill all rows
        blocks = torch.split(rows, [run.n * run.length for run in runs])
        return [block.view(run.n, run.length, -1) for run, block in zip(runs, blocks, strict=True)]

    def reduce_words(self, rows: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
        """Reduce a number per word and image to one per caption and image: (W, I) to (T, I)."""
        return torch.cat([reduce(block) for block in self.split(rows)])

    def parts(self, words: int) -> list[PackedTexts]:
        """Split into parts of at most `words` words, but at least one caption each."""
        cuts, total = [0], 0
        for caption, length in enumerate(self.lengths):
            if total + length > words and caption > cuts[-1]:
                cuts.append(caption)
                total = 0
            total += length
        return [self._part(a, b) for a, b in pairwise([*cuts, len(self.lengths)])]

    def _part(self, start: int, stop: int) -> PackedTexts:
        first = sum(self.lengths[:start])
        lengths = self.lengths[start:stop]
        return PackedTexts(self.words[first : first + sum(lengths)], lengths)


def pack_texts(texts: Embeddings) -> tuple[PackedTexts, Tensor]:
    """Pack texts without padding; the second result (T,) is the original row of each packed one."""
    counts = texts.mask.sum(1)
    order = counts.argsort(stable=True)
    text, position = texts.mask[order].nonzero().unbind(1)
    # one gather of the real words: one for the order and one for the mask copies them twice
    words = texts.tokens.flatten(0, 1).index_select(
        0, order[text] * texts.tokens.shape[1] + position
    )
    return PackedTexts(words, tuple(counts[order].tolist())), order


def score_tiles(
    images: Embeddings, texts: Embeddings, score: Callable[[Embeddings, PackedTexts], Tensor]
) -> Tensor:
    """Score all images with all texts, tile by tile.

    Returns:
        (I, T) scores.

    Raises:
        ValueError: a text has no words.
    """
    packed, order = pack_texts(texts)
    if packed.lengths and not packed.lengths[0]:
        raise no_words(int(order[0]))
    if not (len(images) and packed.lengths):
        return full_precision(images.tokens).new_zeros(len(images), len(order))
    cells = max(1, min(len(images), IMAGES_AT_ONCE) * images.tokens.shape[1])
    image_parts = [images]  # not a slice of all, whose gradient is copied into zeros
    if len(images) > IMAGES_AT_ONCE:
        starts = range(0, len(images), IMAGES_AT_ONCE)
        image_parts = [images.rows(slice(first, first + IMAGES_AT_ONCE)) for first in starts]
    columns = [
        torch.cat([score(rows, part) for rows in image_parts], 1)
        for part in packed.parts(max(1, CELLS_AT_ONCE // cells))
    ]
    # captions were sorted by length: the inverse permutation brings them back in order
    return torch.cat(columns).T[:, order.argsort()]


def no_words(text: int) -> ValueError:
    """Return the error for a text without words."""
    return ValueError(f"text {text} has no words; leave empty texts out")


# The attention itself, and its derivative. See the head of this file.


RawNorm = Literal["clipped_l2norm", "l2norm", "softmax", "clipped", "no_norm"]
EPS = 1e-8
SLOPE = 0.1
SAFE_EXPONENT = 20.0


@final
class AttendedProducts(NamedTuple):
    """The numbers that a cosine needs of an attended vector a = sum_k p_k c_k.

    The weights p are not normalised; all three numbers are relative to their scale, which cancels
    in the cosine. Shapes are the block's without its context axis: (n, L, I) or (n, I, R).
    """

    dot: Tensor  # q . a
    square: Tensor  # |a|^2; rounding may take it below 0
    mass: Tensor  # sum of the weights

    def cosine(self, query: Tensor) -> Tensor:
        """Return the cosine for queries of these squared lengths; 0 where a vector is zero."""
        # |q|^2 |a|^2 is compared with EPS^2 at the scale of the weights: at p / mass, the true
        # softmax, this is max(|q| |a|, EPS). `mass` only sets this floor, so it needs no gradient.
        floor = (EPS * self.mass.detach()).square() + torch.finfo(self.dot.dtype).tiny
        return self.dot * torch.maximum(self.square * query, floor).rsqrt()


@final
@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Stacked cross attention (SCAN, ECCV 2018, eq. 2-4 and 8) and its derivative.

    With affinity s, Gram matrix G and the softmax's input x = f(s), where f is `raw_norm`:

        p      = exp(sharpness * x)         relative weights, over the context axis
        dot    = sum_k p_k s_k
        square = sum_k p_k (G p)_k

    Departs from the authors' code in: shapes are kept with one image, one word or one region.
    """

    results: ClassVar[int] = 3
    learnt: ClassVar[int] = 2
    grams: ClassVar[bool] = True

    direction: Direction  # "t2i": words attend to regions; "i2t": regions attend to words
    # normalisation of the affinities before the softmax. "l2norm" and "softmax" run over the
    # queries; "clipped" is a leaky ReLU (the paper has a plain one)
    raw_norm: RawNorm
    # inverse temperature of the softmax over the context; `FusedAttention` takes a number only, as
    # it has no gradient of it
    sharpness: float | Tensor
    focus: Focus = "none"  # which weights focal attention keeps, see `focal_weights`

    @property
    def query(self) -> int:
        """Axis of the queries in a block."""
        return 1 if self.direction == "t2i" else 3

    @property
    def context(self) -> int:
        """Axis of the context in a block."""
        return 3 if self.direction == "t2i" else 1

    def attend(self, block: AttentionBlock) -> AttendedProducts:
        """Return dot, square and mass of every attended vector; differentiable."""
        weight = self._relative_weights(block, *self._softmax_input(block))
        return AttendedProducts(
            (weight * block.affinity).sum(self.context),
            (weight * self._gram_product(block.gram, weight)).sum(self.context),
            weight.sum(self.context),
        )

    def weights(self, block: AttentionBlock) -> Tensor:
        """Return (n, L, I, R) attention; it sums to 1 over the context, to 0 over an empty one."""
        weight = self._relative_weights(block, *self._softmax_input(block))
        total = weight.sum(self.context, keepdim=True)
        return weight / total.clamp(min=torch.finfo(weight.dtype).tiny)

    def derivative(self, block: AttentionBlock, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of the affinity and of the Gram matrix, in closed form.

        With a = d loss / d dot and b = d loss / d square, one of each per query:

            d s_k  = a p_k + f'(d x)_k       directly, and through the weights
            d x_k  = sharpness * p_k * (a s_k + 2 b (G p)_k)        as d p_k / d x_k = sharpness p_k
            d G_jk = b p_j p_k, summed over the queries

        There is no softmax Jacobian, because p is not normalised: each p_k depends on x_k alone.
        Shifting x by its maximum scales p and so changes nothing that is differentiated.

        Args:
            block: the block that was attended to.
            grads: gradients of `AttendedProducts.dot` and `AttendedProducts.square`.
        """
        d_dot, d_square = (grad.unsqueeze(self.context) for grad in grads)
        x, inverse = self._softmax_input(block)
        weight = self._relative_weights(block, x, inverse)
        direct, by_square = weight * d_dot, weight * d_square
        # direct * s + 2 (p b) (G p); in place, as memory that is new costs as much as the sums
        d_x = direct * block.affinity
        d_x.addcmul_(by_square, self._gram_product(block.gram, weight), value=2)
        through = self._softmax_input_grad(block.affinity, x, inverse, d_x)
        return direct.add_(through), self._gram_grad(by_square, weight)

    def _softmax_input(self, block: AttentionBlock) -> tuple[Tensor, Tensor | None]:
        """Return x = f(s), but for the division by "l2norm", and the inverse lengths for that."""
        x = block.affinity
        if self.raw_norm == "softmax":
            mask = block.words if self.direction == "t2i" else block.regions
            if mask is not None:
                x = x.masked_fill(~mask, torch.finfo(x.dtype).min)
            return x.softmax(self.query), None
        if self.raw_norm.startswith("clipped"):
            x = leaky_relu(x, SLOPE)
        if not self.raw_norm.endswith("l2norm"):
            return x, None
        tiny = torch.finfo(x.dtype).tiny
        # padded queries have affinity 0 and add nothing to the length, so no mask is needed
        return x, 1 / (x.square().sum(self.query, keepdim=True).clamp(min=tiny).sqrt() + EPS)

    def _softmax_input_grad(
        self, affinity: Tensor, x: Tensor, inverse: Tensor | None, d_x: Tensor
    ) -> Tensor:
        """Return the gradient of the affinity from that of the exponent; overwrites `d_x`."""
        d_x.mul_(self._scale(inverse))
        if self.raw_norm == "softmax":
            return x * (d_x - (d_x * x).sum(self.query, keepdim=True))
        if inverse is not None:
            # y = v / (|v| + EPS):  d v = d - v (d . v) / (|v| + EPS) / |v|  with  d = d_y inverse
            along = (d_x * x).sum(self.query, keepdim=True) * inverse
            length = (1 / inverse - EPS).clamp(min=torch.finfo(inverse.dtype).tiny)
            d_x.addcmul_(x, along / length, value=-1)
        if self.raw_norm.startswith("clipped"):
            # one pass; `where` needs a comparison and a product beside it
            d_x = torch.ops.aten.leaky_relu_backward(d_x, affinity, SLOPE, False)
        return d_x

    def _relative_weights(self, block: AttentionBlock, x: Tensor, inverse: Tensor | None) -> Tensor:
        """Return the softmax over the context without its division, after focal attention."""
        mask = block.regions if self.direction == "t2i" else block.words
        exponent = x * self._scale(inverse)
        # x is within [-1, 1] after a normalisation, so exp cannot overflow at a usual sharpness and
        # the pass that looks for the maximum is saved
        bounded = self.raw_norm.endswith("l2norm") or self.raw_norm == "softmax"
        if not bounded or self.sharpness > SAFE_EXPONENT:
            if mask is not None:
                exponent = exponent.masked_fill(~mask, torch.finfo(x.dtype).min)
            exponent = exponent - exponent.detach().amax(self.context, keepdim=True)
        weight = exponent.exp_()
        if mask is not None:
            weight = weight * mask.to(weight.dtype)
        return focal_weights(self.focus, weight, self.context, mask)

    def _scale(self, inverse: Tensor | None) -> float | Tensor:
        """Return the factor from x to the exponent: one pass over the block for two factors."""
        return self.sharpness if inverse is None else inverse * self.sharpness

    def _gram_product(self, gram: Tensor | None, weight: Tensor) -> Tensor:
        """Return G p for every query: (n, L, I, R)."""
        assert gram is not None
        n, words, images, regions = weight.shape
        if self.direction == "t2i":
            # one G per image: (n L, I, R) -> (I, n L, R) @ (I, R, R); G is symmetric: p^T G = G p
            rows = weight.reshape(n * words, images, regions).transpose(0, 1)
            return torch.bmm(rows, gram).transpose(0, 1).reshape(weight.shape)
        # one G per caption: (n, L, L) @ (n, L, I R), every column a region of an image
        return torch.bmm(gram, weight.reshape(n, words, images * regions)).view(weight.shape)

    def _gram_grad(self, left: Tensor, right: Tensor) -> Tensor:
        """Return sum over queries of left_j right_k: (I, R, R), or (n, L, L) for i2t."""
        n, words, images, regions = left.shape
        if self.direction == "t2i":
            rows = (x.reshape(n * words, images, regions).transpose(0, 1) for x in (left, right))
            a, b = rows
            return torch.bmm(a.transpose(1, 2), b)
        a, b = (x.reshape(n, words, images * regions) for x in (left, right))
        return torch.bmm(a, b.transpose(1, 2))


# Hard assignment: each query takes the most similar vector of its context.


@final
@dataclass(frozen=True, slots=True)
class HardAssignment:
    """Each query's highest affinity (CHAN, CVPR 2023, eq. 6 and 7); the first of equal ones."""

    results: ClassVar[int] = 1
    learnt: ClassVar[int] = 1
    grams: ClassVar[bool] = False

    direction: Direction

    def attend(self, block: AttentionBlock) -> tuple[Tensor, ...]:
        """The highest affinities: (n, L, I) of words or (n, I, R) of regions; differentiable."""
        axis, affinity = self._axis, self._real(block)
        if affinity.requires_grad:
            return (affinity.max(axis).values,)
        return (affinity.amax(axis),)

    def derivative(self, block: AttentionBlock, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the gradient of the affinity, which is zero except at the assigned vectors."""
        (grad,) = grads
        first = self._real(block).argmax(self._axis, keepdim=True)
        gradient = torch.zeros_like(block.affinity, memory_format=torch.contiguous_format)
        return gradient.scatter_(self._axis, first, grad.unsqueeze(self._axis)), None

    @property
    def _axis(self) -> int:
        """Axis of the context in a block."""
        return 3 if self.direction == "t2i" else 1

    def _real(self, block: AttentionBlock) -> Tensor:
        mask = block.regions if self.direction == "t2i" else block.words
        return block.affinity if mask is None else block.affinity + padding_bias(mask)


# Pooling of the similarities of all queries to one score.


@final
@dataclass(frozen=True, slots=True)
class QueryPooling:
    """Pooling of the similarities of a query item's vectors to one score, in torch or by a kernel.

    Attributes:
        kind: "LogSumExp" is log(sum(exp(sharpness * s))) / sharpness (SCAN, ECCV 2018, eq. 6), not
            divided by the count, so it and "Sum" grow with the number of queries; "Softmax" is the
            mean weighted with softmax(sharpness * s) (CHAN, CVPR 2023, section 3.3).
        sharpness: of "LogSumExp" and "Softmax".
        divisor: the score is divided by it.
        unit: every query vector counts as one of length 1 in its cosine.
    """

    kind: Pooling
    sharpness: float = 1.0
    divisor: float = 1.0
    unit: bool = False

    def similarity(self, results: tuple[Tensor, ...], square: Tensor | None) -> Tensor:
        """Return what is pooled: the cosine of each query with its attended or assigned vector.

        Args:
            results: of a head; a single tensor is the similarity itself.
            square: squared lengths of the queries; None where they are not read.
        """
        if len(results) == 1:
            return results[0]
        if self.unit:
            square = torch.ones((), device=results[0].device)
        assert square is not None
        return AttendedProducts(*results).cosine(square)

    def pool(self, similarity: Tensor, dim: int, mask: Tensor | None) -> Tensor:
        """Pool similarities (..., Q, ...) along `dim` to one score.

        Args:
            similarity: of each query.
            dim: axis of the queries.
            mask: bool, True where a query is real; None when all are. Broadcastable, and its axis
                `dim` is that of the queries too.
        """
        return self._pooled(similarity, dim, mask) / self.divisor

    def _pooled(self, similarity: Tensor, dim: int, mask: Tensor | None) -> Tensor:
        if self.kind in ("LogSumExp", "Max"):
            if mask is not None:
                similarity = similarity.masked_fill(~mask, -torch.inf)
            if self.kind == "Max":
                return similarity.amax(dim)
            return (similarity * self.sharpness).logsumexp(dim) / self.sharpness
        if mask is not None:
            similarity = similarity.masked_fill(~mask, 0)
        if self.kind == "Softmax":
            logits = similarity / (1 / self.sharpness)  # its authors divide by a temperature
            if mask is not None:
                logits = logits.masked_fill(~mask, -torch.inf)
            return (logits.softmax(dim) * similarity).sum(dim)
        total = similarity.sum(dim)
        if self.kind == "Sum":
            return total
        if mask is None:
            return total / similarity.shape[dim]
        return total / mask.sum(dim).clamp(min=1)


# Attended vectors themselves, for scores that need more of them than a cosine (SGRAF, X-Dim).


def attended_vectors(
    images: Embeddings, words: Tensor, head: CrossAttention, *, squash: bool = False
) -> Tensor:
    """Return the attended vectors (I, n, L, D) of words (n, L, D), which may be scaled."""
    (n, length, width), regions = words.shape, images.tokens
    affinity = words.flatten(0, 1) @ regions.flatten(0, 1).T  # (n L, I R), one product
    affinity = affinity.view(n, length, *regions.shape[:2])
    mask = None if bool(images.mask.all()) else images.mask[None, None]
    block = AttentionBlock(affinity.tanh() if squash else affinity, regions=mask)
    # (n, L, I, R) -> (I, n L, R) @ (I, R, D)
    rows = head.weights(block).flatten(0, 1).transpose(0, 1)
    return torch.bmm(rows, regions).view(len(images), n, length, width)


def attended_pairs(
    images: Embeddings, texts: Embeddings, head: CrossAttention, *, squash: bool = False
) -> Tensor:
    """Return the attended vectors (P, L, D) of text p with image p; arbitrary at padding."""
    affinity = torch.bmm(texts.tokens, images.tokens.mT).transpose(0, 1)[None]  # (1, L, P, R)
    block = AttentionBlock(
        affinity.tanh() if squash else affinity, None, None, images.mask[None, None]
    )
    return torch.bmm(head.weights(block)[0].transpose(0, 1), images.tokens)
