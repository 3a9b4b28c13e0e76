"""Score matrices of attention heads by the kernels of `counterfoil.gpu`."""

from __future__ import annotations

from dataclasses import replace

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
from counterfoil.models.layers.fused import prepare_context, squared_lengths


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
    sides = images.tokens, texts.tokens
    if not len(images) or not len(texts) or not gpu.usable(*sides):
        return None
    if dtype not in gpu.DTYPES or not all(_fits(images, texts, head) for head in heads):
        return None
    words = texts.mask.any(1)
    if not bool(words.all()):
        raise no_words(int(words.logical_not().nonzero()[0]))
    if _one_product(heads) and not _needs_gradient(images, texts):
        return _head_scores(images, texts, heads[0], pooling, dtype, both=True)
    scores = [_head_scores(images, texts, head, pooling, dtype) for head in heads]
    return torch.stack(scores).sum(0)


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
    both: bool = False,
) -> Tensor:
    """Return the scores of one head; with `both`, also of the one in the other direction."""
    queries, contexts = (texts, images) if head.direction == "t2i" else (images, texts)
    queries = prepare_context(queries, gram=both)
    contexts = prepare_context(contexts, gram=head.grams)
    with torch.autocast(queries.tokens.device.type, enabled=False):
        x, y = queries.tokens.to(dtype), contexts.tokens.to(dtype)
        masks = queries.mask, contexts.mask
        kind, sharpness, scale = pooling.kind, pooling.sharpness, 1 / pooling.divisor
        if kind == "LogSumExp":
            scale /= sharpness
        if isinstance(head, CrossAttention):
            from counterfoil.gpu.attention import AttentionSettings, attention_scores

            squares = squared_lengths(queries)
            if pooling.unit:
                squares = torch.ones_like(squares)
            assert contexts.gram is not None
            settings = AttentionSettings(
                head.raw_norm, float(head.sharpness), head.focus, kind, sharpness, scale
            )
            back = None
            if both:
                assert queries.gram is not None
                back = squared_lengths(contexts), queries.gram
            scores = attention_scores(x, y, *masks, squares, contexts.gram, settings, back)
        else:
            from counterfoil.gpu.max_sim import max_sim

            scores = max_sim(x, y, *masks, pooling=kind, sharpness=sharpness, scale=scale)
    return scores.T if head.direction == "t2i" else scores
