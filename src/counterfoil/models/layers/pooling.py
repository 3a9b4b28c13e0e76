"""Vectors of items: inner products, normalisation, pooling, and the interfaces of towers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, normalize

from counterfoil.core.types import Embeddings, ModalityBatch


def full_precision(tensor: Tensor) -> Tensor:
    """Return the tensor in single precision; double precision stays."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def squared_norms(tokens: Tensor) -> Tensor:
    """Return squared lengths of the vectors on the last axis, in at least single precision."""
    squares: Tensor = _SquaredNorms.apply(full_precision(tokens))  # type: ignore[no-untyped-call]
    return squares


@final
class _SquaredNorms(torch.autograd.Function):
    """|v|^2, whose gradient 2 v is one pass over the vectors, where that of a norm takes three."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(vectors)
        # many times as fast as the sum of a tensor of squares
        length: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
        return length.square()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (vectors,) = ctx.saved_tensors
        gradient: Tensor = (2 * grad).unsqueeze(-1) * vectors
        return gradient


def inner_pairs(images: Embeddings, texts: Embeddings) -> Tensor:
    """Return the (P,) inner products of aligned items of one vector each."""
    return (full_precision(images.tokens[:, 0]) * full_precision(texts.tokens[:, 0])).sum(-1)


def inner_products(images: Embeddings, texts: Embeddings) -> Tensor:
    """Return the (I, T) inner products of items of one vector each, never in half precision."""
    with torch.autocast(images.tokens.device.type, enabled=False):
        return full_precision(images.tokens[:, 0]) @ full_precision(texts.tokens[:, 0]).T


# Batch normalisation of rows, over those that are real.


def batch_norm_rows(norm: nn.BatchNorm1d, rows: Tensor) -> Tensor:
    """Normalise (P, D) rows over the batch; a single row, by the running statistics."""
    if len(rows) > 1 or not norm.training:
        normal: Tensor = norm(rows)
        return normal
    return batch_norm(rows, norm.running_mean, norm.running_var, norm.weight, norm.bias)


def batch_norm_tokens(norm: nn.BatchNorm1d, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """Normalise the (N, L, D) tokens of all items over the batch.

    Args:
        norm: normalisation of D features.
        tokens: tokens of the items.
        mask: (N, L), False for tokens that are ignored and become zero; None: all are used.
    """
    if mask is None:
        return batch_norm_rows(norm, tokens.flatten(0, 1)).view_as(tokens)
    rows = batch_norm_rows(norm, tokens[mask])
    spread = torch.zeros(tokens.shape, dtype=rows.dtype, device=rows.device)
    return spread.masked_scatter(mask.unsqueeze(-1), rows)


PROBES, FAINT = 8, 0.1  # pictures of noise; gradients below this share of the largest are left out


def field_shift(grid_of: Callable[[Tensor], Tensor], side: int) -> float:
    """How far the cells of a square grid lie off their places, see `PatchGrid.shift`.

    It is measured where the gradient of the middle cell lies in pictures of noise, the same every
    time; normalisation over the whole picture adds a faint gradient everywhere, which is left out.

    Args:
        grid_of: makes (N, R, F) vectors, row by row, of pixels (N, 3, side, side).
        side: of the pictures.
    """
    rng = torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.enable_grad():
        pixels = torch.randn(PROBES, 3, side, side, generator=rng).requires_grad_()
        vectors = grid_of(pixels)
        cells = math.isqrt(vectors.shape[1])
        middle = vectors[:, cells // 2 * (cells + 1)]
        weights = torch.randn(middle.shape, generator=rng)
        (gradient,) = torch.autograd.grad((middle * weights).sum(), pixels)
    strength = gradient.square().sum((0, 1))
    strength = strength * (strength > FAINT * strength.max())
    if not float(strength.sum()) > 0:  # nothing passes through
        return 0.0
    places = torch.arange(side) + 0.5
    centres = [strength.sum(1 - axis) @ places / strength.sum() for axis in (0, 1)]
    return float(sum(centres) / 2 * cells / side) - (cells // 2 + 0.5)


# Towers: encoders of raw items as vectors of one width.


class ImageTower(nn.Module, ABC):
    """An encoder of images as region vectors of one width."""

    width: int

    @abstractmethod
    def forward(self, items: ModalityBatch) -> Embeddings:
        """Encode N images as (N, R, width) vectors, not normalised; arbitrary at padding."""

    def patch_grid(self, vectors: int, pixels: tuple[int, int]) -> PatchGrid | None:
        """Return which of an image's vectors are patches; None if that is not known.

        Args:
            vectors: R.
            pixels: height and width of the input.
        """
        return None


@final
@dataclass(frozen=True, slots=True)
class PatchGrid:
    """Vectors of an image that are patches of the input, row by row and one after the other."""

    rows: int
    columns: int
    first: int = 0  # vectors before them, such as a class token
    # how far a patch lies to the right of and below its cell of the grid, in cells: convolutions
    # whose stride is smaller than their kernel read around the corner of a cell, not its middle
    shift: float = 0.0

    @staticmethod
    def square(
        vectors: int, pixels: tuple[int, int], *, patch: int = 0, shift: float = 0.0
    ) -> PatchGrid | None:
        """The square that so many vectors are, or its last ones where the size of a patch is known.

        None if they are no square, or the input is none.
        """
        side = math.isqrt(vectors)
        if patch:
            side = min(side, pixels[1] // patch)
        before = vectors - side * side
        if pixels[0] != pixels[1] or (before and not patch):
            return None
        return PatchGrid(side, side, before, shift)


class TextTower(nn.Module, ABC):
    """An encoder of texts as word vectors of one width."""

    width: int

    @abstractmethod
    def forward(self, items: ModalityBatch) -> Embeddings:
        """Encode N texts as (N, L, width) vectors, not normalised; arbitrary at padding."""


class WordTower(TextTower, ABC):
    """A text tower with an embedding for each word of a vocabulary, then special tokens."""

    embed: nn.Embedding

    @torch.no_grad()
    def begin_with(self, rows: Tensor, vectors: Tensor) -> None:
        """Start from ready-made word vectors; all other embeddings start from N(0, 1).

        Args:
            rows: (W,) long, ids of the words with a ready-made vector.
            vectors: (W, F), those vectors.
        """
        width = self.embed.embedding_dim
        if vectors.shape[1] != width:
            raise ValueError(
                f"word vectors of {vectors.shape[1]} numbers do not fit word embeddings of "
                f"{width}; use vectors of that width, or set word_width={vectors.shape[1]}"
            )
        nn.init.normal_(self.embed.weight)
        self.embed.weight[rows.to(self.embed.weight.device)] = vectors.to(self.embed.weight)


def projection(features: int, width: int) -> nn.Linear:
    """Return a linear layer, initialised as in VSE++ and SCAN: Xavier uniform, bias 0."""
    layer = nn.Linear(features, width)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def zero_padded(values: Tensor, mask: Tensor) -> Tensor:
    """Set (N, L, F) to zero at padding, so that garbage there reaches no gradient."""
    return values.masked_fill(~mask.unsqueeze(-1), 0)


def check_features(items: ModalityBatch, features: int) -> None:
    """Refuse items without vectors of the width that a model reads."""
    shape = items.values.shape
    if len(shape) != 3 or shape[-1] != features:
        raise ValueError(
            f"image features of shape {tuple(shape)} do not fit a model that reads "
            f"(images, regions, {features}); use the features it was trained on"
        )


def full_mask(tokens: Tensor) -> Tensor:
    """Return an (N, L) mask of (N, L, D) tokens that are all real."""
    return torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)


def ensure_nonempty(bag: Embeddings) -> Embeddings:
    """Set padding to zero, and give items without vectors one zero vector."""
    mask = bag.mask.clone()
    mask[:, 0] |= ~mask.any(1)
    return Embeddings(zero_padded(bag.tokens, bag.mask), mask)


def masked_ids(items: ModalityBatch) -> Tensor:
    """Return (N, L) token ids, 0 at padding."""
    return items.values.masked_fill(~items.mask, 0)


def valid_ids(items: ModalityBatch, *, longest: int, vocabulary: int) -> Tensor:
    """Return (N, L) token ids, 0 at padding; texts too long and unknown ids are refused."""
    ids = masked_ids(items)
    if ids.shape[1] > longest:
        raise ValueError(
            f"texts of {ids.shape[1]} tokens do not fit a model that reads {longest}; cut them, or "
            "build it with more positions"
        )
    if ids.numel() and int(ids.max()) >= vocabulary:
        raise ValueError(
            f"token id {int(ids.max())} is not in this model's vocabulary of {vocabulary}; read "
            "the texts with the tokenizer that it was trained with"
        )
    return ids


def check_heads(heads: int, width: int) -> None:
    """Refuse a number of attention heads that does not divide the width."""
    check_positive(width=width, heads=heads)
    if width % heads:
        raise ValueError(
            f"{heads} heads do not divide a width of {width}; choose a multiple of {heads}"
        )


def check_patch(size: int, patch: int) -> None:
    """Refuse patches that do not divide square pictures."""
    if size % patch:
        raise ValueError(
            f"patches of {patch} pixels do not divide pictures of {size}; choose a multiple of "
            f"{patch}"
        )


def check_positive(**sizes: int) -> None:
    """Refuse sizes below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}={size} is not possible; it must be at least 1")


# Pooling of an item's vectors to one.


Pool = Literal["mean", "max", "mean+max", "first", "last"]
POOLS = ("mean", "max", "mean+max", "first", "last")


def pool_vectors(kind: Pool, bag: Embeddings) -> Tensor:
    """Pool each item to one vector, (N, D); zero for an item without vectors.

    Args:
        kind: "mean+max" is the sum of both; "last" is the last real vector, the final state of a
            recurrent network; "first" is a transformer's class token.
        bag: (N, L, D) vectors of the items.
    """
    tokens = zero_padded(bag.tokens, bag.mask)
    if kind == "first":
        return tokens[:, 0]
    count = bag.mask.sum(1)
    if kind == "last":
        return tokens[torch.arange(len(bag), device=tokens.device), (count - 1).clamp(min=0)]
    mean = tokens.sum(1) / count.clamp(min=1).unsqueeze(1)
    if kind == "mean":
        return mean
    top = tokens.masked_fill(~bag.mask.unsqueeze(-1), -torch.inf).amax(1)
    top = top.masked_fill((count == 0).unsqueeze(1), 0)
    return top if kind == "max" else mean + top


def single_vector(vectors: Tensor) -> Embeddings:
    """Return (N, D) vectors as embeddings of one vector per item."""
    tokens = vectors.unsqueeze(1)
    return Embeddings(tokens, full_mask(tokens))


def unit_vectors(bag: Embeddings) -> Embeddings:
    """Scale every vector to length 1; a zero vector stays zero."""
    return Embeddings(normalize(bag.tokens, dim=-1), bag.mask)


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse an argument that is not one of the allowed words."""
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is not known; use one of {', '.join(allowed)}")
