"""Pixels through a pretrained vision model."""

from __future__ import annotations

from typing import Any, Self, final

import torch
from torch import Tensor, nn

from counterfoil.models.blocks.pretrained import load, rest_unused
from counterfoil.models.blocks.tower import ImageTower, every, positive, projection
from counterfoil.records import Encoded, Items


@final
class VisionModel(ImageTower):
    """Grid features of a Hugging Face vision model (ViT, CLIP, MobileNetV2, ...), projected.

    A transformer's class token is one of the tokens.
    """

    def __init__(
        self,
        *,
        name: str,
        width: int = 1024,
        trained: bool = False,
        pretrained: bool = True,
    ) -> None:
        """Keyword arguments.

        Args:
            name: folder or name of the model.
            width: of the joint space.
            trained: train the model too; else it stays as it is, also its batch norms.
            pretrained: load its weights; else it starts from fresh ones.

        Raises:
            ValueError: there is no such model, or it gives no grid of features.
        """
        super().__init__()
        positive(width=width)
        model = load(name, pretrained=pretrained)
        self.width, self.trained = width, trained
        self.body: nn.Module = getattr(model, "vision_model", model)
        self.body.requires_grad_(trained)
        side = _side(self.body)
        seen = self._grid(torch.zeros(1, 3, side, side))
        rest_unused(self.body, seen)
        self.fc = projection(seen.shape[-1], width)

    def forward(self, items: Items) -> Encoded:
        """Project every cell of the grid."""
        values = items.values.to(self.fc.weight.dtype)
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            tokens = self._grid(values)
        return Encoded(self.fc(tokens), every(tokens))

    def train(self, mode: bool = True) -> Self:
        """Switch to training; a model that is not trained stays in evaluation."""
        super().train(mode)
        if not self.trained:
            self.body.eval()
        return self

    def _grid(self, pixels: Tensor) -> Tensor:
        """(N, L, F) last hidden states."""
        states = getattr(self.body(pixel_values=pixels), "last_hidden_state", None)
        if not isinstance(states, Tensor):
            raise ValueError(
                f"{type(self.body).__name__} gives no grid of features; use a vision model"
            )
        return states.flatten(2).transpose(1, 2) if states.dim() == 4 else states


def _side(body: nn.Module) -> int:
    config: Any = getattr(body, "config", None)
    size = getattr(getattr(config, "vision_config", config), "image_size", 224)
    return int(size[0] if isinstance(size, list | tuple) else size)
