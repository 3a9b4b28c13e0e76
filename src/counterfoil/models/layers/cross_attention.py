"""What is asked of the affinities of images and captions, one direction at a time.

Axes of a block: n captions of L words each, I images of R regions each: (n, L, I, R).
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

Direction = Literal["t2i", "i2t"]


@final
@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """Affinities of n captions of L words with I images of R regions.

    Attributes:
        affinity: (n, L, I, R) inner products; 0 at padding.
        gram: of the context vectors: (I, R, R) when words attend, (n, L, L) when regions do; None
            for a head that does not read it.
        words: (n, L, I, 1)-broadcastable bool, True where a word is real; None when all are.
        regions: (1, 1, I, R) bool, True where a region is real; None when all are.
    """

    affinity: Tensor
    gram: Tensor | None = None
    words: Tensor | None = None
    regions: Tensor | None = None


class AttentionHead(Protocol):
    """Queries of one modality and their context in the other.

    Attributes:
        results: how many tensors `attend` gives.
        learnt: how many of them, the first ones, have a gradient.
        grams: the Gram matrices of the context are read.
    """

    results: ClassVar[int]
    learnt: ClassVar[int]
    grams: ClassVar[bool]

    @property
    def direction(self) -> Direction:
        """Words ask regions ("t2i") or regions ask words ("i2t")."""

    @property
    def compiled(self) -> bool:
        """Let `torch.compile` fuse `attend` and `derivative` in the fused call."""

    def attend(self, block: AttentionBlock) -> tuple[Tensor, ...]:
        """Of every query, in the block's shape without its context axis; differentiable."""

    def derivative(self, block: AttentionBlock, *pulls: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients of the affinity and of the Gram matrix from those of what is learnt."""


# Focal attention: what a query attends to less than to the rest of its context is dropped.


Rule = Literal["equal", "prob"]
Focus = Rule | Literal["none"]
ROUNDINGS = 64  # a weight this few roundings below the bar counts as above it


def focal_weights(focus: Focus, weight: Tensor, context: int, mask: Tensor | None) -> Tensor:
    """The weights, with 0 for those that are not kept (BFAN, ACM MM 2019).

    "equal" keeps what is above the mean; "prob" keeps k where sum_j (w_k - w_j) sqrt(w_j) > 0,
    which is w_k > sum_j w_j^1.5 / sum_j sqrt(w_j). Neither depends on the scale of the weights,
    and the choice is not differentiated.

    Departs from the authors' code in: the largest weight is always kept, so a uniform context
    stays uniform instead of giving NaN (B1).

    Args:
        focus: the rule.
        weight: not negative, 0 at padding.
        context: axis of the context.
        mask: bool, broadcastable, True where the context is real; None when all of it is.
    """
    if focus == "none":
        return weight
    with torch.no_grad():
        bar = (
            _mean(weight, context, mask)
            if focus == "equal"
            else _root_weighted_mean(weight, context)
        )
        dropped = weight <= bar * (1 - ROUNDINGS * torch.finfo(weight.dtype).eps)
    return weight.masked_fill(dropped, 0)


def _masked_mean(weight: Tensor, context: int, mask: Tensor | None) -> Tensor:
    total = weight.sum(context, keepdim=True)
    if mask is None:
        return total / weight.shape[context]
    return total / mask.sum(context, keepdim=True).clamp(min=1)


def _root_weighted_mean(weight: Tensor, context: int) -> Tensor:
    """The mean of the weights, each counted with its root."""
    root = weight.sqrt()
    share = root.sum(context, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
    return (weight * root).sum(context, keepdim=True) / share


# Captions without their padding, and tiles of them that fit in memory.


IMAGES_AT_ONCE = 128
CELLS_AT_ONCE = 1 << 24  # affinities in one product: 64 MB of float32


@final
@dataclass(frozen=True, slots=True)
class LengthRun:
    """Captions of equal length among packed ones: n of them, L words each.

    Attributes:
        word: first row of their words.
        caption: place of the first caption.
        n: how many captions.
        length: words of each.
    """

    word: int
    caption: int
    n: int
    length: int

    @property
    def words(self) -> slice:
        """Rows of their words."""
        return slice(self.word, self.word + self.n * self.length)

    @property
    def captions(self) -> slice:
        """Places of the captions."""
        return slice(self.caption, self.caption + self.n)

    def cut(self, words: int) -> list[LengthRun]:
        """The same captions, at most `words` words at a time, never less than one caption."""
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
    """Captions without padding, shortest first.

    Attributes:
        words: (W, D) their real words.
        lengths: words of each caption, ascending.
    """

    words: Tensor
    lengths: tuple[int, ...]

    def runs(self) -> list[LengthRun]:
        """Captions of equal length."""
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

    def gathered(self, rows: Tensor, gather: Callable[[Tensor], Tensor]) -> Tensor:
        """(T, I) what is made of the words of each caption.

        Args:
            rows: (W, I) a number for each word and image.
            gather: makes (n, I) of the (n, L, I) of captions of one length.
        """
        blocks = (rows[run.words].view(run.n, run.length, -1) for run in self.runs())
        return torch.cat([gather(block) for block in blocks])

    def parts(self, words: int) -> list[PackedTexts]:
        """The same captions, at most `words` words at a time, never less than one caption."""
        cuts, total = [0], 0
        for caption, length in enumerate(self.lengths):
            if total + length > words and caption > cuts[-1]:
                cuts.append(caption)
                total = 0
            total += length
        return [self._part(a, b) for a, b in pairwise([*cuts, len(self.lengths)])]

    def padded(self) -> Tensor:
        """(T, L, D) with zeros behind each caption."""
        lengths = torch.tensor(self.lengths, device=self.words.device)
        longest = max(self.lengths, default=0)
        room = self.words.new_zeros(len(lengths), longest, self.words.shape[-1])
        real = torch.arange(longest, device=lengths.device) < lengths.unsqueeze(1)
        return room.masked_scatter(real.unsqueeze(-1), self.words)

    def _part(self, start: int, stop: int) -> PackedTexts:
        first = sum(self.lengths[:start])
        lengths = self.lengths[start:stop]
        return PackedTexts(self.words[first : first + sum(lengths)], lengths)


def pack_texts(texts: Embeddings) -> tuple[PackedTexts, Tensor]:
    """Texts without padding, and (T,) where each of them stood before."""
    counts = texts.mask.sum(1)
    order = counts.argsort(stable=True)
    words = texts.tokens[order][texts.mask[order]]
    return PackedTexts(words, tuple(counts[order].tolist())), order


def score_tiles(
    images: Embeddings, texts: Embeddings, score: Callable[[Embeddings, PackedTexts], Tensor]
) -> Tensor:
    """(I, T) scores, from a function that gives (T, I) scores of a tile with packed texts.

    Raises:
        ValueError: a text has no words.
    """
    packed, order = pack_texts(texts)
    if packed.lengths and not packed.lengths[0]:
        raise ValueError(f"text {int(order[0])} has no words; leave empty texts out")
    cells = max(1, min(len(images), IMAGES_AT_ONCE) * images.tokens.shape[1])
    columns = []
    for part in packed.parts(max(1, CELLS_AT_ONCE // cells)):
        rows = [
            score(images.rows(slice(first, first + IMAGES_AT_ONCE)), part)
            for first in range(0, len(images), IMAGES_AT_ONCE)
        ]
        columns.append(rows[0] if len(rows) == 1 else torch.cat(rows, 1))
    return torch.cat(columns).T[:, order.argsort()]


# Cross-modal attention that never forms an attended vector.
#
# A query q attends to context vectors c_k with weights p_k, and what is wanted is the cosine of q
# and
# a = sum_k p_k c_k. Two identities give it from what is already there: q.a = sum_k p_k (q.c_k) are
# entries of the regions x words affinity, and |a|^2 = p^T G p with G the context's own Gram matrix.
# Both scale with the weights, so the weights need not even be normalised.
#
# Axes of a block as in `counterfoil.models.layers.cross_attention`: (n, L, I, R).


RawNorm = Literal["clipped_l2norm", "l2norm", "softmax", "clipped", "no_norm"]
EPS = 1e-8
SLOPE = 0.1
SAFE_EXPONENT = 20.0


@final
class AttendedProducts(NamedTuple):
    """What a query needs to know of the vector that it attends to, at an arbitrary common scale.

    Shapes are the block's without its context axis: (n, L, I) words or (n, I, R) regions.

    Attributes:
        dot: inner product of the query with the attended vector.
        square: squared length of the attended vector; rounding may take it below 0.
        mass: sum of the weights.
    """

    dot: Tensor
    square: Tensor
    mass: Tensor

    def cosine(self, query: Tensor) -> Tensor:
        """Cosine of query and attended vector; 0 where either of them is zero.

        Args:
            query: squared lengths of the queries, broadcastable.
        """
        floor = (EPS * self.mass.detach()).square() + torch.finfo(self.dot.dtype).tiny
        return self.dot * torch.maximum(self.square * query, floor).rsqrt()


@final
@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Stacked cross attention's weights (SCAN, ECCV 2018, eq. 2-4 and 8), with their derivative.

    Departs from the authors' code in: shapes are kept with one image, one word or one region (S2).

    Attributes:
        direction: "t2i": words attend to regions; "i2t": regions attend to words.
        raw_norm: what is done to the affinities first. "l2norm" and "softmax" run over the queries;
            "clipped" is a leaky rectifier (the paper has a plain one).
        sharpness: inverse temperature of the softmax over the context.
        compiled: let `torch.compile` fuse `attend` and `derivative` in the fused call.
        focus: which of its context a query goes on attending to; the rest gets no weight.
    """

    results: ClassVar[int] = 3
    learnt: ClassVar[int] = 2
    grams: ClassVar[bool] = True

    direction: Direction
    raw_norm: RawNorm
    sharpness: float
    compiled: bool = False
    focus: Focus = "none"

    @property
    def query(self) -> int:
        """Axis of the queries in a block."""
        return 1 if self.direction == "t2i" else 3

    @property
    def context(self) -> int:
        """Axis of the context in a block."""
        return 3 if self.direction == "t2i" else 1

    def attend(self, block: AttentionBlock) -> AttendedProducts:
        """Attend; differentiable."""
        weight = self._relative_weights(block, self._softmax_input(block)[0])
        return AttendedProducts(
            (weight * block.affinity).sum(self.context),
            (weight * self._gram_product(block.gram, weight)).sum(self.context),
            weight.sum(self.context),
        )

    def weights(self, block: AttentionBlock) -> Tensor:
        """(n, L, I, R) attention, sums to 1 over the context; 0 for an item without context."""
        weight = self._relative_weights(block, self._softmax_input(block)[0])
        total = weight.sum(self.context, keepdim=True)
        return weight / total.clamp(min=torch.finfo(weight.dtype).tiny)

    def derivative(self, block: AttentionBlock, *pulls: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the affinity and of the Gram matrix, in closed form.

        Args:
            block: what was attended to.
            pulls: gradients of `AttendedProducts.dot` and `AttendedProducts.square`.
        """
        dot, square = (pull.unsqueeze(self.context) for pull in pulls)
        sharp, inverse = self._softmax_input(block)
        weight = self._relative_weights(block, sharp)
        direct = weight * dot
        pull = torch.addcmul(
            direct * block.affinity,
            weight * square,
            self._gram_product(block.gram, weight),
            value=2,
        ).mul_(self.sharpness)
        through = self._softmax_input_grad(block.affinity, sharp, inverse, pull)
        return direct.add_(through), self._gram_grad(weight * square, weight)

    def _softmax_input(self, block: AttentionBlock) -> tuple[Tensor, Tensor | None]:
        """The affinities as the softmax sees them, and what they were multiplied with."""
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
        inverse = 1 / (x.square().sum(self.query, keepdim=True).clamp(min=tiny).sqrt() + EPS)
        return x * inverse, inverse

    def _softmax_input_grad(
        self, affinity: Tensor, sharp: Tensor, inverse: Tensor | None, pull: Tensor
    ) -> Tensor:
        """Gradient of the affinities from that of what the softmax saw."""
        if self.raw_norm == "softmax":
            return sharp * (pull - (pull * sharp).sum(self.query, keepdim=True))
        if inverse is not None:
            along = (pull * sharp).sum(self.query, keepdim=True)
            length = (1 / inverse - EPS).clamp(min=torch.finfo(inverse.dtype).tiny)
            pull = torch.addcmul(pull * inverse, sharp, along / length, value=-1)
        if self.raw_norm.startswith("clipped"):
            pull = torch.where(affinity > 0, pull, SLOPE * pull)
        return pull

    def _relative_weights(self, block: AttentionBlock, sharp: Tensor) -> Tensor:
        """Softmax over the context, focused, short of the division."""
        mask = block.regions if self.direction == "t2i" else block.words
        exponent = sharp * self.sharpness
        bounded = self.raw_norm.endswith("l2norm") or self.raw_norm == "softmax"
        if not bounded or self.sharpness > SAFE_EXPONENT:
            if mask is not None:
                exponent = exponent.masked_fill(~mask, torch.finfo(sharp.dtype).min)
            exponent = exponent - exponent.detach().amax(self.context, keepdim=True)
        weight = exponent.exp()
        if mask is not None:
            weight = weight.masked_fill(~mask, 0)
        return focal_weights(self.focus, weight, self.context, mask)

    def _gram_product(self, gram: Tensor | None, weight: Tensor) -> Tensor:
        """The Gram matrix times the weights: (n, L, I, R)."""
        assert gram is not None
        n, words, images, regions = weight.shape
        if self.direction == "t2i":
            rows = weight.reshape(n * words, images, regions).transpose(0, 1)
            return torch.bmm(rows, gram).transpose(0, 1).reshape(weight.shape)
        return torch.bmm(gram, weight.reshape(n, words, images * regions)).view(weight.shape)

    def _gram_grad(self, left: Tensor, right: Tensor) -> Tensor:
        """Gradient of the Gram matrix."""
        n, words, images, regions = left.shape
        if self.direction == "t2i":
            rows = (x.reshape(n * words, images, regions).transpose(0, 1) for x in (left, right))
            a, b = rows
            return torch.bmm(a.transpose(1, 2), b)
        a, b = (x.reshape(n, words, images * regions) for x in (left, right))
        return torch.bmm(a, b.transpose(1, 2))


# From one similarity per query to one score.


Aggregate = Literal["LogSumExp", "Mean", "Max", "Sum"]


def aggregate(
    kind: Aggregate, similarity: Tensor, dim: int, mask: Tensor | None, sharpness: float
) -> Tensor:
    """One score from the similarities along `dim`.

    LogSumExp is log(sum(exp(sharpness * s))) / sharpness (SCAN, ECCV 2018, eq. 6), not divided by
    the count, so it and Sum grow with the number of queries.

    Args:
        kind: what to do.
        similarity: (..., Q, ...).
        dim: axis of the queries.
        mask: bool, True where a query is real; None when all are. Broadcastable, and its axis `dim`
            is that of the queries too.
        sharpness: lambda of LogSumExp.
    """
    if kind in ("LogSumExp", "Max"):
        if mask is not None:
            similarity = similarity.masked_fill(~mask, -torch.inf)
        if kind == "Max":
            return similarity.amax(dim)
        return (similarity * sharpness).logsumexp(dim) / sharpness
    if mask is not None:
        similarity = similarity.masked_fill(~mask, 0)
    total = similarity.sum(dim)
    if kind == "Sum":
        return total
    if mask is None:
        return total / similarity.shape[dim]
    return total / mask.sum(dim).clamp(min=1)


Pooling = Literal["LSE", "Mean", "Max", "Sum", "Softmax"]


def pool_queries(
    kind: Pooling, similarity: Tensor, dim: int, mask: Tensor | None, temperature: float
) -> Tensor:
    """One score from the similarities along `dim` (CHAN, CVPR 2023, section 3.3).

    "LSE" is log(sum(exp(s / temperature))), in units of the similarity over the temperature;
    "Softmax" is the mean weighted with softmax(s / temperature). The rest is `aggregate`'s.

    Args:
        kind: what to do.
        similarity: (..., Q, ...).
        dim: axis of the queries.
        mask: as in `aggregate`.
        temperature: of "LSE" and "Softmax".
    """
    if kind == "LSE":
        return aggregate("LogSumExp", similarity, dim, mask, 1 / temperature) / temperature
    if kind != "Softmax":
        return aggregate(kind, similarity, dim, mask, 1 / temperature)
    if mask is not None:
        similarity = similarity.masked_fill(~mask, 0)
    sharp = similarity / temperature
    weight = sharp if mask is None else sharp.masked_fill(~mask, -torch.inf)
    return (weight.softmax(dim) * similarity).sum(dim)
