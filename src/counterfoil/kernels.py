"""Scores, losses and top-k lists of plain tensors: Triton kernels on a GPU, torch elsewhere.

- `max_sim` (CHAN, ColBERT) and `attention_scores` (SCAN, BFAN): every image with every text;
- `tiled_info_nce`: the contrastive loss of all pairs;
- `top_k`: the best answers of queries.

On a GPU product, attention and norms of a tile of pairs are one kernel, in the forward and in the
backward pass: what is written is scores, and for `max_sim` the best product of each query vector
with each other item; nothing of the size images x texts x words x regions is in memory. The kernels
need triton, which is installed with PyTorch for CUDA, and float32, float16 or bfloat16 vectors;
sums are float32. On the CPU, in float64, or for items too long for a tile, the same functions run
in torch.

Both forms agree to 1e-5 of the largest value in float32; in half precision kernels are closer to
float32, as torch rounds each product to the vectors' precision. The models call the same kernels
in `score_matrix`; ``with use("never"):`` switches them off.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor

from counterfoil import gpu
from counterfoil.core.types import Embeddings
from counterfoil.gpu import Pooling, use
from counterfoil.losses.tiled import tiled_info_nce
from counterfoil.models.layers.attention_model import nonempty, torch_scores
from counterfoil.models.layers.cross_attention import (
    AttentionHead,
    CrossAttention,
    Direction,
    Focus,
    HardAssignment,
    QueryPooling,
    RawNorm,
)
from counterfoil.models.layers.kernel_scores import kernel_scores
from counterfoil.models.layers.pooling import check_choice, full_mask, full_precision
from counterfoil.scoring.reducers import (
    NOTHING,
    best_columns,
    rank_keys,
    rows_of,
    scores_of,
    sort_descending,
)

_ANSWERS = 2048  # scored at a time by the torch form of `top_k`

__all__ = ["attention_scores", "max_sim", "tiled_info_nce", "top_k", "use"]


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
    head, pool = HardAssignment(direction), _pooling(pooling, sharpness)
    if pooling == "LogSumExp":
        pool = replace(pool, divisor=1 / sharpness)
    return _scores(images, texts, image_mask, text_mask, head, pool)


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
    head = CrossAttention(direction, raw_norm, sharpness, focus)
    pool = _pooling(pooling, pooling_sharpness)
    return _scores(images, texts, image_mask, text_mask, head, pool)


@torch.no_grad()
def top_k(
    queries: Tensor,
    answers: Tensor,
    k: int,
    query_groups: Tensor | None = None,
    answer_groups: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """List the k answers of every query with the highest inner products.

    On a GPU the kernel compares scores with each query's k-th best so far before it writes any, so
    there is no score matrix; half precision is summed in float32. Without gradient.

    Args:
        queries: (Q, D) vectors.
        answers: (N, D) vectors, of the same dtype.
        k: length of a list.
        query_groups: (Q,) integers: answers of the query's own group are left out, such as the
            captions of an image; None for all answers.
        answer_groups: (N,) likewise.

    Returns:
        (Q, k) float32 scores, -inf where there are fewer answers, and their (Q, k) long rows, -1
        there; best first, equal scores by row.

    Raises:
        ValueError: shapes or dtypes that do not fit, k below 1, or numbers that are not finite.

    >>> scores, rows = top_k(torch.eye(3), torch.tensor([[0.6, 0.8, 0.0], [0.0, 0.6, 0.8]]), 1)
    >>> rows.tolist()
    [[0], [0], [1]]
    """
    _check_top_k(queries, answers, k)
    one, other = _groups(query_groups, queries), _groups(answer_groups, answers)
    if query_groups is None or answer_groups is None:
        one, other = torch.zeros_like(one), torch.ones_like(other)
    if len(queries) and len(answers) and gpu.usable(queries, answers):
        from counterfoil.gpu.top_k import best_keys

        keys = best_keys(queries, answers, k, one, other)
    else:
        keys = _best_keys(queries, answers, k, one, other)
    return scores_of(keys), rows_of(keys)


def _check_top_k(queries: Tensor, answers: Tensor, k: int) -> None:
    shapes = tuple(queries.shape), tuple(answers.shape)
    fitting = queries.ndim == answers.ndim == 2 and shapes[0][1] == shapes[1][1]
    if not fitting or queries.dtype != answers.dtype:
        raise ValueError(
            f"vectors of shapes {shapes[0]} and {shapes[1]}, {queries.dtype} and {answers.dtype} "
            "were given; they must be (queries, D) and (answers, D), of one dtype"
        )
    if k < 1:
        raise ValueError(f"k is {k}, but at least 1 answer is needed")
    for name, vectors in (("queries", queries), ("answers", answers)):
        if not bool(vectors.isfinite().all()):
            raise ValueError(f"the vectors of {name} hold NaN or infinite numbers")


def _groups(groups: Tensor | None, vectors: Tensor) -> Tensor:
    if groups is None:
        return torch.zeros(len(vectors), dtype=torch.int32, device=vectors.device)
    if groups.shape != (len(vectors),):
        raise ValueError(
            f"groups of shape {tuple(groups.shape)} were given for {len(vectors)} vectors; one "
            "number for each is needed"
        )
    return groups.to(vectors.device, torch.int32)


def _best_keys(
    queries: Tensor, answers: Tensor, k: int, query_groups: Tensor, answer_groups: Tensor
) -> Tensor:
    """The torch form of `gpu.top_k.best_keys`: a tile of scores at a time."""
    best = torch.full((len(queries), k), NOTHING, device=queries.device)
    for start in range(0, len(answers), _ANSWERS):
        part = slice(start, start + _ANSWERS)
        scores = (full_precision(queries) @ full_precision(answers[part]).T).float()
        rows = torch.arange(start, start + scores.shape[1], device=scores.device)
        own = query_groups.unsqueeze(1) == answer_groups[part]
        keys = rank_keys(scores, rows.expand_as(scores)).masked_fill(own, NOTHING)
        best = best_columns(torch.cat([best, keys], 1), k).contiguous()
    return sort_descending(best)


def _pooling(kind: Pooling, sharpness: float) -> QueryPooling:
    check_choice("pooling", kind, get_args(Pooling))
    if sharpness <= 0:
        raise ValueError(f"a sharpness of {sharpness} was given; it must be positive")
    return QueryPooling(kind, sharpness)


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
    left, right = _embeddings(images, image_mask), _embeddings(texts, text_mask)
    if not len(images) or not len(texts):
        return images.new_zeros(len(images), len(texts), dtype=torch.float32)
    scores = kernel_scores(left, right, (head,), pooling)
    if scores is not None:
        return scores
    return torch_scores(nonempty(left), right, (head,), pooling)


def _embeddings(tokens: Tensor, mask: Tensor | None) -> Embeddings:
    if mask is not None and (mask.shape != tokens.shape[:2] or mask.dtype != torch.bool):
        raise ValueError(
            f"a mask of shape {tuple(mask.shape)} and {mask.dtype} was given for vectors of shape "
            f"{tuple(tokens.shape)}; it must be {tuple(tokens.shape[:2])} and bool"
        )
    return Embeddings(tokens, full_mask(tokens) if mask is None else mask)
