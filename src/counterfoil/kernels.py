"""Scores of bags of vectors on plain tensors: Triton kernels on a GPU, torch elsewhere.

MaxSim (CHAN, ColBERT) and the attention of SCAN and BFAN, every image with every text, and the
contrastive loss of all pairs (`tiled_info_nce`). On a GPU product, attention, norms and pooling of
a tile of pairs are one kernel, in the forward and in the backward pass: only scores are written,
and nothing of the size images x texts x words x regions is in memory. The kernels need triton,
which is installed with PyTorch for CUDA, and float32, float16 or bfloat16 vectors; sums are
float32. On the CPU, in float64, or for items too long for a tile, the same functions run in torch.

Both forms agree to 1e-5 of the largest value in float32; in half precision kernels are closer to
float32, as torch rounds each product to the vectors' precision. The models call the same kernels
in `score_matrix`; ``with use("never"):`` switches them off.
"""

from __future__ import annotations

from functools import partial
from typing import get_args

import torch
from torch import Tensor

from counterfoil.core.types import Embeddings
from counterfoil.gpu import Pooling, use
from counterfoil.losses.tiled import tiled_info_nce
from counterfoil.models.chan import pool_queries
from counterfoil.models.layers.attention_model import nonempty, torch_scores
from counterfoil.models.layers.cross_attention import (
    AttendedProducts,
    AttentionHead,
    CrossAttention,
    Direction,
    Focus,
    HardAssignment,
    RawNorm,
)
from counterfoil.models.layers.kernel_scores import QueryPooling, kernel_scores
from counterfoil.models.layers.pooling import check_choice, full_mask

__all__ = ["attention_scores", "max_sim", "tiled_info_nce", "use"]


def max_sim(
    images: Tensor,
    texts: Tensor,
    image_mask: Tensor | None = None,
    text_mask: Tensor | None = None,
    *,
    direction: Direction = "t2i",
    pooling: Pooling = "Mean",
    sharpness: float = 1.0,
) -> Tensor:
    """Score every image with every text by late interaction.

    Each query vector takes its highest inner product with the other item's vectors, and these are
    pooled (ColBERT, SIGIR 2020, with "Sum"; CHAN, CVPR 2023, with "LogSumExp").

    Args:
        images: (I, R, D) vectors of images.
        texts: (T, L, D) vectors of texts.
        image_mask: (I, R) bool, False at padding, which may hold any values; None when all are
            real. An image without a vector counts as one zero vector.
        text_mask: (T, L) likewise; every text has a vector.
        direction: "t2i": words are the queries; "i2t": regions are.
        pooling: of the similarities of a query; "LogSumExp" is log(sum(exp(sharpness * s))).
        sharpness: of "LogSumExp" and "Softmax".

    Returns:
        (I, T) float32 scores, differentiable once.

    Raises:
        ValueError: shapes that do not fit, an unknown option, or a text without a vector.

    >>> images = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.8], [0.8, 0.6]]])
    >>> texts = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.8], [0.6, 0.8]]])
    >>> max_sim(images, texts)
    tensor([[1.0000, 0.8000],
            [0.8000, 1.0000]])
    """
    check_choice("direction", direction, get_args(Direction))
    head = HardAssignment(direction)
    return _scores(images, texts, image_mask, text_mask, head, _pooling(pooling, sharpness))


def attention_scores(
    images: Tensor,
    texts: Tensor,
    image_mask: Tensor | None = None,
    text_mask: Tensor | None = None,
    *,
    direction: Direction = "t2i",
    raw_norm: RawNorm = "clipped_l2norm",
    sharpness: float = 9.0,
    focus: Focus = "none",
    pooling: Pooling = "Mean",
    pooling_sharpness: float = 6.0,
) -> Tensor:
    """Score every image with every text by cross-attention.

    Each query vector attends to the other item's vectors, and the cosines of queries and attended
    vectors are pooled (SCAN, ECCV 2018; with `focus`, one direction of BFAN, ACM MM 2019).

    Args:
        images: (I, R, D) vectors of images.
        texts: (T, L, D) vectors of texts.
        image_mask: as for `max_sim`.
        text_mask: as for `max_sim`.
        direction: "t2i": words attend to regions; "i2t": regions attend to words.
        raw_norm: normalisation of the affinities before the softmax.
        sharpness: inverse temperature of the attention.
        focus: which part of the context BFAN keeps, "equal" or "prob"; "none" keeps all.
        pooling: of the cosines of a query; "LogSumExp" is SCAN's, log(sum(exp(s * c))) / s with
            s = `pooling_sharpness`.
        pooling_sharpness: of "LogSumExp" and "Softmax".

    Returns:
        (I, T) float32 scores, differentiable once.

    Raises:
        ValueError: shapes that do not fit, an unknown option, or a text without a vector.

    >>> images = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.8], [0.8, 0.6]]])
    >>> texts = torch.tensor([[[1.0, 0.0]], [[0.6, 0.8]]])
    >>> attention_scores(images, texts)
    tensor([[1.0000, 0.9899],
            [0.7071, 0.9899]])
    """
    check_choice("direction", direction, get_args(Direction))
    check_choice("raw_norm", raw_norm, get_args(RawNorm))
    check_choice("focus", focus, ("none", "equal", "prob"))
    scale = 1 / pooling_sharpness if pooling == "LogSumExp" else 1.0
    head = CrossAttention(direction, raw_norm, sharpness, focus)
    pool = _pooling(pooling, pooling_sharpness, scale)
    return _scores(images, texts, image_mask, text_mask, head, pool)


def _pooling(kind: Pooling, sharpness: float, scale: float = 1.0) -> QueryPooling:
    check_choice("pooling", kind, get_args(Pooling))
    if sharpness <= 0:
        raise ValueError(f"a sharpness of {sharpness} was given; it must be positive")
    return QueryPooling(kind, sharpness, scale)


def _scores(
    images: Tensor,
    texts: Tensor,
    image_mask: Tensor | None,
    text_mask: Tensor | None,
    head: AttentionHead,
    pooling: QueryPooling,
) -> Tensor:
    if images.ndim != 3 or texts.ndim != 3 or images.shape[2] != texts.shape[2]:
        raise ValueError(
            f"vectors of shapes {tuple(images.shape)} and {tuple(texts.shape)} were given; they "
            "must be (images, regions, D) and (texts, words, D)"
        )
    left, right = nonempty(_embeddings(images, image_mask)), _embeddings(texts, text_mask)
    if not len(images) or not len(texts):
        return images.new_zeros(len(images), len(texts), dtype=torch.float32)
    scores = kernel_scores(left, right, (head,), pooling)
    if scores is not None:
        return scores
    return torch_scores(left, right, (head,), _similarity, partial(_pool, pooling))


def _embeddings(tokens: Tensor, mask: Tensor | None) -> Embeddings:
    if mask is not None and (mask.shape != tokens.shape[:2] or mask.dtype != torch.bool):
        raise ValueError(
            f"a mask of shape {tuple(mask.shape)} and {mask.dtype} was given for vectors of shape "
            f"{tuple(tokens.shape)}; it must be {tuple(tokens.shape[:2])} and bool"
        )
    return Embeddings(tokens, full_mask(tokens) if mask is None else mask)


def _similarity(results: tuple[Tensor, ...], square: Tensor | None) -> Tensor:
    return results[0] if square is None else AttendedProducts(*results).cosine(square)


def _pool(pooling: QueryPooling, similarity: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    if pooling.kind == "LogSumExp":
        pooled = pool_queries("LSE", similarity, dim, mask, 1 / pooling.sharpness)
    else:
        pooled = pool_queries(pooling.kind, similarity, dim, mask, 1 / pooling.sharpness)
    return pooled * pooling.scale
