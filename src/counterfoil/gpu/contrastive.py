"""Contrastive loss over all pairs: log-sum-exps of wrong scores, by row and by column.

Forward: a program has some images and visits every `splits`-th tile of texts. It keeps a running
log-sum-exp of its rows, and writes one of each tile's columns; then the parts are added up.
Backward computes the scores again and writes the derivatives of a part of the matrix, `BUFFER`
numbers at most; two matrix products give the gradients. So memory is O((I + T) d) and that buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from counterfoil.gpu.common import dot_settings, launch, product, tiles
from counterfoil.gpu.language import LOWEST, TINY, jit, tl

ROWS = 128  # images of a tile
BUFFER = 1 << 24  # numbers that are there at a time
PROGRAMS = 512  # at least, where there is work for so many


def wrong_pairs(images: Tensor, texts: Tensor, own: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-sum-exp of the wrong scores of each image and of each text.

    A score is `scale` times the inner product. Differentiable by the vectors and the scale.

    Args:
        images: (I, d) float32, float16 or bfloat16.
        texts: (T, d) of the same dtype.
        own: (T,) image row of each text; all other pairs are wrong.
        scale: () float32.

    Returns:
        (I,) and (T,) float32; -inf where no pair is wrong.
    """
    apply: Callable[..., tuple[Tensor, Tensor]] = _WrongPairs.apply
    return apply(images.contiguous(), texts.contiguous(), own.int(), scale)


@final
class _WrongPairs(torch.autograd.Function):
    """See `wrong_pairs`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, own: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        width, texts = x.shape[1], len(y)
        settings = _settings(x)
        columns = tiles(texts, settings["block_n"])
        by_text = scale.new_full((texts,), -torch.inf)
        rows = []
        for part in _parts(x, texts // ROWS + 1):
            high = tiles(len(part), ROWS)
            splits = min(columns, tiles(PROGRAMS, high))
            row_parts = scale.new_empty(splits, len(part))
            column_parts = scale.new_empty(high, texts)
            launch(
                _forward, (high, splits), x, y, own, scale, row_parts, column_parts,
                part.start, part.stop, texts, width, **settings,
            )  # fmt: skip
            rows.append(row_parts.logsumexp(0))
            by_text = torch.logaddexp(by_text, column_parts.logsumexp(0))
        by_image = torch.cat(rows)
        ctx.save_for_backward(x, y, own, scale, by_image, by_text)
        return by_image, by_text

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, y, own, scale, by_image, by_text = ctx.saved_tensors
        width, texts = x.shape[1], len(y)
        settings = _settings(x)
        # derivatives are stored in the dtype of the vectors, as parts of the largest
        peak = (
            torch.stack([grad.abs().amax() for grad in grads])
            .amax()
            .clamp(min=torch.finfo(torch.float32).tiny)
        )
        of_image, of_text = (grad / peak for grad in grads)
        d_x = torch.empty(x.shape, device=x.device)
        d_y = torch.zeros(y.shape, device=y.device)
        d_scale = torch.zeros_like(scale)
        for part in _parts(x, texts):
            d_s = x.new_empty(len(part), texts)
            grid = tiles(len(part), ROWS), tiles(texts, settings["block_n"])
            along = scale.new_empty(grid)  # sums of derivatives times scores
            launch(
                _backward, grid, x, y, own, scale, by_image, by_text, of_image, of_text, d_s, along,
                part.start, part.stop, texts, width, **settings,
            )  # fmt: skip
            here = slice(part.start, part.stop)
            d_x[here] = d_s @ y
            d_scale += along.sum()
            d_y += d_s.T @ x[here]
        factor = peak * scale
        return (
            (d_x * factor).to(x.dtype),
            (d_y * factor).to(y.dtype),
            None,
            d_scale * (peak / scale),
        )


def _settings(x: Tensor) -> dict[str, Any]:
    settings = dot_settings(x.dtype)
    del settings["inner"]
    half = x.dtype != torch.float32
    return {**settings, "block_m": ROWS, "block_n": 128 if half else 64}


def _parts(x: Tensor, numbers: int) -> list[range]:
    """Cut the images into parts that need the buffer at most, with so many numbers for each."""
    step = max(1, BUFFER // numbers // ROWS) * ROWS
    return [range(start, min(start + step, len(x))) for start in range(0, len(x), step)]


@jit
def _scores(  # type: ignore[no-untyped-def]
    x, y, own, scale, row, column, stop, texts, width,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
    precision: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    """Return scores of a tile, and which of its pairs are there and wrong."""
    row_ok, column_ok = row < stop, column < texts
    s = product(
        x, y, row.to(tl.int64), column.to(tl.int64), row_ok, column_ok, width,
        block_m, block_n, block_k, precision, exact,
    )  # fmt: skip
    image = tl.load(own + column, column_ok, other=-1)
    wrong = row_ok[:, None] & column_ok[None, :] & (image[None, :] != row[:, None])
    return s * tl.load(scale), wrong


@jit
def _forward(  # type: ignore[no-untyped-def]
    x, y, own, scale, row_parts, column_parts, start, stop, texts, width,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
    precision: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    """One program: a tile of images with every `num_programs(1)`-th tile of texts."""
    a, split = tl.program_id(0), tl.program_id(1)
    row = start + a * block_m + tl.arange(0, block_m)
    top = tl.full((block_m,), LOWEST, tl.float32)
    total = tl.zeros((block_m,), tl.float32)
    for b in range(split, tl.cdiv(texts, block_n), tl.num_programs(1)):
        column = b * block_n + tl.arange(0, block_n)
        s, wrong = _scores(
            x, y, own, scale, row, column, stop, texts, width, block_m, block_n, block_k,
            precision, exact,
        )  # fmt: skip
        s = tl.where(wrong, s, LOWEST)
        # rows: the running sum is relative to the running maximum
        higher = tl.maximum(top, tl.max(s, 1))
        e = tl.where(wrong, tl.exp(s - higher[:, None]), 0.0)
        total = total * tl.exp(top - higher) + tl.sum(e, 1)
        top = higher
        # of a column: the part in these rows
        peak = tl.max(s, 0)
        e = tl.where(wrong, tl.exp(s - peak[None, :]), 0.0)
        of_column = tl.sum(e, 0)
        value = peak + tl.log(tl.maximum(of_column, TINY))
        at = column_parts + a.to(tl.int64) * texts + column
        tl.store(at, tl.where(of_column > 0, value, float("-inf")), column < texts)
    value = top + tl.log(tl.maximum(total, TINY))
    at = row_parts + split.to(tl.int64) * (stop - start) + (row - start)
    tl.store(at, tl.where(total > 0, value, float("-inf")), row < stop)


@jit
def _backward(  # type: ignore[no-untyped-def]
    x, y, own, scale, by_image, by_text, of_image, of_text, d_s, along, start, stop, texts, width,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
    precision: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    """One program: the derivatives of a tile of scores."""
    row = start + tl.program_id(0) * block_m + tl.arange(0, block_m)
    column = tl.program_id(1) * block_n + tl.arange(0, block_n)
    s, wrong = _scores(
        x, y, own, scale, row, column, stop, texts, width, block_m, block_n, block_k,
        precision, exact,
    )  # fmt: skip
    row_ok, column_ok = row < stop, column < texts
    # a wrong score is below both sums, so that nothing overflows
    row_sum = tl.load(by_image + row, row_ok, other=0.0)[:, None]
    column_sum = tl.load(by_text + column, column_ok, other=0.0)[None, :]
    by_row = tl.load(of_image + row, row_ok, other=0.0)[:, None]
    by_column = tl.load(of_text + column, column_ok, other=0.0)[None, :]
    s = tl.where(wrong, s, LOWEST)
    of_row = tl.exp(tl.minimum(s - tl.maximum(row_sum, LOWEST), 0.0)) * by_row
    of_column = tl.exp(tl.minimum(s - tl.maximum(column_sum, LOWEST), 0.0)) * by_column
    derivative = tl.where(wrong, of_row + of_column, 0.0)
    total = tl.sum(tl.sum(derivative * tl.where(wrong, s, 0.0), 1), 0)
    tl.store(along + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), total)
    at = d_s + (row - start).to(tl.int64)[:, None] * texts + column[None, :]
    tl.store(at, derivative.to(d_s.dtype.element_ty), row_ok[:, None] & column_ok[None, :])
