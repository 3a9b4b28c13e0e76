"""Wordpieces through BERT."""

from __future__ import annotations

from typing import Self, final

import torch
from torch import Tensor, nn

from counterfoil.models.blocks.augment import WordDrop
from counterfoil.models.blocks.pretrained import as_written, load, rest_unused
from counterfoil.models.blocks.tower import TextTower, masked_ids, positive, projection
from counterfoil.records import Encoded, Items


@final
class Bert(TextTower):
    """Last hidden states of a Hugging Face text model, projected."""

    def __init__(
        self,
        *,
        name: str,
        width: int = 1024,
        trained: bool = True,
        pretrained: bool = True,
        dropout: float = 0.0,
        word_drop: float = 0.0,
        mask: int | None = None,
        config: str | None = None,
    ) -> None:
        """Keyword arguments.

        Args:
            name: folder or name of the model.
            width: of the joint space.
            trained: train the model too.
            pretrained: load its weights; else it starts from fresh ones.
            dropout: share of entries of the projected states that is dropped in training.
            word_drop: share of words that are masked, replaced or deleted in training, all pieces
                of a word alike, see `drop_words`; special tokens stay.
            mask: id of the tokenizer's mask token, where words are dropped.
            config: its configuration as JSON, for a model that starts from fresh weights; then
                neither the folder nor the hub is asked.

        Raises:
            ValueError: there is no such model, or words are to be dropped without a mask.
        """
        super().__init__()
        positive(width=width)
        if word_drop and mask is None:
            raise ValueError(
                f"word_drop={word_drop} needs mask, the id of the tokenizer's mask token, such as "
                "103 for bert-base-uncased"
            )
        self.width, self.trained, self.mask = width, trained, mask
        model = load(name, pretrained=pretrained, config=config)
        self.body: nn.Module = getattr(model, "text_model", model).requires_grad_(trained)
        one = torch.zeros(1, 1, dtype=torch.long)
        seen = self._states(one, one == 0)
        rest_unused(self.body, seen)
        self.fc = projection(seen.shape[-1], width)
        self.dropout = nn.Dropout(dropout)
        tokens = _vocabulary(self.body) if word_drop else 1
        self.augment = WordDrop(share=word_drop, mask=mask or 0, vocabulary=tokens, ends=False)

    def forward(self, items: Items) -> Encoded:
        """Read every text."""
        items = self.augment(items)
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            states = self._states(masked_ids(items), items.mask)
        return Encoded(self.dropout(self.fc(states)), items.mask)

    def train(self, mode: bool = True) -> Self:
        """Switch to training; a model that is not trained stays in evaluation."""
        super().train(mode)
        if not self.trained:
            self.body.eval()
        return self

    @property
    def written(self) -> str:
        """Its configuration, as `config` wants it."""
        return as_written(self.body.config)

    def word_table(self) -> nn.Module:
        """What token ids are looked up in."""
        table: nn.Module = self.body.get_input_embeddings()  # type: ignore[operator]
        return table

    @property
    def mask_word(self) -> int | None:
        """Id of the tokenizer's mask token, where it was given."""
        return self.mask

    def _states(self, ids: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.body(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return states


def _vocabulary(body: nn.Module) -> int:
    """How many tokens the model knows."""
    return int(body.get_input_embeddings().num_embeddings)  # type: ignore[operator]
