"""MaxSim: each query vector's best inner product with a context, pooled over the query's vectors.

score(q, c) = pool over l of max over r of <x_ql, y_cr>. One program has the vectors of some queries
and visits some contexts, block by block, with a running maximum; no product leaves the chip.

For the gradient, forward saves which context vector won and the derivative of the pooling: two
numbers per query vector and context. Backward then needs no product again: a query vector gets the
vectors that won it, and a context vector the query vectors that it won. Each sum is one program's,
in a fixed order, so gradients are reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

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
    score_by_length,
    tiles,
)
from counterfoil.gpu.language import LOWEST, jit, tl

ROWS, COLUMNS = 128, 64  # of a tile; more rows for one long query
# Without gradient, tiles are as large as registers allow (measured on an H100): 256 x 64 where the
# queries stay on the chip (1.1 x as fast), 128 x 128 on 4 warps elsewhere (1.2 x).
CONTEXTS_AT_ONCE = 16  # visited by one program, which reads its queries once
RESIDENT = 128  # numbers in half precision up to which the queries' vectors stay on the chip


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
        queries: (Q, L, D) float32, float16 or bfloat16, L at most 256; any values at padding.
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

    def score(
        rows: Tensor, x: Tensor, x_mask: Tensor, columns: Tensor, y: Tensor, y_mask: Tensor
    ) -> Tensor:
        return apply(x, y, x_mask, y_mask, pooling, sharpness, scale)

    return score_by_length(queries, contexts, query_mask, context_mask, lengths, score)


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
        pooling: Pooling,
        sharpness: float,
        scale: float,
    ) -> Tensor:
        (nq, lq, width), (nc, lc, _) = x.shape, y.shape
        out = x.new_empty(nq, nc, dtype=torch.float32)
        save = any(ctx.needs_input_grad[:2])
        won = x.new_empty((nq, nc, lq) if save else 1, dtype=torch.int32)
        share = x.new_empty(won.shape, dtype=torch.float32)
        tile, grid, settings = forward_settings(x, y, save)
        launch(
            _forward, grid, x, y, x_mask, y_mask, out, won, share,
            nq, nc, lq, lc, width, sharpness, scale, **tile, pooling=pooling, save=save, **settings,
        )  # fmt: skip
        ctx.save_for_backward(x, y, won, share)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, won, share = ctx.saved_tensors
        (nq, lq, width), (nc, lc, _) = x.shape, y.shape
        d_x, d_y, grad = torch.empty_like(x), torch.empty_like(y), grad.contiguous()
        sizes = nq, nc, lq, lc, width
        rows, columns, block_d = 64, min(64, max(16, padded_to(lc))), 64
        settings = dot_settings(x, backward=True)
        chunks = tiles(width, block_d)
        launch(
            _query_gradient, (tiles(nq * lq, rows), chunks), grad, y, won, share, d_x, *sizes,
            rows=rows, block_d=block_d,
        )  # fmt: skip
        launch(
            _context_gradient, (nc, tiles(lc, columns), chunks), grad, x, won, share, d_y, *sizes,
            rows=rows, columns=columns, block_d=block_d, inner=settings["inner"],
            exact=settings["exact"],
        )  # fmt: skip
        return d_x, d_y, *(None,) * 5


def forward_settings(
    x: Tensor, y: Tensor, save: bool
) -> tuple[dict[str, int], tuple[int, int], dict[str, Any]]:
    """Return the sizes of a tile of `_forward`, its grid, and how it multiplies."""
    (nq, lq, width), (nc, lc, _) = x.shape, y.shape
    length = padded_to(lq)
    settings = dot_settings(x)
    del settings["inner"]
    half = x.dtype != torch.float32
    settings["resident"] = half and width <= RESIDENT and length <= ROWS
    rows, columns = ROWS, COLUMNS
    if settings["resident"]:
        settings["block_k"] = max(16, padded_to(width))
        rows = ROWS if save else 2 * ROWS
    elif half and not save and length <= ROWS:
        columns, settings["warps"] = 2 * COLUMNS, 4
    if length > ROWS:
        settings["block_k"] //= 2
    context_length = min(columns, padded_to(lc))
    tile = {
        "items": max(1, rows // length),
        "length": length,
        "contexts": columns // context_length,
        "context_length": context_length,
        "group": CONTEXTS_AT_ONCE,
    }
    tiles_across = tiles(nc, tile["contexts"])
    grid = tiles(nq, tile["items"]), tiles(tiles_across, CONTEXTS_AT_ONCE)
    return tile, grid, settings


@jit
def _forward(  # type: ignore[no-untyped-def]
    x, y, x_mask, y_mask, out, won, share, nq, nc, lq, lc, width, sharpness, scale,
    items: tl.constexpr, length: tl.constexpr, contexts: tl.constexpr,
    context_length: tl.constexpr, group: tl.constexpr, pooling: tl.constexpr, save: tl.constexpr,
    block_k: tl.constexpr, precision: tl.constexpr, exact: tl.constexpr, resident: tl.constexpr,
):  # fmt: skip
    """One program: `items` queries, and `group` tiles of contexts."""
    rows: tl.constexpr = items * length
    columns: tl.constexpr = contexts * context_length
    m, n, k = tl.arange(0, rows), tl.arange(0, columns), tl.arange(0, block_k)
    q, i = tl.program_id(0) * items + m // length, m % length
    x_row = q.to(tl.int64) * lq + i
    x_ok = (q < nq) & (i < lq)
    x_ok = x_ok & (tl.load(x_mask + x_row, x_ok, other=0) != 0)
    if resident:
        inside = (k < width)[None, :]
        a = tl.load(x + x_row[:, None] * width + k[None, :], x_ok[:, None] & inside, other=0.0)
        if exact:
            a = a.to(tl.float32)
    first = tl.program_id(1) * group
    for tile in range(first, tl.minimum(first + group, tl.cdiv(nc, contexts))):
        best = tl.full((rows, contexts), LOWEST, tl.float32)
        which = tl.zeros((rows, contexts), tl.int32)
        for start in range(0, lc, context_length):
            c, r = tile * contexts + n // context_length, start + n % context_length
            y_row = c.to(tl.int64) * lc + r
            y_ok = (c < nc) & (r < lc)
            y_ok = y_ok & (tl.load(y_mask + y_row, y_ok, other=0) != 0)
            if resident:
                at = y + y_row[:, None] * width + k[None, :]
                b = tl.load(at, y_ok[:, None] & inside, other=0.0)
                if exact:
                    b = b.to(tl.float32)
                s = tl.dot(a, tl.trans(b), input_precision=precision)
            else:
                s = product(
                    x, y, x_row, y_row, x_ok, y_ok, width, rows, columns, block_k, precision, exact
                )
            s = tl.where(y_ok[None, :], s, LOWEST)
            s = tl.reshape(s, (rows, contexts, context_length))
            if save:
                top, place = tl.max(s, 2, return_indices=True, return_indices_tie_break_left=True)
                which = tl.where(top > best, start + place, which)
            else:
                top = tl.max(s, 2)
            best = tl.maximum(best, top)
        c = tile * contexts + tl.arange(0, contexts)
        best = tl.where((c < nc)[None, :], best, 0.0)
        score, part = pool(
            tl.reshape(best, (items, length, contexts)),
            tl.reshape(x_ok, (items, length, 1)),
            pooling, sharpness, scale,
        )  # fmt: skip
        query = tl.program_id(0) * items + tl.arange(0, items)
        place = query.to(tl.int64)[:, None] * nc + c[None, :]
        tl.store(out + place, score, (query < nq)[:, None] & (c < nc)[None, :])
        if save:
            place = (q.to(tl.int64)[:, None] * nc + c[None, :]) * lq + i[:, None]
            inner = ((q < nq) & (i < lq))[:, None] & (c < nc)[None, :]
            tl.store(won + place, which, inner)
            tl.store(share + place, tl.reshape(part, (rows, contexts)), inner)


@jit
def _query_gradient(  # type: ignore[no-untyped-def]
    grad, y, won, share, d_x, nq, nc, lq, lc, width,
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
        weight = tl.load(share + place, ok, other=0.0) * tl.load(grad + q * nc + c, ok, other=0.0)
        row = (c + tl.zeros_like(q)) * lc + tl.load(won + place, ok, other=0)  # 64 bits
        mask = (ok & (weight != 0))[:, None] & inside[None, :]
        vectors = tl.load(y + row[:, None] * width + d[None, :], mask, other=0.0)
        total += weight[:, None] * vectors.to(tl.float32)
    at = d_x + m.to(tl.int64)[:, None] * width + d[None, :]
    tl.store(at, total.to(d_x.dtype.element_ty), ok[:, None] & inside[None, :])


@jit
def _context_gradient(  # type: ignore[no-untyped-def]
    grad, x, won, share, d_y, nq, nc, lq, lc, width,
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
        weight = tl.load(share + place, ok, other=0.0) * tl.load(grad + q * nc + c, ok, other=0.0)
        which = tl.load(won + place, ok, other=0)
        hit = tl.where(which[:, None] == r[None, :], weight[:, None], 0.0)
        # a row that is padding has weight 0, but its values may be anything
        mask = (ok & (weight != 0))[:, None] & inside[None, :]
        at = x + m.to(tl.int64)[:, None] * width + d[None, :]
        vectors = tl.load(at, mask, other=0.0).to(tl.float32)
        total = fine_product(tl.trans(hit), vectors, total, inner, exact)
    at = d_y + (c * lc + r)[:, None] * width + d[None, :]
    tl.store(at, total.to(d_y.dtype.element_ty), (r < lc)[:, None] & inside[None, :])
