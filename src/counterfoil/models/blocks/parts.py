"""Items as vectors of their parts and one of the whole, for models that read both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, final

from torch import Tensor, nn

from counterfoil.models.blocks.gru import GRU, recurrent
from counterfoil.models.blocks.pool import POOLS, Pool, chosen, pool
from counterfoil.models.blocks.tower import ImageTower, TextTower
from counterfoil.records import Encoded, Items


@final
class Parts(NamedTuple):
    """What a tower makes of N items.

    Attributes:
        parts: (N, L, F) what the mask hides is arbitrary.
        whole: (N, D).
    """

    parts: Encoded
    whole: Tensor


class PartsTower(nn.Module, ABC):
    """Items of one modality to vectors of their parts and one of the whole.

    Attributes:
        width: of the vector of the whole.
        part_width: of the vectors of the parts.
    """

    width: int
    part_width: int

    @abstractmethod
    def forward(self, items: Items) -> Parts:
        """N items, not normalised."""


@final
class PooledParts(PartsTower):
    """A tower's vectors are the parts, and pooled they are the whole."""

    def __init__(
        self, *, tower: ImageTower | TextTower, pool: Pool = "max", apart: bool = False
    ) -> None:
        """Keyword arguments.

        Args:
            tower: reads the items.
            pool: how its vectors become one: DivE takes "max" of regions, and "max" or "first" of
                BERT's tokens.
            apart: the first half of each vector is a part's and the other is pooled, as if the
                tower ended in two layers side by side.

        Raises:
            ValueError: a word that is not known, or a width that cannot be halved.
        """
        super().__init__()
        chosen("pool", pool, POOLS)
        if apart and tower.width % 2:
            raise ValueError(
                f"a tower of width {tower.width} cannot be halved; with apart=True give it twice "
                "the width of the joint space"
            )
        self.tower = tower
        self.kind: Pool = pool
        self.apart = apart
        self.width = self.part_width = tower.width // (2 if apart else 1)

    def forward(self, items: Items) -> Parts:
        """Read every item."""
        bag: Encoded = self.tower(items)
        parts = Encoded(bag.tokens[..., : self.part_width], bag.mask)
        pooled = Encoded(bag.tokens[..., -self.width :], bag.mask)
        return Parts(parts, pool(self.kind, pooled))


@final
class WordsAndStates(PartsTower):
    """Word embeddings are the parts, the mean of a network's last states the whole (DivE)."""

    def __init__(self, *, gru: GRU, dropout: float = 0.1) -> None:
        """Keyword arguments.

        Args:
            gru: reads texts in both directions; its `dropout` is that of the embeddings.
            dropout: share of the whole's entries dropped in training.

        Raises:
            ValueError: the network reads in one direction, or in several layers.
        """
        super().__init__()
        if not gru.rnn.bidirectional or gru.rnn.num_layers > 1:
            raise ValueError(
                "the states at both ends of a text come from a single layer that reads in both "
                "directions; use GRU(layers=1, bidirectional=True)"
            )
        self.gru, self.dropout = gru, nn.Dropout(dropout)
        self.width, self.part_width = gru.width, gru.embed.embedding_dim

    def forward(self, items: Items) -> Parts:
        """Read every text; the mask must be True from the first word to the last."""
        words = self.gru.embedded(items)
        states = recurrent(self.gru.rnn, words.tokens, words.mask)
        onwards = pool("last", Encoded(states[..., : self.width], words.mask))
        return Parts(words, self.dropout((onwards + states[:, 0, self.width :]) / 2))
