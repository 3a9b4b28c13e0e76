"""Wordpieces through BERT."""

from __future__ import annotations

from typing import Self, final

import torch
from torch import Tensor, nn

from counterfoil.models.blocks.pretrained import load, rest_unused
from counterfoil.models.blocks.tower import TextTower, masked_ids, positive, projection
from counterfoil.records import Encoded, Items


@final
class Bert(TextTower):
    """Last hidden states of a Hugging Face text model, projected."""

    def __init__(
        self, *, name: str, width: int = 1024, trained: bool = True, pretrained: bool = True
    ) -> None:
        """Keyword arguments.

        Args:
            name: folder or name of the model.
            width: of the joint space.
            trained: train the model too.
            pretrained: load its weights; else it starts from fresh ones.

        Raises:
            ValueError: there is no such model.
        """
        super().__init__()
        positive(width=width)
        self.width, self.trained = width, trained
        model = load(name, pretrained=pretrained)
        self.body: nn.Module = getattr(model, "text_model", model).requires_grad_(trained)
        one = torch.zeros(1, 1, dtype=torch.long)
        seen = self._states(one, one == 0)
        rest_unused(self.body, seen)
        self.fc = projection(seen.shape[-1], width)

    def forward(self, items: Items) -> Encoded:
        """Read every text."""
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            states = self._states(masked_ids(items), items.mask)
        return Encoded(self.fc(states), items.mask)

    def train(self, mode: bool = True) -> Self:
        """Switch to training; a model that is not trained stays in evaluation."""
        super().train(mode)
        if not self.trained:
            self.body.eval()
        return self

    def _states(self, ids: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.body(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return states
