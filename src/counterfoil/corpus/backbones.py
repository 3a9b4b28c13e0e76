"""Vision models as makers of grid features.

A model becomes a function from pictures to (N, S * S, F): the last map of a convolutional network,
row by row, or the patch tokens of a transformer without its class and register tokens.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from counterfoil.corpus.pixels import pixels

TIMM = "timm:"


class Backbone(ABC):
    """Makes grid features of pictures.

    Attributes:
        whole: whether the grid covers the whole picture, so that its cells have known boxes.
    """

    whole: bool

    @abstractmethod
    def prepare(self, pictures: Sequence[Image.Image]) -> Tensor:
        """(N, 3, H, W) pixels as the model wants them."""

    @abstractmethod
    def grid(self, values: Tensor) -> Tensor:
        """(N, S * S, F) features of prepared pixels."""


def open_backbone(name: str, device: torch.device | str = "cpu") -> Backbone:
    """A backbone by name: ``timm:resnet18``, or a Hugging Face name or folder.

    Raises:
        ValueError: its library is not installed, or there is no such model.
    """
    if name.startswith(TIMM):
        return TimmBackbone(name.removeprefix(TIMM), device=device)
    return HuggingFaceBackbone(name, device=device)


@final
class HuggingFaceBackbone(Backbone):
    """A vision model of Hugging Face, or the vision half of a CLIP-like one.

    Args:
        name: name or folder.
        device: where it computes.

    Raises:
        ValueError: transformers is not installed, or the model cannot be read.
    """

    def __init__(self, name: str, *, device: torch.device | str = "cpu") -> None:
        try:
            from transformers import AutoImageProcessor, AutoModel
        except ImportError:
            raise ValueError(
                f'the model {name!r} needs transformers: pip install "counterfoil[hf]"'
            ) from None
        with _quiet():
            try:
                self._processor = AutoImageProcessor.from_pretrained(name, backend="pil")
                model = AutoModel.from_pretrained(name, dtype=torch.float32)
            except (OSError, ValueError, KeyError) as error:
                first = str(error).strip().splitlines()[0]
                raise ValueError(
                    f"{name!r} is no vision model that can be read: {first}"
                ) from error
        self._model = _ready(getattr(model, "vision_model", model), device)
        self._device = device
        self.whole = not getattr(self._processor, "do_center_crop", False)

    def prepare(self, pictures: Sequence[Image.Image]) -> Tensor:
        values: Tensor = self._processor(images=list(pictures), return_tensors="pt")["pixel_values"]
        return values

    def grid(self, values: Tensor) -> Tensor:
        out: Tensor = self._model(pixel_values=_placed(values, self._device)).last_hidden_state
        patch = getattr(self._model.config, "patch_size", None)
        side = values.shape[-1] // patch if isinstance(patch, int) and out.ndim == 3 else None
        return cells(out, side=side)


@final
class TimmBackbone(Backbone):
    """A timm model with its pretrained weights; pictures are squeezed to its square.

    Args:
        name: timm's name, as in "resnet18".
        device: where it computes.

    Raises:
        ValueError: timm is not installed or does not know the model.
    """

    whole = True

    def __init__(self, name: str, *, device: torch.device | str = "cpu") -> None:
        try:
            import timm
        except ImportError:
            raise ValueError(
                f'the model {TIMM + name!r} needs timm: pip install "counterfoil[vision]"'
            ) from None
        try:
            model: Any = timm.create_model(name, pretrained=True, num_classes=0)
        except (RuntimeError, OSError, ValueError) as error:
            raise ValueError(f"timm cannot make {name!r}: {error}") from error
        settings = timm.data.resolve_model_data_config(model)
        self._size = int(settings["input_size"][-1])
        self._mean, self._deviation = (
            torch.tensor(settings[key]).view(1, 3, 1, 1) for key in ("mean", "std")
        )
        self._model, self._device = _ready(model, device), device

    def prepare(self, pictures: Sequence[Image.Image]) -> Tensor:
        stacked = np.stack([pixels(picture, self._size) for picture in pictures])
        return (torch.from_numpy(stacked).float() / 255 - self._mean) / self._deviation

    def grid(self, values: Tensor) -> Tensor:
        out: Tensor = self._model.forward_features(_placed(values, self._device))
        width = int(self._model.num_features)
        if out.ndim == 4 and out.shape[1] != width and out.shape[3] == width:
            out = out.permute(0, 3, 1, 2)  # Swin and its kin put the width last
        prefix = int(getattr(self._model, "num_prefix_tokens", 0))
        return cells(out[:, prefix:] if out.ndim == 3 else out)


def cells(out: Tensor, *, side: int | None = None) -> Tensor:
    """A model's output as (N, S * S, F).

    Args:
        out: (N, F, S, S) a map, or (N, L, F) tokens whose last S * S are patches.
        side: S, for tokens; the largest that fits by default.

    Raises:
        ValueError: the output is neither.

    >>> cells(torch.zeros(2, 197, 8)).shape, cells(torch.zeros(2, 8, 7, 7)).shape
    (torch.Size([2, 196, 8]), torch.Size([2, 49, 8]))
    """
    if out.ndim == 4:
        return out.flatten(2).transpose(1, 2)
    if out.ndim != 3:
        raise ValueError(f"the model gives {tuple(out.shape)}; a map or patch tokens are needed")
    side = side or math.isqrt(out.shape[1])
    return out[:, out.shape[1] - side * side :]


def pooled(grid: Tensor, side: int | None) -> Tensor:
    """(N, S * S, F) averaged to (N, side * side, F); as it is where `side` is None.

    Raises:
        ValueError: the grid is smaller, or it is no square.
    """
    if side is None:
        return grid
    had = math.isqrt(grid.shape[1])
    if had * had != grid.shape[1] or not 1 <= side <= had:
        raise ValueError(
            f"a grid of {grid.shape[1]} cells cannot be averaged to {side} x {side}; use 1 to {had}"
        )
    square = grid.transpose(1, 2).reshape(len(grid), -1, had, had)
    return adaptive_avg_pool2d(square, side).flatten(2).transpose(1, 2)


def _ready(model: nn.Module, device: torch.device | str) -> Any:
    """Channels last: convolutional networks take 0.6 of the time on a CPU."""
    return model.to(device=device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]


def _placed(values: Tensor, device: torch.device | str) -> Tensor:
    return values.to(device, memory_format=torch.channels_last)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars and reports that transformers prints when it loads a model."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
