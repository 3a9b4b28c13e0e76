"""Word ids through a recurrent network."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from counterfoil.models.blocks.augment import WordDrop
from counterfoil.models.blocks.tower import WordTower, masked_ids, positive
from counterfoil.records import Encoded, Items


@final
class GRU(WordTower):
    """Word embeddings and a GRU: both directions averaged (SCAN), or one (VSE++).

    A word's vector does not depend on the padding behind it.
    """

    def __init__(
        self,
        *,
        words: int,
        word_width: int = 300,
        width: int = 1024,
        layers: int = 1,
        bidirectional: bool = True,
        dropout: float = 0.0,
        word_drop: float = 0.0,
        drop_ends: bool = True,
    ) -> None:
        """Keyword arguments.

        Args:
            words: size of the vocabulary.
            word_width: width of a word embedding.
            width: of the joint space and of each direction.
            layers: how many recurrent layers.
            bidirectional: read in both directions and average them.
            dropout: share of word embedding entries dropped in training.
            word_drop: share of words that are masked, replaced or deleted in training, see
                `drop_words`; above 0 there is one more embedding, the last, of a masked word.
            drop_ends: do that with ``<start>`` and ``<end>`` too.
        """
        super().__init__()
        positive(words=words, word_width=word_width, width=width, layers=layers)
        self.width = width
        self.words = words
        self.augment = WordDrop(share=word_drop, mask=words, vocabulary=words, ends=drop_ends)
        self.embed = nn.Embedding(words + (word_drop > 0), word_width)
        self.dropout = nn.Dropout(dropout)
        self.rnn = nn.GRU(word_width, width, layers, batch_first=True, bidirectional=bidirectional)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)

    def forward(self, items: Items) -> Encoded:
        """Read every text; the mask must be True from the first word to the last."""
        words = self.embedded(items)
        return self.read(words.tokens, words.mask)

    def embedded(self, items: Items) -> Encoded:
        """Word embeddings (N, L, word_width), of what is left of each text in training."""
        self._check(items)
        items = self.augment(items)
        return Encoded(self.dropout(self.embed(masked_ids(items))), items.mask)

    def read(self, vectors: Tensor, mask: Tensor) -> Encoded:
        """The same from word embeddings (N, L, word_width)."""
        states = recurrent(self.rnn, vectors, mask)
        if self.rnn.bidirectional:
            states = states.view(*mask.shape, 2, self.width).mean(-2)
        return Encoded(states, mask)

    def word_table(self) -> nn.Module:
        """What word ids are looked up in."""
        return self.embed

    @property
    def mask_word(self) -> int | None:
        """Id of the embedding of a masked word."""
        return self.words if self.embed.num_embeddings > self.words else None

    def _check(self, items: Items) -> None:
        ids, known = masked_ids(items), self.embed.num_embeddings
        if ids.numel() and int(ids.max()) >= known:
            raise ValueError(
                f"word id {int(ids.max())} is not in this model's vocabulary of {known} words; "
                "read the texts with the vocabulary that it was trained with"
            )


def recurrent(rnn: nn.GRU, vectors: Tensor, mask: Tensor) -> Tensor:
    """(N, L, H) outputs of a network that stops at each item's last real vector.

    Args:
        rnn: the network, batch first.
        vectors: (N, L, F).
        mask: (N, L), True from the first real vector to the last.
    """
    lengths = mask.sum(1).clamp(min=1).cpu()
    packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
    states: Tensor
    states, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True, total_length=mask.shape[1])
    return states
