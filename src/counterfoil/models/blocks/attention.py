"""Cross-modal attention that never forms an attended vector.

A query q attends to context vectors c_k with weights p_k, and what is wanted is the cosine of q and
a = sum_k p_k c_k. Two identities give it from what is already there: q.a = sum_k p_k (q.c_k) are
entries of the regions x words affinity, and |a|^2 = p^T G p with G the context's own Gram matrix.
Both scale with the weights, so the weights need not even be normalised.

Axes of a block as in `counterfoil.models.blocks.head`: (n, L, I, R).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from counterfoil.models.blocks.focal import Focus, focused
from counterfoil.models.blocks.head import Block, Direction

RawNorm = Literal["clipped_l2norm", "l2norm", "softmax", "clipped", "no_norm"]
EPS = 1e-8
SLOPE = 0.1
SAFE_EXPONENT = 20.0


@final
class Attended(NamedTuple):
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
class Attention:
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

    def attend(self, block: Block) -> Attended:
        """Attend; differentiable."""
        weight = self._weigh(block, self._sharpen(block)[0])
        return Attended(
            (weight * block.affinity).sum(self.context),
            (weight * self._spread(block.gram, weight)).sum(self.context),
            weight.sum(self.context),
        )

    def weights(self, block: Block) -> Tensor:
        """(n, L, I, R) attention, sums to 1 over the context; 0 for an item without context."""
        weight = self._weigh(block, self._sharpen(block)[0])
        total = weight.sum(self.context, keepdim=True)
        return weight / total.clamp(min=torch.finfo(weight.dtype).tiny)

    def derivative(self, block: Block, *pulls: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the affinity and of the Gram matrix, in closed form.

        Args:
            block: what was attended to.
            pulls: gradients of `Attended.dot` and `Attended.square`.
        """
        dot, square = (pull.unsqueeze(self.context) for pull in pulls)
        sharp, inverse = self._sharpen(block)
        weight = self._weigh(block, sharp)
        direct = weight * dot
        pull = torch.addcmul(
            direct * block.affinity, weight * square, self._spread(block.gram, weight), value=2
        ).mul_(self.sharpness)
        through = self._unsharpen(block.affinity, sharp, inverse, pull)
        return direct.add_(through), self._outer(weight * square, weight)

    def _sharpen(self, block: Block) -> tuple[Tensor, Tensor | None]:
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

    def _unsharpen(
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

    def _weigh(self, block: Block, sharp: Tensor) -> Tensor:
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
        return focused(self.focus, weight, self.context, mask)

    def _spread(self, gram: Tensor | None, weight: Tensor) -> Tensor:
        """The Gram matrix times the weights: (n, L, I, R)."""
        assert gram is not None
        n, words, images, regions = weight.shape
        if self.direction == "t2i":
            rows = weight.reshape(n * words, images, regions).transpose(0, 1)
            return torch.bmm(rows, gram).transpose(0, 1).reshape(weight.shape)
        return torch.bmm(gram, weight.reshape(n, words, images * regions)).view(weight.shape)

    def _outer(self, left: Tensor, right: Tensor) -> Tensor:
        """Gradient of the Gram matrix."""
        n, words, images, regions = left.shape
        if self.direction == "t2i":
            rows = (x.reshape(n * words, images, regions).transpose(0, 1) for x in (left, right))
            a, b = rows
            return torch.bmm(a.transpose(1, 2), b)
        a, b = (x.reshape(n, words, images * regions) for x in (left, right))
        return torch.bmm(a, b.transpose(1, 2))
