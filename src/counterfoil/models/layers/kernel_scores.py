"""Score matrices of attention heads by the kernels of `counterfoil.gpu`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from counterfoil import gpu
from counterfoil.core.types import Embeddings
from counterfoil.models.layers.cross_attention import (
    AttentionHead,
    CrossAttention,
    HardAssignment,
    QueryPooling,
    no_words,
)
from counterfoil.models.layers.fused import gram_matrices, squared_lengths
from counterfoil.models.layers.pooling import ensure_nonempty, zero_padded

if TYPE_CHECKING:
    from counterfoil.gpu.common import Lengths


def kernel_scores(
    images: Embeddings,
    texts: Embeddings,
    heads: tuple[AttentionHead, ...],
    pooling: QueryPooling,
) -> Tensor | None:
    """Return the (I, T) float32 scores, summed over heads; None where the torch form is needed.

    Within the rounding of inputs they are those of `fused.apply_heads`: products of vectors in half
    precision are summed in float32, where torch rounds each affinity to half precision.

    Raises:
        ValueError: a text has no words.
    """
    device = images.tokens.device.type
    dtype = images.tokens.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    if not (images.mask.numel() and texts.mask.numel() and gpu.usable(images.tokens, texts.tokens)):
        return None
    if dtype not in gpu.DTYPES or not all(_fits(images, texts, head) for head in heads):
        return None
    from counterfoil.gpu.common import lengths_of

    regions, words = lengths_of(images.mask, texts.mask)
    if not words.all():
        raise no_words(int(words.argmin()))
    if not regions.all():
        images, regions = ensure_nonempty(images), regions.clip(1)
    lengths, gradient = (regions, words), _needs_gradient(images, texts)
    if gradient:  # kernels skip padding, but the gradients of Gram matrices and norms read it
        images, texts = _without_padding(images), _without_padding(texts)
    if _one_product(heads) and not gradient:
        return _head_scores(images, texts, heads[0], pooling, dtype, lengths, both=True)
    scores = [_head_scores(images, texts, head, pooling, dtype, lengths) for head in heads]
    return scores[0] if len(scores) == 1 else torch.stack(scores).sum(0)


def _one_product(heads: tuple[AttentionHead, ...]) -> bool:
    """Return whether two heads differ in their direction only, as BFAN's."""
    match heads:
        case (CrossAttention() as one, CrossAttention() as other):
            return one.direction != other.direction and (
                replace(one, direction=other.direction) == other
            )
    return False


def _needs_gradient(*sides: Embeddings) -> bool:
    return torch.is_grad_enabled() and any(side.tokens.requires_grad for side in sides)


def _fits(images: Embeddings, texts: Embeddings, head: AttentionHead) -> bool:
    regions, words = images.mask.shape[1], texts.mask.shape[1]
    if isinstance(head, HardAssignment):
        return (words if head.direction == "t2i" else regions) <= gpu.LONGEST
    if isinstance(head, CrossAttention) and isinstance(head.sharpness, int | float):
        return gpu.attention_fits(words, regions)
    return False


def _head_scores(
    images: Embeddings,
    texts: Embeddings,
    head: AttentionHead,
    pooling: QueryPooling,
    dtype: torch.dtype,
    lengths: tuple[Lengths, Lengths],
    both: bool = False,
) -> Tensor:
    """Return the scores of one head; with `both`, also of the one in the other direction."""
    queries, contexts = (texts, images) if head.direction == "t2i" else (images, texts)
    of_sides = lengths[::-1] if head.direction == "t2i" else lengths
    with torch.autocast(queries.tokens.device.type, enabled=False):
        x, y = queries.tokens.to(dtype), contexts.tokens.to(dtype)
        masks = queries.mask, contexts.mask
        kind, sharpness, scale = pooling.kind, pooling.sharpness, 1 / pooling.divisor
        if kind == "LogSumExp":
            scale /= sharpness
        if isinstance(head, CrossAttention):
            from counterfoil.gpu.attention import AttentionSettings, attention_scores

            squares = queries.mask.float() if pooling.unit else squared_lengths(queries)
            settings = AttentionSettings(
                head.raw_norm, float(head.sharpness), head.focus, kind, sharpness, scale
            )
            back = None
            if both:
                back = squared_lengths(contexts), _gram(queries)
            gram = _gram(contexts)
            scores = attention_scores(x, y, *masks, of_sides, squares, gram, settings, back)
        else:
            from counterfoil.gpu.max_sim import max_sim

            scores = max_sim(x, y, *masks, of_sides, pooling=kind, sharpness=sharpness, scale=scale)
    return scores.T if head.direction == "t2i" else scores


def _without_padding(items: Embeddings) -> Embeddings:
    return replace(items, tokens=zero_padded(items.tokens, items.mask))


def _gram(items: Embeddings) -> Tensor:
    return gram_matrices(items.tokens) if items.gram is None else items.gram
