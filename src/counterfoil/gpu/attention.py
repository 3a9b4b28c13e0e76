"""Scores of SCAN and BFAN: product, attention, Gram norm and pooling of a tile in one program.

Why no attended vector is needed is derived in `counterfoil.models.layers.cross_attention`, whose
formulas and names these are. A program has the affinities of some queries with some contexts,

                    contexts x context_length
                  +---------+---------+----
        items     |         |         |         the softmax runs along a row within one context,
          x       |         |         |         norms and pooling down a column within one query
        length    +---------+---------+----

and Gram matrices as one matrix (columns, columns), zero between different contexts, so that G p of
all of them is one product. BFAN attends in both directions: without a gradient, the program then
attends once more, in the transposed tile.

The gradient computes a tile again, takes the closed-form derivative of its affinities, and writes
that to a buffer of `BUFFER` numbers at most; two ordinary matrix products then give the gradients
of the vectors, and the next part of the matrix takes the buffer's place. Gradients of Gram matrices
are summed in the program, over queries in a fixed order. So nothing grows with I x T x L x R, and
there are no atomic sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from counterfoil.gpu import CELLS, Pooling, padded_to
from counterfoil.gpu.common import (
    Lengths,
    dot_settings,
    fine_product,
    launch,
    pool,
    product,
    score_by_length,
    tiles,
)
from counterfoil.gpu.language import LOWEST, TINY, constant, jit, tl

COLUMNS = 64  # of a tile, at least
BUFFER = 1 << 25  # derivatives of affinities at a time
SPLITS = 8  # parts of the queries whose gradients of Gram matrices are summed apart
EPS = constant(1e-8)
SLOPE = constant(0.1)
SAFE_EXPONENT = 20.0
LOG2_E = constant(1.4426950408889634)
ROUNDING = constant(1 - 64 * 2.0**-23)  # see `cross_attention.ROUNDINGS`


@final
@dataclass(frozen=True, slots=True)
class AttentionSettings:
    """How queries attend to a context, and how their cosines are pooled.

    Attributes:
        raw_norm: normalisation of the affinities, as in `cross_attention.CrossAttention`.
        sharpness: inverse temperature of the attention.
        focus: focal attention, as in `cross_attention.focal_weights`.
        pooling: of the cosines of a query's vectors.
        pooling_sharpness: of "LogSumExp", which is log(sum(exp(sharpness * s))), and of "Softmax".
        scale: the score is multiplied by it.
    """

    raw_norm: str = "clipped_l2norm"
    sharpness: float = 9.0
    focus: str = "none"
    pooling: Pooling = "Mean"
    pooling_sharpness: float = 1.0
    scale: float = 1.0

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a kernel."""
        bounded = self.raw_norm in ("clipped_l2norm", "l2norm", "softmax")
        return {
            "attention": self.sharpness,
            "sharpness": self.pooling_sharpness,
            "scale": self.scale,
            "raw_norm": self.raw_norm,
            "focus": self.focus,
            "pooling": self.pooling,
            "shift": not bounded or self.sharpness > SAFE_EXPONENT,
        }


def attention_scores(
    queries: Tensor,
    contexts: Tensor,
    query_mask: Tensor,
    context_mask: Tensor,
    lengths: Sequence[Lengths],
    squares: Tensor,
    grams: Tensor,
    settings: AttentionSettings,
    back: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Score every query with every context.

    Args:
        queries: (Q, L, D) float32, float16 or bfloat16; any values where the mask is False.
        contexts: (C, R, D) of the same dtype; see `attention_fits`.
        query_mask: (Q, L) bool; every item has a vector.
        context_mask: (C, R) bool, likewise.
        lengths: (Q,) and (C,) of `lengths_of`.
        squares: (Q, L) float32, squared lengths of the queries.
        grams: (C, R, R) float32, symmetric, inner products of each context's vectors.
        settings: of the attention.
        back: (C, R) squared lengths of the contexts and (Q, L, L) Gram matrices of the queries;
            when given, the scores of contexts that attend to queries are added, from the same
            product and without gradient.

    Returns:
        (Q, C) float32 scores, differentiable by vectors, squares and Gram matrices.
    """
    apply: Callable[..., Tensor] = _Attention.apply

    def score(
        rows: Tensor, x: Tensor, x_mask: Tensor, columns: Tensor, y: Tensor, y_mask: Tensor
    ) -> Tensor:
        length, context_length = x.shape[1], y.shape[1]
        gram = grams[columns, :context_length, :context_length]
        inputs = x, y, x_mask, y_mask, squares[rows, :length], gram
        if back is None:
            return apply(*inputs, settings)
        own = back[0][columns, :context_length], back[1][rows, :length, :length]
        return _scores(*inputs, settings, own)

    return score_by_length(queries, contexts, query_mask, context_mask, lengths, score)


@final
@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes of a tile."""

    items: int  # queries
    length: int  # vectors of each, a power of two
    contexts: int
    context_length: int

    @staticmethod
    def of(x: Tensor, y: Tensor, cells: int) -> Tile:
        """Return the tile of about `cells` cells for `x` of (M, L, D) and `y` of (N, T, D)."""
        length, context_length = padded_to(x.shape[1]), padded_to(y.shape[1])
        columns = max(COLUMNS, context_length)
        if x.dtype == torch.float32:
            cells //= 2  # exact products need more registers
        items = max(1, cells // columns // length)
        # a product of matrices has 16 rows at least
        items = max(items, 16 // length)
        return Tile(items, length, columns // context_length, context_length)


def _scores(
    x: Tensor,
    y: Tensor,
    x_mask: Tensor,
    y_mask: Tensor,
    square: Tensor,
    gram: Tensor,
    settings: AttentionSettings,
    back: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Launch the forward kernel."""
    (nq, lq, width), (nc, lc, _) = x.shape, y.shape
    out = x.new_empty(nq, nc, dtype=torch.float32)
    tile = Tile.of(x, y, CELLS)
    # With 128 registers, two programs share a multiprocessor of an H100, and one multiplies while
    # the other attends: 1.35 x as fast. Two directions, or products of float32, need more.
    registers = 128 if x.dtype != torch.float32 and back is None else None
    # without `back` these are not read
    back_square, back_gram = back or (square, gram)
    launch(
        _forward, (tiles(nq, tile.items) * tiles(nc, tile.contexts),), x, y, x_mask, y_mask,
        square.contiguous(), gram.contiguous(), back_square.contiguous(), back_gram.contiguous(),
        out, nq, nc, lq, lc, width, **settings.arguments(), **asdict(tile),
        **dot_settings(x.dtype, precise=settings.focus != "none"), both=back is not None,
        registers=registers,
    )  # fmt: skip
    return out


@final
class _Attention(torch.autograd.Function):
    """Scores (Q, C); see `attention_scores`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        x_mask: Tensor,
        y_mask: Tensor,
        square: Tensor,
        gram: Tensor,
        settings: AttentionSettings,
    ) -> Tensor:
        ctx.settings = settings
        ctx.save_for_backward(x, y, x_mask, y_mask, square, gram)
        return _scores(x, y, x_mask, y_mask, square, gram, settings)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, x_mask, y_mask, square, gram = ctx.saved_tensors
        square, gram = square.contiguous(), gram.contiguous()
        (nq, lq, width), (nc, lc, _) = x.shape, y.shape
        tile = Tile.of(x, y, CELLS // 2)
        # derivatives of affinities are stored in the dtype of the vectors, as parts of the largest
        peak = grad.abs().amax().clamp(min=torch.finfo(torch.float32).tiny)
        grad = grad / peak
        d_x, d_y = (torch.zeros(z.shape, device=z.device) for z in (x, y))
        d_square, d_gram = torch.zeros_like(square), torch.zeros_like(gram)
        # padding may hold anything, NaN too, and the products below read it
        x, y = (z.masked_fill(m.unsqueeze(-1) == 0, 0) for z, m in ((x, x_mask), (y, y_mask)))
        high = min(
            nq, max(tile.items, BUFFER // (lq * lc * min(nc, 128)) // tile.items * tile.items)
        )
        wide = min(nc, max(1, BUFFER // (lq * lc * high)))
        for q in (slice(a, a + high) for a in range(0, nq, high)):
            for c in (slice(a, a + wide) for a in range(0, nc, wide)):
                part = x[q], y[c]
                n, m = len(part[0]), len(part[1])
                d_s, d_sq = x.new_zeros(n, lq, m, lc), square.new_zeros(n, m, lq)
                splits = min(SPLITS, tiles(n, tile.items))
                d_g = gram.new_zeros(splits, m, lc, lc)
                launch(
                    _backward, (tiles(m, tile.contexts), splits), *part, x_mask[q], y_mask[c],
                    square[q], gram[c], grad[q, c].contiguous(), d_s, d_sq, d_g,
                    n, m, lq, lc, width,
                    **ctx.settings.arguments(), **asdict(tile),
                    **dot_settings(x.dtype, backward=True, precise=ctx.settings.focus != "none"),
                )  # fmt: skip
                flat = d_s.view(n * lq, m * lc)
                d_x[q] += (flat @ part[1].flatten(0, 1)).view_as(part[0])
                d_y[c] += (flat.T @ part[0].flatten(0, 1)).view_as(part[1])
                d_square[q] += d_sq.sum(1)
                d_gram[c] += d_g.sum(0)
        d_x, d_y = (d_x * peak).to(x.dtype), (d_y * peak).to(y.dtype)
        return d_x, d_y, None, None, d_square * peak, d_gram * peak, None


@jit
def _rows_of(mask, item, place, items, longest):  # type: ignore[no-untyped-def]
    """Return which vectors of a tile exist, and their rows of all vectors."""
    row = item.to(tl.int64) * longest + place
    ok = (item < items) & (place < longest)
    return row, ok & (tl.load(mask + row, ok, other=0) != 0)


@jit
def _gram_of(gram, row, item, place, ok, longest):  # type: ignore[no-untyped-def]
    """Return the Gram matrices of a tile's contexts as one matrix, 0 between different ones."""
    same = (item[:, None] == item[None, :]) & ok[:, None] & ok[None, :]
    return tl.load(gram + row[:, None] * longest + place[None, :], same, other=0.0)


@jit
def _attend(  # type: ignore[no-untyped-def]
    s, x_ok, y_ok, length_squares, g, attention,
    raw_norm: tl.constexpr, focus: tl.constexpr, shift: tl.constexpr, inner: tl.constexpr,
    exact: tl.constexpr, items: tl.constexpr, length: tl.constexpr, contexts: tl.constexpr,
    context_length: tl.constexpr,
):  # fmt: skip
    """Return input and inverse norms of the softmax, weights, G p, and the three products."""
    rows: tl.constexpr = items * length
    columns: tl.constexpr = contexts * context_length
    v, inverse = s, tl.zeros((items, columns), tl.float32)
    if raw_norm == "softmax":
        v = tl.reshape(tl.where(x_ok[:, None], s, LOWEST), (items, length, columns))
        v = tl.exp(v - tl.max(v, 1)[:, None, :])
        v = tl.reshape(v / tl.sum(v, 1)[:, None, :], (rows, columns))
    if raw_norm == "clipped" or raw_norm == "clipped_l2norm":
        v = tl.maximum(v, SLOPE * v)
    if raw_norm == "l2norm" or raw_norm == "clipped_l2norm":
        # padding has affinity 0
        v = tl.reshape(v, (items, length, columns))
        inverse = 1 / (tl.sqrt(tl.maximum(tl.sum(v * v, 1), TINY)) + EPS)
        v = tl.reshape(v * inverse[:, None, :], (rows, columns))
    exponent = v * (attention * LOG2_E)
    if shift:
        exponent = tl.where(y_ok[None, :], exponent, LOWEST)
        e = tl.reshape(exponent, (rows, contexts, context_length))
        e = e - tl.max(e, 2)[:, :, None]
        exponent = tl.reshape(e, (rows, columns))
    p = tl.where(y_ok[None, :], tl.exp2(exponent), 0.0)
    if focus != "none":
        p = tl.reshape(p, (rows, contexts, context_length))
        if focus == "prob":
            root = tl.sqrt(p)
            bar = tl.sum(p * root, 2) / tl.maximum(tl.sum(root, 2), TINY)
        else:
            real = tl.reshape(y_ok.to(tl.float32), (1, contexts, context_length))
            bar = tl.sum(p, 2) / tl.maximum(tl.sum(real, 2), 1.0)
        p = tl.where(p <= bar[:, :, None] * ROUNDING, 0.0, p)
        p = tl.reshape(p, (rows, columns))
    gp = fine_product(p, g, tl.zeros((rows, columns), tl.float32), inner, exact)
    dot = tl.sum(tl.reshape(p * s, (rows, contexts, context_length)), 2)
    norm = tl.sum(tl.reshape(p * gp, (rows, contexts, context_length)), 2)
    mass = tl.sum(tl.reshape(p, (rows, contexts, context_length)), 2)
    # the cosine is dot * root, where root = 1 / (|q| |a|)
    floor = (EPS * mass) * (EPS * mass) + TINY
    base = norm * length_squares[:, None]
    root = tl.rsqrt(tl.maximum(base, floor))
    return v, inverse, p, gp, dot, norm, root, base >= floor


@jit
def _forward(  # type: ignore[no-untyped-def]
    x, y, x_mask, y_mask, square, gram, back_square, back_gram, out,
    nq, nc, lq, lc, width, attention, sharpness, scale,
    raw_norm: tl.constexpr, focus: tl.constexpr, pooling: tl.constexpr, shift: tl.constexpr,
    items: tl.constexpr, length: tl.constexpr, contexts: tl.constexpr,
    context_length: tl.constexpr, block_k: tl.constexpr, precision: tl.constexpr,
    inner: tl.constexpr, exact: tl.constexpr, both: tl.constexpr,
):  # fmt: skip
    """One program: the scores of one tile."""
    rows: tl.constexpr = items * length
    columns: tl.constexpr = contexts * context_length
    # programs that run together share queries and contexts in the cache
    number, wide = tl.program_id(0), tl.cdiv(nc, contexts)
    a, b = tl.swizzle2d(number // wide, number % wide, tl.cdiv(nq, items), wide, 8)
    m, n = tl.arange(0, rows), tl.arange(0, columns)
    q, i, r = a * items + m // length, m % length, n % context_length
    c = b * contexts + n // context_length
    x_row, x_ok = _rows_of(x_mask, q, i, nq, lq)
    y_row, y_ok = _rows_of(y_mask, c, r, nc, lc)
    s = product(x, y, x_row, y_row, x_ok, y_ok, width, rows, columns, block_k, precision, exact)
    squares = tl.load(square + x_row, x_ok, other=0.0)
    score = _score(
        s, x_ok, y_ok, squares, _gram_of(gram, y_row, c, r, y_ok, lc), attention, sharpness, scale,
        raw_norm, focus, pooling, shift, inner, exact, items, length, contexts, context_length,
    )  # fmt: skip
    if both:  # the same of the transposed tile: columns attend to rows
        back_squares = tl.load(back_square + y_row, y_ok, other=0.0)
        reverse = _score(
            tl.trans(s), y_ok, x_ok, back_squares, _gram_of(back_gram, x_row, q, i, x_ok, lq),
            attention, sharpness, scale, raw_norm, focus, pooling, shift, inner, exact,
            contexts, context_length, items, length,
        )  # fmt: skip
        score += tl.trans(reverse)
    query, context = a * items + tl.arange(0, items), b * contexts + tl.arange(0, contexts)
    at = out + query.to(tl.int64)[:, None] * nc + context[None, :]
    tl.store(at, score, (query < nq)[:, None] & (context < nc)[None, :])


@jit
def _score(  # type: ignore[no-untyped-def]
    s, x_ok, y_ok, squares, g, attention, sharpness, scale,
    raw_norm: tl.constexpr, focus: tl.constexpr, pooling: tl.constexpr, shift: tl.constexpr,
    inner: tl.constexpr, exact: tl.constexpr, items: tl.constexpr, length: tl.constexpr,
    contexts: tl.constexpr, context_length: tl.constexpr,
):  # fmt: skip
    """Return the (items, contexts) scores of a tile of affinities."""
    v, inverse, p, gp, dot, norm, root, large = _attend(
        s, x_ok, y_ok, squares, g, attention, raw_norm, focus, shift, inner, exact, items, length,
        contexts, context_length,
    )  # fmt: skip
    cosine = tl.reshape(dot * root, (items, length, contexts))
    score, share = pool(cosine, tl.reshape(x_ok, (items, length, 1)), pooling, sharpness, scale)
    return score


@jit
def _backward(  # type: ignore[no-untyped-def]
    x, y, x_mask, y_mask, square, gram, grad, d_s, d_square, d_gram,
    nq, nc, lq, lc, width, attention, sharpness, scale,
    raw_norm: tl.constexpr, focus: tl.constexpr, pooling: tl.constexpr, shift: tl.constexpr,
    items: tl.constexpr, length: tl.constexpr, contexts: tl.constexpr,
    context_length: tl.constexpr, block_k: tl.constexpr, precision: tl.constexpr,
    inner: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    """One program: the derivatives of some contexts with every `num_programs(1)`-th of the queries.

    Writes d_s (nq, lq, nc, lc), d_square (nq, nc, lq) and its part of d_gram (., nc, lc, lc).
    """
    rows: tl.constexpr = items * length
    columns: tl.constexpr = contexts * context_length
    m, n = tl.arange(0, rows), tl.arange(0, columns)
    b, split = tl.program_id(0), tl.program_id(1)
    c, r, i = b * contexts + n // context_length, n % context_length, m % length
    context = b * contexts + tl.arange(0, contexts)
    y_row, y_ok = _rows_of(y_mask, c, r, nc, lc)
    g = _gram_of(gram, y_row, c, r, y_ok, lc)
    total = tl.zeros((columns, columns), tl.float32)
    for a in range(split, tl.cdiv(nq, items), tl.num_programs(1)):
        q = a * items + m // length
        x_row, x_ok = _rows_of(x_mask, q, i, nq, lq)
        s = product(x, y, x_row, y_row, x_ok, y_ok, width, rows, columns, block_k, precision, exact)
        squares = tl.load(square + x_row, x_ok, other=0.0)
        v, inverse, p, gp, dot, norm, root, large = _attend(
            s, x_ok, y_ok, squares, g, attention, raw_norm, focus, shift, inner, exact, items,
            length, contexts, context_length,
        )  # fmt: skip
        cosine = tl.reshape(dot * root, (items, length, contexts))
        score, share = pool(cosine, tl.reshape(x_ok, (items, length, 1)), pooling, sharpness, scale)
        query = a * items + tl.arange(0, items)
        at = grad + query.to(tl.int64)[:, None] * nc + context[None, :]
        of_score = tl.load(at, (query < nq)[:, None] & (context < nc)[None, :], other=0.0)
        of_cosine = tl.reshape(share * of_score[:, None, :], (rows, contexts))
        # cosine = dot * base ** -0.5 with base = norm * squares; constant below the floor
        of_dot = of_cosine * root
        of_base = tl.where(large, -0.5 * of_cosine * dot * root * root * root, 0.0)
        of_norm = of_base * squares[:, None]
        place = (q.to(tl.int64)[:, None] * nc + context[None, :]) * lq + i[:, None]
        tl.store(d_square + place, of_base * norm, x_ok[:, None] & (context < nc)[None, :])
        # see `CrossAttention.derivative`
        p3 = tl.reshape(p, (rows, contexts, context_length))
        direct = tl.reshape(p3 * of_dot[:, :, None], (rows, columns))
        through_norm = tl.reshape(p3 * of_norm[:, :, None], (rows, columns))
        d_v = attention * (direct * s + 2 * through_norm * gp)
        if raw_norm == "softmax":
            along = tl.sum(tl.reshape(d_v * v, (items, length, columns)), 1)
            d_v = tl.reshape(d_v, (items, length, columns)) - along[:, None, :]
            d_v = v * tl.reshape(d_v, (rows, columns))
        if raw_norm == "l2norm" or raw_norm == "clipped_l2norm":
            along = tl.sum(tl.reshape(d_v * v, (items, length, columns)), 1)
            norms = tl.maximum(1 / inverse - EPS, TINY)
            v3 = tl.reshape(v, (items, length, columns))
            d_v = tl.reshape(d_v, (items, length, columns)) * inverse[:, None, :]
            d_v = tl.reshape(d_v - v3 * (along / norms)[:, None, :], (rows, columns))
        if raw_norm == "clipped" or raw_norm == "clipped_l2norm":
            d_v = tl.where(s > 0, d_v, SLOPE * d_v)
        derivative = (direct + d_v).to(d_s.dtype.element_ty)
        ok = x_ok[:, None] & y_ok[None, :]
        place = (q.to(tl.int64) * lq + i)[:, None] * (nc * lc) + (c * lc + r)[None, :]
        tl.store(d_s + place, derivative, ok)
        total = fine_product(tl.trans(through_norm), p, total, inner, exact)
    same = (c[:, None] == c[None, :]) & (c < nc)[:, None] & (r < lc)[:, None] & (r < lc)[None, :]
    row = (split.to(tl.int64) * nc + c) * lc + r
    tl.store(d_gram + row[:, None] * lc + r[None, :], total, same)
