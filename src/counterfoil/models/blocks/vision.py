"""Pixels through a pretrained vision model."""

from __future__ import annotations

import json
from typing import Any, Self, final

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from counterfoil.models.blocks.pretrained import load, rest_unused, written_config
from counterfoil.models.blocks.tower import ImageTower, every, positive, projection
from counterfoil.records import Encoded, Items


@final
class VisionModel(ImageTower):
    """Grid features of a Hugging Face vision model (ViT, CLIP, MobileNetV2, ...), projected.

    A transformer's class token is one of the tokens. Where the model is not trained, what it makes
    of a picture stays the same: `states` may be kept, and read in place of the picture.

    Attributes:
        written: the model's configuration, as `config` wants it.
    """

    def __init__(
        self,
        *,
        name: str,
        width: int = 1024,
        trained: bool = False,
        pretrained: bool = True,
        grid: int = 0,
        config: str | None = None,
    ) -> None:
        """Keyword arguments.

        Args:
            name: folder or name of the model.
            width: of the joint space.
            trained: train the model too; else it stays as it is, also its batch norms.
            pretrained: load its weights; else it starts from fresh ones.
            grid: average a convolutional map to so many cells a side; 0 leaves it as it is.
            config: the model's configuration as JSON, for one that starts from fresh weights; then
                neither the folder nor the hub is asked.

        Raises:
            ValueError: there is no such model, it gives no grid of features, or none that could be
                averaged.
        """
        super().__init__()
        positive(width=width)
        if grid < 0:
            raise ValueError(f"grid={grid} is not possible; give 0 or more cells a side")
        model = load(name, pretrained=pretrained, config=config)
        self.written = config or _brief(written_config(name))
        self.width, self.trained, self.side = width, trained, grid
        self.body: nn.Module = getattr(model, "vision_model", model)
        self.body.requires_grad_(trained)
        side = _side(self.body)
        seen = self._states(torch.zeros(1, 3, side, side))
        rest_unused(self.body, seen)
        self.fc = projection(seen.shape[-1], width)

    @property
    def still(self) -> str | None:
        """How cells are averaged, where `states` of a picture stay the same."""
        return None if self.trained else f"grid {self.side}"

    def states(self, images: Items) -> Tensor:
        """(N, L, F) what the model makes of pixels (N, C, H, W), before the projection."""
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            return self._states(images.values.to(self.fc.weight.dtype))

    def forward(self, items: Items) -> Encoded:
        """Project every cell of the grid, of pixels or of their `states`."""
        seen = items.values.dim() == 3
        tokens = items.values.to(self.fc.weight.dtype) if seen else self.states(items)
        if tokens.shape[-1] != self.fc.in_features:
            raise ValueError(
                f"stored states of shape {tuple(tokens.shape)} do not fit a model that reads "
                f"(images, cells, {self.fc.in_features}); make them with this model"
            )
        return Encoded(self.fc(tokens), every(tokens))

    def train(self, mode: bool = True) -> Self:
        """Switch to training; a model that is not trained stays in evaluation."""
        super().train(mode)
        if not self.trained:
            self.body.eval()
        return self

    def _states(self, pixels: Tensor) -> Tensor:
        """Last hidden states, a map as its cells row by row."""
        laid = pixels.contiguous(memory_format=torch.channels_last)
        found = getattr(self.body(pixel_values=laid), "last_hidden_state", None)
        if not isinstance(found, Tensor) or (self.side and found.dim() != 4):
            lacks = f"map to average to {self.side} x {self.side} cells" if self.side else "grid"
            raise ValueError(
                f"{type(self.body).__name__} gives no {lacks}; use a vision model"
                + (", or set grid=0" if self.side else "")
            )
        if found.dim() != 4:
            return found
        cells = adaptive_avg_pool2d(found, self.side) if self.side else found
        return cells.flatten(2).transpose(1, 2)


def _brief(config: str) -> str:
    """Without the names of classes, of which there may be thousands."""
    plain = json.loads(config)
    told = {key: plain[key] for key in plain if key not in ("id2label", "label2id")}
    return json.dumps(told, sort_keys=True)


def _side(body: nn.Module) -> int:
    config: Any = getattr(body, "config", None)
    size = getattr(getattr(config, "vision_config", config), "image_size", 224)
    return int(size[0] if isinstance(size, list | tuple) else size)
