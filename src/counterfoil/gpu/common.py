"""Parts that several kernels share: the product of a tile, pooling of queries, and block sizes.

Layout of a tile: `block_m` rows are the vectors of `items` queries of `block_m / items` vectors
each, padded to a power of two, and `block_n` columns those of one or several contexts likewise. So
a reduction over an item's vectors is a reshape and a reduction of one axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterfoil.gpu import interpreted
from counterfoil.gpu.language import LOWEST, TINY, jit, tl

Lengths: TypeAlias = npt.NDArray[np.int64]  # (N,), of the items of one side


def lengths_of(*masks: Tensor) -> list[Lengths]:
    """Return the place of every item's last vector, counted from 1, for each (N, L) bool mask.

    They are read in one transfer: each one waits until the GPU has nothing left to do.
    """
    ends = [(m * torch.arange(1, m.shape[1] + 1, device=m.device)).amax(1) for m in masks]
    return np.split(torch.cat(ends).cpu().numpy(), np.cumsum([len(m) for m in masks])[:-1])


def by_length(
    tokens: Tensor, mask: Tensor, lengths: Lengths
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Group items by length, so that short ones are not padded to the longest.

    Args:
        tokens: (N, L, D).
        mask: (N, L); every item has a vector.
        lengths: (N,) of `lengths_of`.

    Yields:
        Rows of the items of a group, their tokens (n, l, D) and mask (n, l).
    """
    groups = np.floor(np.log2(np.maximum(lengths, 8) - 1))  # 8, 9-16, 17-32, ...
    for group in np.unique(groups):
        chosen = np.flatnonzero(groups == group)
        longest = int(lengths[chosen].max())
        rows = torch.from_numpy(chosen).to(tokens.device, non_blocking=True)
        if len(chosen) == len(tokens):
            yield rows, tokens[:, :longest].contiguous(), mask[:, :longest].contiguous()
        else:
            yield rows, tokens[rows, :longest], mask[rows, :longest]


def score_by_length(
    queries: Tensor,
    contexts: Tensor,
    query_mask: Tensor,
    context_mask: Tensor,
    lengths: Sequence[Lengths],
    score: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """Score every query with every context, group by group of `by_length`.

    Args:
        queries: (Q, L, D).
        contexts: (C, R, D).
        query_mask: (Q, L) bool.
        context_mask: (C, R) bool.
        lengths: (Q,) and (C,) of `lengths_of`.
        score: computes (q, c) scores of a group of queries and one of contexts, given rows, tokens
            and uint8 mask of either.

    Returns:
        (Q, C) scores.
    """
    query_groups = by_length(queries, query_mask.to(torch.uint8), lengths[0])
    context_groups = list(by_length(contexts, context_mask.to(torch.uint8), lengths[1]))
    places, scores = [], []
    for rows, x, x_mask in query_groups:
        for columns, y, y_mask in context_groups:
            places.append((rows.unsqueeze(1), columns))
            scores.append(score(rows, x, x_mask, columns, y, y_mask))
    if len(scores) == 1:
        return scores[0]
    out = scores[0].new_empty(len(queries), len(contexts))
    for place, part in zip(places, scores, strict=True):
        out = out.index_put(place, part)
    return out


def tiles(size: int, tile: int) -> int:
    """Return the number of tiles that cover `size`."""
    return -(-size // tile)


def dot_settings(
    dtype: torch.dtype, *, backward: bool = False, precise: bool = False
) -> dict[str, Any]:
    """Return how `product` multiplies vectors of a dtype.

    Half precision is multiplied as it is and summed in float32. Products of float32 numbers that a
    kernel makes itself (`fine_product`) are those of numbers of 16 bits where the inputs are half,
    and of float32 where the inputs are. Float32 is multiplied by tensor cores as three products of
    TF32, five times as fast on an H100 as without them, with errors of some 1e-6 of a unit; it is
    rounded to TF32 where torch does so (`torch.set_float32_matmul_precision`).

    Args:
        dtype: of the vectors.
        backward: for a gradient, where three products of everything need too many registers.
        precise: no TF32, for scores that jump where a threshold is crossed.
    """
    half = dtype != torch.float32
    fast = not half and torch.get_float32_matmul_precision() != "highest"
    three = "ieee" if precise and not fast else "tf32x3"
    return {
        "block_k": 64 if half else 32,
        "precision": "tf32" if fast else three,
        "inner": "split" if half else "ieee" if backward and not fast else three,
        # triton 3.9's interpreter multiplies the bits of bfloat16
        "exact": interpreted() and half,
    }


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *arguments: Any,
    warps: int = 8,
    registers: int | None = None,
    **constants: Any,
) -> None:
    """Run a kernel on the device of its first argument.

    Args:
        kernel: jitted.
        grid: number of programs along each axis.
        arguments: of the kernel.
        warps: of a program.
        registers: most registers of a thread on Hopper GPUs and later ones, whose products take
            their numbers from shared memory; earlier ones would spill.
        constants: of the kernel.
    """
    limit = {"maxnreg": registers} if registers and is_hopper(arguments[0].device) else {}
    with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
        # triton's default for fusing products and sums differs between versions, so it is set
        options = {"num_warps": warps, "num_stages": 3, "enable_fp_fusion": True, **limit}
        kernel[grid](*arguments, **constants, **options)


def is_hopper(device: torch.device) -> bool:
    """Return whether this is a GPU of compute capability 9.0 or higher."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


def add_one(x: Tensor) -> Tensor:
    """Add 1 to 16 numbers, to see whether kernels run."""
    out = torch.empty_like(x)
    launch(_add_one, (1,), x, out)
    return out


@jit
def _add_one(x, out):  # type: ignore[no-untyped-def]
    i = tl.arange(0, 16)
    tl.store(out + i, tl.load(x + i) + 1.0)


@jit
def product(  # type: ignore[no-untyped-def]
    x, y, x_row, y_row, x_ok, y_ok, width,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
    precision: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    """Return the (block_m, block_n) inner products of rows of x (., width) and y (., width)."""
    total = tl.zeros((block_m, block_n), tl.float32)
    k = tl.arange(0, block_k)
    left = x + x_row[:, None] * width + k[None, :]
    right = y + y_row[:, None] * width + k[None, :]
    for start in range(0, width, block_k):
        inside = (start + k < width)[None, :]
        a = tl.load(left + start, x_ok[:, None] & inside, other=0.0)
        b = tl.load(right + start, y_ok[:, None] & inside, other=0.0)
        if exact:
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = tl.dot(a, tl.trans(b), total, input_precision=precision)
    return total


@jit
def fine_product(  # type: ignore[no-untyped-def]
    a, b, total, inner: tl.constexpr, exact: tl.constexpr
):
    """Return total + a @ b for float32 numbers made in a kernel.

    "split" writes each number as a sum of two of bfloat16, which hold 16 bits of it, and leaves out
    the product of the small parts: the error is 2e-5 of a term, far below the rounding of inputs in
    half precision, for three fast products.
    """
    if inner != "split":
        return tl.dot(a, b, total, input_precision=inner)
    a_high, b_high = a.to(tl.bfloat16), b.to(tl.bfloat16)
    a_low = (a - a_high.to(tl.float32)).to(tl.bfloat16)
    b_low = (b - b_high.to(tl.float32)).to(tl.bfloat16)
    if exact:
        a_high, b_high = a_high.to(tl.float32), b_high.to(tl.float32)
        a_low, b_low = a_low.to(tl.float32), b_low.to(tl.float32)
    total = tl.dot(a_low, b_high, total)
    total = tl.dot(a_high, b_low, total)
    return tl.dot(a_high, b_high, total)


@jit
def pool(similarity, ok, kind: tl.constexpr, sharpness, scale):  # type: ignore[no-untyped-def]
    """Pool (items, length, contexts) similarities over the middle axis, where `ok` is set.

    Returns the (items, contexts) scores, and the derivative of a score by each similarity.
    """
    real = ok.to(tl.float32)
    count = tl.sum(real, 1)
    if kind == "Mean" or kind == "Sum":
        share = real * scale
        if kind == "Mean":
            share = share / tl.maximum(count, 1.0)[:, None, :]
        share = tl.broadcast_to(share, similarity.shape)
        return tl.sum(tl.where(ok, similarity, 0.0) * share, 1), share
    top = tl.where(count > 0, tl.max(tl.where(ok, similarity, LOWEST), 1), 0.0)
    if kind == "Max":
        best = tl.where(ok & (similarity == top[:, None, :]), 1.0, 0.0)
        share = best / tl.maximum(tl.sum(best, 1), 1.0)[:, None, :]
        return top * scale, share * scale
    e = tl.where(ok, tl.exp(sharpness * tl.minimum(similarity - top[:, None, :], 0.0)), 0.0)
    total = tl.maximum(tl.sum(e, 1), TINY)
    share = e / total[:, None, :]
    if kind == "LogSumExp":
        return (tl.log(total) + sharpness * top) * scale, share * (sharpness * scale)
    mean = tl.sum(share * tl.where(ok, similarity, 0.0), 1)  # "Softmax"
    along = 1 + sharpness * (similarity - mean[:, None, :])
    return mean * scale, tl.where(ok, share * along * scale, 0.0)
