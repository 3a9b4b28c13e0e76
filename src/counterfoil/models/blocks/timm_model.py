"""Pixels through any image model of timm, as one vector."""

from __future__ import annotations

import difflib
from typing import Self, final

import torch
from torch import Tensor

from counterfoil.models.blocks.pretrained import HALF, PictureFormat
from counterfoil.models.blocks.timm_library import library, network
from counterfoil.models.blocks.tower import ImageTower, every, positive, projection
from counterfoil.records import Encoded, Items


@final
class TimmModel(ImageTower):
    """What an image model of timm hands to its classifier, projected.

    The model stays in evaluation mode, so its batch norms keep their statistics. Where it is not
    trained, what it makes of a picture stays the same: `states` may be kept, and read in place of
    the picture.
    """

    def __init__(
        self, *, name: str, width: int = 512, trained: bool = True, pretrained: bool = True
    ) -> None:
        """Keyword arguments.

        Args:
            name: timm's name of the model, as in "resnet50" or "vit_base_patch16_224.augreg_in21k".
            width: of the joint space.
            trained: train the model too.
            pretrained: load its weights; else it starts from fresh ones.

        Raises:
            ValueError: timm is not installed or does not know the model.
        """
        super().__init__()
        positive(width=width)
        self.name, self.width, self.trained = name, width, trained
        size = timm_format(name).size  # which refuses names that timm does not know
        self.body = network(name, pretrained=pretrained).requires_grad_(trained)
        with torch.no_grad():
            seen = self.body.eval()(torch.zeros(1, 3, size, size))
        self.fc = projection(seen.shape[-1], width)
        self.train()

    @property
    def still(self) -> str | None:
        """By what `states` of a picture are known, where they stay the same.

        Weights tell neither strides nor padding of a model.
        """
        return None if self.trained else f"{self.name}, pooled"

    def states(self, images: Items) -> Tensor:
        """(N, 1, F) what the model makes of pixels (N, C, H, W), before the projection."""
        pixels = images.values.to(self.fc.weight.dtype)
        laid = pixels.contiguous(memory_format=torch.channels_last)
        with torch.set_grad_enabled(self.trained and torch.is_grad_enabled()):
            found: Tensor = self.body(laid)
        return found.unsqueeze(1)

    def forward(self, items: Items) -> Encoded:
        """One vector of each picture, or of its `states`."""
        seen = items.values.dim() == 3
        states = items.values.to(self.fc.weight.dtype) if seen else self.states(items)
        tokens = self.fc(states)
        return Encoded(tokens, every(tokens))

    def train(self, mode: bool = True) -> Self:
        """Switch to training; the model itself stays in evaluation."""
        super().train(mode)
        self.body.eval()
        return self


def timm_format(name: str) -> PictureFormat:
    """How a model of timm wants its pictures: all of a picture, squeezed to a square.

    Raises:
        ValueError: timm is not installed, or does not know the model; near ones are named.
    """
    timm = library()
    _check(name)
    try:
        found = timm.models.get_pretrained_cfg(name)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"timm has no weights of {name!r}: {error}") from error
    _, height, wide = getattr(found, "input_size", None) or (3, 224, 224)
    if height != wide:
        raise ValueError(f"{name} reads pictures of {height} x {wide}; only squares can be given")
    return PictureFormat(
        size=int(wide),
        mean=tuple(getattr(found, "mean", None) or HALF),
        deviation=tuple(getattr(found, "std", None) or HALF),
        crop=False,
    )


def _check(name: str) -> None:
    timm = library()
    if timm.is_model(name):
        return
    near = difflib.get_close_matches(name, timm.list_models(), 5, cutoff=0.3)
    raise ValueError(f"{name!r} is no model of timm; near are: {', '.join(near) or 'none'}")
