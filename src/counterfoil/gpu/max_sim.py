"""MaxSim: each query vector's best inner product with a context, pooled over the query's vectors.

score(q, c) = pool over l of max over r of <x_ql, y_cr>, in two passes. The first takes the vectors
of all queries one behind the other, without padding, and writes the highest product of each with
each context: one number where the product has one for every vector of the context. A program has a
tile of them and visits some contexts, block by block. The second reads these numbers once and pools
them.

Columns of a tile are the vectors of several contexts, `head` of each, a power of two, and then
`tail` of each, so that 36 regions are 32 and 4 and not 64.

For the gradient, the first pass also writes which context vector won. Backward then needs no
product again: a query vector gets the vectors that won it, and a context vector the query vectors
that it won. Each sum is one program's, in a fixed order, so gradients are reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from counterfoil.gpu import Pooling, padded_to
from counterfoil.gpu.common import (
    Lengths,
    dot_settings,
    fine_product,
    launch,
    pool,
    product,
    tiles,
)
from counterfoil.gpu.language import LOWEST, jit, tl

ROWS = 128  # query vectors of a tile
COLUMNS = 128  # vectors of a tile's contexts, tails aside; in float32 half as many
CONTEXTS_AT_ONCE = 16  # tiles that a program visits at most, which reads its queries once
PROGRAMS = 512  # at least, where there is work for so many
HIGHEST = 65_535  # programs along the second axis
RESIDENT = 128  # numbers in half precision up to which the queries' vectors stay on the chip
POOLED = 1 << 12  # numbers that a program pools, unless one query has more vectors
AT_ONCE = 1 << 26  # numbers between the passes that are in memory at a time


def max_sim(
    queries: Tensor,
    contexts: Tensor,
    query_mask: Tensor,
    context_mask: Tensor,
    lengths: Sequence[Lengths],
    *,
    pooling: Pooling = "Mean",
    sharpness: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    """Score every query with every context.

    Args:
        queries: (Q, L, D) float32, float16 or bfloat16, L at most `gpu.LONGEST`; any values at
            padding.
        contexts: (C, R, D) of the same dtype.
        query_mask: (Q, L) bool; every item has a vector.
        context_mask: (C, R) bool, likewise.
        lengths: (Q,) and (C,) of `lengths_of`.
        pooling: of the similarities of a query's vectors.
        sharpness: of "LogSumExp", which is log(sum(exp(sharpness * s))), and of "Softmax".
        scale: the score is multiplied by it.

    Returns:
        (Q, C) float32 scores, differentiable.
    """
    apply: Callable[..., Tensor] = _MaxSim.apply
    masks = query_mask.to(torch.uint8), context_mask.to(torch.uint8)
    x, y = queries.contiguous(), contexts.contiguous()
    step = max(1, AT_ONCE // (x.shape[1] * len(y)))
    options = lengths[1], pooling, sharpness, scale
    scores = [
        apply(x[part], y, masks[0][part], masks[1], lengths[0][part], *options)
        for part in (slice(start, start + step) for start in range(0, len(x), step))
    ]
    return scores[0] if len(scores) == 1 else torch.cat(scores)


@final
@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of the first pass: contexts of about one length.

    Attributes:
        chosen: rows of these contexts.
        longest: most vectors of one.
        rows: query vectors of a tile.
        contexts: of a tile.
        head: vectors of each context that are multiplied at a time, as often as they are there.
        tail: places of those that are left, at last; 0 where there are none.
        group: tiles that a program visits.
        grid: programs along each axis.
        products: how they multiply.
    """

    chosen: Lengths
    longest: int
    rows: int
    contexts: int
    head: int
    tail: int
    group: int
    grid: tuple[int, int]
    products: dict[str, Any]


def launches(vectors: int, lengths: Lengths, width: int, dtype: torch.dtype) -> Iterator[Launch]:
    """Yield the launches of the first pass.

    Args:
        vectors: of all queries together.
        lengths: (C,) of the contexts.
        width: of a vector.
        dtype: of the vectors.
    """
    products = dot_settings(dtype)
    del products["inner"]
    products["resident"] = dtype != torch.float32 and width <= RESIDENT
    if products["resident"]:
        products["block_k"] = max(16, padded_to(width))
    rows = min(ROWS, max(16, padded_to(vectors)))
    widest = COLUMNS // 2 if dtype == torch.float32 else COLUMNS
    bounds = np.array(sorted({_class_of(int(length)) for length in np.unique(lengths)}))
    which = np.searchsorted(bounds, lengths)
    for number in range(len(bounds)):
        chosen = np.flatnonzero(which == number)
        longest = int(lengths[chosen].max())
        head, tail = _parts_of(longest, widest)
        contexts = widest // head
        tail = max(tail, 16 // contexts) if tail else 0
        across = tiles(len(chosen), contexts)
        high = tiles(vectors, rows)
        group = max(1, min(CONTEXTS_AT_ONCE, high * across // PROGRAMS), tiles(across, HIGHEST))
        grid = high, tiles(across, group)
        yield Launch(chosen, longest, rows, contexts, head, tail, group, grid, products)


def _class_of(length: int) -> int:
    """Return the length to which a context is padded, unless all of its class are shorter.

    8, 12, 16, 20, 24, 32, 40, 48, 64, ...
    """
    whole = padded_to(length)
    if whole <= 8:
        return 8
    steps = (whole // 8 * 5, whole // 4 * 3, whole) if whole > 16 else (12, 16)
    return next(step for step in steps if length <= step)


def _parts_of(longest: int, widest: int) -> tuple[int, int]:
    """Return head and tail: 36 are 32 and 4, 300 are twice 128 and 64."""
    head = min(widest, padded_to(longest + 1) // 2)
    tail = padded_to(longest % head) if longest % head else 0
    if tail < head:
        return head, tail
    return (2 * head, 0) if longest < 2 * head <= widest else (head, 0)


@final
class _MaxSim(torch.autograd.Function):
    """Scores (Q, C) of queries (Q, L, D) and contexts (C, R, D)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        x_mask: Tensor,
        y_mask: Tensor,
        x_lengths: Lengths,
        y_lengths: Lengths,
        pooling: Pooling,
        sharpness: float,
        scale: float,
    ) -> Tensor:
        (nq, lq, width), (nc, lc, _) = x.shape, y.shape
        save = any(ctx.needs_input_grad[:2])
        best = x.new_empty(nq, nc, lq, dtype=torch.float32)
        won = x.new_empty(best.shape if save else 1, dtype=torch.int32)
        real = np.flatnonzero(np.arange(lq) < x_lengths[:, None])
        parts = list(launches(len(real), y_lengths, width, x.dtype))
        tables = np.concatenate([real, *(part.chosen for part in parts)]).astype(np.int32)
        there = torch.from_numpy(tables).to(x.device, non_blocking=True)
        table, *chosen = torch.split(there, [len(real), *(len(part.chosen) for part in parts)])
        for part, columns in zip(parts, chosen, strict=True):
            launch(
                _forward, part.grid, x, y, y_mask, table, columns, best, won, len(table),
                len(columns), nc, lq, lc, part.longest, width, rows=part.rows,
                contexts=part.contexts, head=part.head, tail=part.tail, group=part.group,
                save=save, **part.products,
            )  # fmt: skip
        out = best.new_empty(nq, nc)
        ctx.options = pooling, sharpness, scale
        _pool(_pool_forward, best, x_mask, out, out, *ctx.options)
        ctx.save_for_backward(x, y, x_mask, best, won)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, x_mask, best, won = ctx.saved_tensors
        (nq, lq, width), (nc, lc, _) = x.shape, y.shape
        weights = torch.empty_like(best)
        _pool(_pool_backward, best, x_mask, grad.contiguous(), weights, *ctx.options)
        d_x, d_y = torch.empty_like(x), torch.empty_like(y)
        sizes = nq, nc, lq, lc, width
        rows, columns, block_d = 64, min(64, max(16, padded_to(lc))), 64
        settings = dot_settings(x.dtype, backward=True)
        chunks = tiles(width, block_d)
        launch(
            _query_gradient, (tiles(nq * lq, rows), chunks), y, won, weights, d_x, *sizes,
            rows=rows, block_d=block_d,
        )  # fmt: skip
        launch(
            _context_gradient, (nc, tiles(lc, columns), chunks), x, won, weights, d_y, *sizes,
            rows=rows, columns=columns, block_d=block_d, inner=settings["inner"],
            exact=settings["exact"],
        )  # fmt: skip
        return d_x, d_y, *(None,) * 7


def _pool(
    kernel: Any,
    best: Tensor,
    mask: Tensor,
    grad: Tensor,
    out: Tensor,
    kind: Pooling,
    sharpness: float,
    scale: float,
) -> None:
    """Launch one of the kernels of the second pass."""
    queries, contexts, longest = best.shape
    length = padded_to(longest)
    block = max(1, min(padded_to(contexts), POOLED // length))
    launch(
        kernel, (queries * tiles(contexts, block),), best, mask, grad, out, contexts, longest,
        sharpness, scale, kind=kind, length=length, block=block, warps=4,
    )  # fmt: skip


@jit
def _forward(  # type: ignore[no-untyped-def]
    x, y, y_mask, x_rows, y_items, best, won, vectors, items, nc, lq, lc, longest, width,
    rows: tl.constexpr, contexts: tl.constexpr, head: tl.constexpr, tail: tl.constexpr,
    group: tl.constexpr, save: tl.constexpr, block_k: tl.constexpr, precision: tl.constexpr,
    exact: tl.constexpr, resident: tl.constexpr,
):  # fmt: skip
    """One program: `rows` query vectors, and `group` tiles of contexts."""
    m, k = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, block_k)
    x_ok = m < vectors
    x_row = tl.load(x_rows + m, x_ok, other=0).to(tl.int64)
    if resident:
        inside = x_ok[:, None] & (k < width)[None, :]
        a = tl.load(x + x_row[:, None] * width + k[None, :], inside, other=0.0)
        if exact:
            a = a.to(tl.float32)
    else:
        a = x_row  # not read
    first = tl.program_id(1) * group
    for tile in range(first, tl.minimum(first + group, tl.cdiv(items, contexts))):
        top = tl.full((rows, contexts), LOWEST, tl.float32)
        which = tl.zeros((rows, contexts), tl.int32)
        whole = longest // head * head if tail > 0 else longest
        for start in range(0, whole, head):
            top, which = _highest(
                x, y, a, x_row, x_ok, y_mask, y_items, tile, start, items, lc, longest, width, top,
                which, rows, contexts, head, save, block_k, precision, exact, resident,
            )  # fmt: skip
        if tail > 0:
            top, which = _highest(
                x, y, a, x_row, x_ok, y_mask, y_items, tile, whole, items, lc, longest, width, top,
                which, rows, contexts, tail, save, block_k, precision, exact, resident,
            )  # fmt: skip
        c = tile * contexts + tl.arange(0, contexts)
        item = tl.load(y_items + c, c < items, other=0).to(tl.int64)
        place = ((x_row // lq)[:, None] * nc + item[None, :]) * lq + (x_row % lq)[:, None]
        ok = x_ok[:, None] & (c < items)[None, :]
        tl.store(best + place, top, ok)
        if save:
            tl.store(won + place, which, ok)


@jit
def _highest(  # type: ignore[no-untyped-def]
    x, y, a, x_row, x_ok, y_mask, y_items, tile, start, items, lc, longest, width, best, which,
    rows: tl.constexpr, contexts: tl.constexpr, length: tl.constexpr, save: tl.constexpr,
    block_k: tl.constexpr, precision: tl.constexpr, exact: tl.constexpr, resident: tl.constexpr,
):  # fmt: skip
    """Raise the best of each row and context to that of `length` vectors more, the first wins."""
    columns: tl.constexpr = contexts * length
    n = tl.arange(0, columns)
    c, r = tile * contexts + n // length, start + n % length
    y_ok = (c < items) & (r < longest)
    y_row = tl.load(y_items + c, y_ok, other=0).to(tl.int64) * lc + r
    y_ok = y_ok & (tl.load(y_mask + y_row, y_ok, other=0) != 0)
    if resident:
        k = tl.arange(0, block_k)
        inside = y_ok[:, None] & (k < width)[None, :]
        b = tl.load(y + y_row[:, None] * width + k[None, :], inside, other=0.0)
        if exact:
            b = b.to(tl.float32)
        s = tl.dot(a, tl.trans(b), input_precision=precision)
    else:
        s = product(x, y, x_row, y_row, x_ok, y_ok, width, rows, columns, block_k, precision, exact)
    s = tl.reshape(tl.where(y_ok[None, :], s, LOWEST), (rows, contexts, length))
    if save:
        top, place = tl.max(s, 2, return_indices=True, return_indices_tie_break_left=True)
        which = tl.where(top > best, start + place, which)
    else:
        top = tl.max(s, 2)
    return tl.maximum(best, top), which


@jit
def _pool_forward(  # type: ignore[no-untyped-def]
    best, mask, grad, out, contexts, longest, sharpness, scale,
    kind: tl.constexpr, length: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One program: the scores of a query with some contexts."""
    at, inside, pair, ok, score, share = _pooled(
        best, mask, contexts, longest, sharpness, scale, kind, length, block
    )
    tl.store(out + pair, score, ok)


@jit
def _pool_backward(  # type: ignore[no-untyped-def]
    best, mask, grad, out, contexts, longest, sharpness, scale,
    kind: tl.constexpr, length: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One program: the derivatives by a query's best products with some contexts, 0 at padding."""
    at, inside, pair, ok, score, share = _pooled(
        best, mask, contexts, longest, sharpness, scale, kind, length, block
    )
    tl.store(out + at, share * tl.load(grad + pair, ok, other=0.0)[None, :], inside)


@jit
def _pooled(  # type: ignore[no-untyped-def]
    best, mask, contexts, longest, sharpness, scale,
    kind: tl.constexpr, length: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Return places of (length, block) numbers, which exist, pairs, scores, and derivatives."""
    number, across = tl.program_id(0), tl.cdiv(contexts, block)
    q, i = (number // across).to(tl.int64), tl.arange(0, length)
    c = number % across * block + tl.arange(0, block)
    real = tl.load(mask + q * longest + i, i < longest, other=0) != 0
    pair, ok = q * contexts + c, c < contexts
    at = pair[None, :] * longest + i[:, None]
    found = tl.load(best + at, real[:, None] & ok[None, :], other=0.0)
    found = tl.reshape(found, (1, length, block))
    score, share = pool(found, tl.reshape(real, (1, length, 1)), kind, sharpness, scale)
    score, share = tl.reshape(score, (block,)), tl.reshape(share, (length, block))
    return at, (i < longest)[:, None] & ok[None, :], pair, ok, score, share


@jit
def _query_gradient(  # type: ignore[no-untyped-def]
    y, won, weights, d_x, nq, nc, lq, lc, width,
    rows: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """One program: some query vectors, some of their numbers; the winners of all contexts."""
    m = tl.program_id(0) * rows + tl.arange(0, rows)
    d = tl.program_id(1) * block_d + tl.arange(0, block_d)
    ok, inside = m < nq * lq, d < width
    q, i = (m // lq).to(tl.int64), m % lq
    total = tl.zeros((rows, block_d), tl.float32)
    for c in range(nc):
        place = (q * nc + c) * lq + i
        weight = tl.load(weights + place, ok, other=0.0)
        row = (c + tl.zeros_like(q)) * lc + tl.load(won + place, ok, other=0)  # 64 bits
        mask = (ok & (weight != 0))[:, None] & inside[None, :]
        vectors = tl.load(y + row[:, None] * width + d[None, :], mask, other=0.0)
        total += weight[:, None] * vectors.to(tl.float32)
    at = d_x + m.to(tl.int64)[:, None] * width + d[None, :]
    tl.store(at, total.to(d_x.dtype.element_ty), ok[:, None] & inside[None, :])


@jit
def _context_gradient(  # type: ignore[no-untyped-def]
    x, won, weights, d_y, nq, nc, lq, lc, width,
    rows: tl.constexpr, columns: tl.constexpr, block_d: tl.constexpr,
    inner: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    """One program: some vectors of a context, some of their numbers; all queries that they won."""
    c = tl.program_id(0).to(tl.int64)
    r = tl.program_id(1) * columns + tl.arange(0, columns)
    d = tl.program_id(2) * block_d + tl.arange(0, block_d)
    inside = d < width
    total = tl.zeros((columns, block_d), tl.float32)
    for start in range(0, nq * lq, rows):
        m = start + tl.arange(0, rows)
        ok = m < nq * lq
        q, i = (m // lq).to(tl.int64), m % lq
        place = (q * nc + c) * lq + i
        weight = tl.load(weights + place, ok, other=0.0)
        which = tl.load(won + place, ok, other=0)
        hit = tl.where(which[:, None] == r[None, :], weight[:, None], 0.0)
        # a row that is padding has weight 0, but its values may be anything
        mask = (ok & (weight != 0))[:, None] & inside[None, :]
        at = x + m.to(tl.int64)[:, None] * width + d[None, :]
        vectors = tl.load(at, mask, other=0.0).to(tl.float32)
        total = fine_product(tl.trans(hit), vectors, total, inner, exact)
    at = d_y + (c * lc + r)[:, None] * width + d[None, :]
    tl.store(at, total.to(d_y.dtype.element_ty), (r < lc)[:, None] & inside[None, :])
