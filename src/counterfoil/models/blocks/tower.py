"""What stands at the foot of a model: raw items to bags of vectors of one width."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from counterfoil.records import Encoded, Items


class ImageTower(nn.Module, ABC):
    """Images to region vectors.

    Attributes:
        width: of the vectors.
    """

    width: int

    @abstractmethod
    def forward(self, items: Items) -> Encoded:
        """N images to (N, R, width) vectors, not normalised; what the mask hides is arbitrary."""


class TextTower(nn.Module, ABC):
    """Texts to word vectors.

    Attributes:
        width: of the vectors.
    """

    width: int

    @abstractmethod
    def forward(self, items: Items) -> Encoded:
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


def hidden(values: Tensor, mask: Tensor) -> Tensor:
    """(N, L, F) with zeros at padding, so that garbage there reaches no gradient."""
    return values.masked_fill(~mask.unsqueeze(-1), 0)


def fits(items: Items, features: int) -> None:
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


def every(tokens: Tensor) -> Tensor:
    """(N, L) mask of (N, L, D) tokens that are all real."""
    return torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)


def inhabited(bag: Encoded) -> Encoded:
    """The same with zeros at padding; an item without vectors has one, which is zero."""
    mask = bag.mask.clone()
    mask[:, 0] |= ~mask.any(1)
    return Encoded(hidden(bag.tokens, bag.mask), mask)


def masked_ids(items: Items) -> Tensor:
    """(N, L) token ids, 0 at padding."""
    return items.values.masked_fill(~items.mask, 0)


def known_ids(items: Items, *, longest: int, vocabulary: int) -> Tensor:
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


def split_among(heads: int, width: int) -> None:
    """Check that the heads of an attention can share vectors of a width.

    Raises:
        ValueError: they cannot.
    """
    positive(width=width, heads=heads)
    if width % heads:
        raise ValueError(
            f"{heads} heads do not divide a width of {width}; choose a multiple of {heads}"
        )


def positive(**sizes: int) -> None:
    """Check that sizes are at least 1.

    Raises:
        ValueError: one is not.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}={size} is not possible; it must be at least 1")
