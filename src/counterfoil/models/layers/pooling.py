"""Inner products and squared lengths of vectors, never in half precision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, normalize

from counterfoil.core.types import Embeddings, ModalityBatch


def full_precision(tensor: Tensor) -> Tensor:
    """The same in single precision, or in double where it is."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def squared_norms(tokens: Tensor) -> Tensor:
    """Squared lengths of the vectors on the last axis, in at least single precision."""
    length: Tensor = torch.linalg.vector_norm(full_precision(tokens), dim=-1)
    return length.square()  # many times as fast as the sum of a tensor of squares


def inner_pairs(images: Embeddings, texts: Embeddings) -> Tensor:
    """(P,) inner products of aligned items of one vector each."""
    return (full_precision(images.tokens[:, 0]) * full_precision(texts.tokens[:, 0])).sum(-1)


def inner_products(images: Embeddings, texts: Embeddings) -> Tensor:
    """(I, T) inner products of items of one vector each."""
    with torch.autocast(images.tokens.device.type, enabled=False):
        return full_precision(images.tokens[:, 0]) @ full_precision(texts.tokens[:, 0]).T


# Batch normalisation of rows, over those that are real.


def batch_norm_rows(norm: nn.BatchNorm1d, rows: Tensor) -> Tensor:
    """(P, D) batch normalisation; by the running statistics where a batch has only one row."""
    if len(rows) > 1 or not norm.training:
        normal: Tensor = norm(rows)
        return normal
    return batch_norm(rows, norm.running_mean, norm.running_var, norm.weight, norm.bias)


def batch_norm_tokens(norm: nn.BatchNorm1d, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """(N, L, D) the same over all tokens of all items.

    Args:
        norm: of D features.
        tokens: of the items.
        mask: (N, L), False for tokens that take no part and become zero; None: all take part.
    """
    if mask is None:
        return batch_norm_rows(norm, tokens.flatten(0, 1)).view_as(tokens)
    rows = batch_norm_rows(norm, tokens[mask])
    spread = torch.zeros(tokens.shape, dtype=rows.dtype, device=rows.device)
    return spread.masked_scatter(mask.unsqueeze(-1), rows)


# What stands at the foot of a model: raw items to bags of vectors of one width.


class ImageTower(nn.Module, ABC):
    """Images to region vectors.

    Attributes:
        width: of the vectors.
    """

    width: int

    @abstractmethod
    def forward(self, items: ModalityBatch) -> Embeddings:
        """N images to (N, R, width) vectors, not normalised; what the mask hides is arbitrary."""


class TextTower(nn.Module, ABC):
    """Texts to word vectors.

    Attributes:
        width: of the vectors.
    """

    width: int

    @abstractmethod
    def forward(self, items: ModalityBatch) -> Embeddings:
        """N texts to (N, L, width) vectors, not normalised; what the mask hides is arbitrary."""


class WordTower(TextTower, ABC):
    """Texts to word vectors, by an embedding for each word of a vocabulary.

    Attributes:
        embed: its rows are the words, and behind them what the vocabulary does not have.
    """

    embed: nn.Embedding

    @torch.no_grad()
    def begin_with(self, rows: Tensor, vectors: Tensor) -> None:
        """Start from ready-made word vectors; all other embeddings start from N(0, 1).

        Args:
            rows: (W,) long, ids of the words that have one.
            vectors: (W, F).

        Raises:
            ValueError: F is not the width of a word embedding.
        """
        wanted = self.embed.embedding_dim
        if vectors.shape[1] != wanted:
            raise ValueError(
                f"word vectors of {vectors.shape[1]} numbers do not fit word embeddings of "
                f"{wanted}; use vectors of that width, or set word_width={vectors.shape[1]}"
            )
        nn.init.normal_(self.embed.weight)
        self.embed.weight[rows.to(self.embed.weight.device)] = vectors.to(self.embed.weight)


def projection(features: int, width: int) -> nn.Linear:
    """A linear layer as VSE++ and SCAN start it: uniform within sqrt(6 / (in + out)), bias 0."""
    layer = nn.Linear(features, width)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def zero_padded(values: Tensor, mask: Tensor) -> Tensor:
    """(N, L, F) with zeros at padding, so that garbage there reaches no gradient."""
    return values.masked_fill(~mask.unsqueeze(-1), 0)


def check_features(items: ModalityBatch, features: int) -> None:
    """Check that items hold vectors of the width that a model reads.

    Raises:
        ValueError: they do not.
    """
    given = items.values.shape
    if len(given) != 3 or given[-1] != features:
        raise ValueError(
            f"image features of shape {tuple(given)} do not fit a model that reads "
            f"(images, regions, {features}); use the features it was trained on"
        )


def full_mask(tokens: Tensor) -> Tensor:
    """(N, L) mask of (N, L, D) tokens that are all real."""
    return torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)


def ensure_nonempty(bag: Embeddings) -> Embeddings:
    """The same with zeros at padding; an item without vectors has one, which is zero."""
    mask = bag.mask.clone()
    mask[:, 0] |= ~mask.any(1)
    return Embeddings(zero_padded(bag.tokens, bag.mask), mask)


def masked_ids(items: ModalityBatch) -> Tensor:
    """(N, L) token ids, 0 at padding."""
    return items.values.masked_fill(~items.mask, 0)


def valid_ids(items: ModalityBatch, *, longest: int, vocabulary: int) -> Tensor:
    """(N, L) token ids, 0 at padding, all of which a model knows.

    Args:
        items: texts.
        longest: that the model reads.
        vocabulary: how many ids it knows.

    Raises:
        ValueError: an id or a length that it does not know.
    """
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
    """Check that the heads of an attention can share vectors of a width.

    Raises:
        ValueError: they cannot.
    """
    check_positive(width=width, heads=heads)
    if width % heads:
        raise ValueError(
            f"{heads} heads do not divide a width of {width}; choose a multiple of {heads}"
        )


def check_positive(**sizes: int) -> None:
    """Check that sizes are at least 1.

    Raises:
        ValueError: one is not.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}={size} is not possible; it must be at least 1")


# From a bag of vectors to one vector.


Pool = Literal["mean", "max", "mean+max", "first", "last"]
POOLS = ("mean", "max", "mean+max", "first", "last")


def pool_vectors(kind: Pool, bag: Embeddings) -> Tensor:
    """(N, D) one vector per item; zero for an item without any.

    Args:
        kind: "mean+max" is the sum of both; "last" is the last real vector, the final state of a
            recurrent network; "first" is a transformer's class token.
        bag: (N, L, D).
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
    """(N, D) as bags of one vector."""
    tokens = vectors.unsqueeze(1)
    return Embeddings(tokens, full_mask(tokens))


def unit_vectors(bag: Embeddings) -> Embeddings:
    """Every vector at length 1; a zero vector stays zero."""
    return Embeddings(normalize(bag.tokens, dim=-1), bag.mask)


def check_choice(name: str, given: str, allowed: tuple[str, ...]) -> None:
    """Check an argument that takes one of a few words.

    Raises:
        ValueError: it is none of them.
    """
    if given not in allowed:
        raise ValueError(f"{name}={given!r} is not known; use one of {', '.join(allowed)}")
