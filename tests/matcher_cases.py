"""The library's matchers with items that they read; a new one appends its cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from counterfoil.core.config import Config, config, lazy
from counterfoil.core.types import ModalityBatch
from counterfoil.models.base import RetrievalModel
from counterfoil.models.blip import BLIP
from counterfoil.models.clip import DualEncoder
from counterfoil.models.embeddings import EmbeddingModel
from counterfoil.models.filip import FILIP
from counterfoil.models.frozen import FrozenAdapters, FrozenWithAdapters
from counterfoil.models.layers.pooling import ImageTower
from counterfoil.models.layers.towers import GRU, PatchTower, Regions
from counterfoil.models.open_clip import OpenClipModel
from counterfoil.models.own import OwnEncoders, OwnScore
from counterfoil.models.sentence_transformers import (
    CrossEncoderModel,
    DenseEmbedder,
    MultiVectorEmbedder,
)
from counterfoil.models.vsepp import VSEPP

FEATURES, REGIONS, WORDS, LENGTH, WIDTH = 6, 5, 20, 7, 8


def regions(n: int, rng: torch.Generator) -> ModalityBatch:
    """Images of one to five regions."""
    counts = torch.randint(1, REGIONS + 1, (n, 1), generator=rng)
    values = torch.randn(n, REGIONS, FEATURES, generator=rng)
    boxes = torch.rand(n, REGIONS, 4, generator=rng)
    return ModalityBatch(torch.arange(n), values, torch.arange(REGIONS) < counts, boxes)


def pixels(n: int, rng: torch.Generator) -> ModalityBatch:
    values = torch.randn(n, 3, 16, 16, generator=rng)
    return ModalityBatch(torch.arange(n), values, torch.ones(n, 1, dtype=torch.bool))


def shapes(n: int, rng: torch.Generator) -> ModalityBatch:
    """Pictures of up to three by two patches of eight pixels, at the top left."""
    values = torch.randn(n, 3, 24, 16, generator=rng)
    heights, widths = (torch.randint(1, most + 1, (n, 1, 1), generator=rng) for most in (3, 2))
    mask = (torch.arange(3).view(3, 1) < heights) & (torch.arange(2) < widths)
    return ModalityBatch(torch.arange(n), values, mask.flatten(1))


def words(n: int, rng: torch.Generator) -> ModalityBatch:
    """Captions of one to seven words."""
    counts = torch.randint(1, LENGTH + 1, (n, 1), generator=rng)
    values = torch.randint(1, WORDS, (n, LENGTH), generator=rng)
    return ModalityBatch(torch.arange(n), values, torch.arange(LENGTH) < counts)


def vectors(n: int, rng: torch.Generator) -> ModalityBatch:
    values = torch.randn(n, 1, WIDTH, generator=rng)
    return ModalityBatch(torch.arange(n), values, torch.ones(n, 1, dtype=torch.bool))


@dataclass(frozen=True)
class Case:
    name: str
    spec: Config[RetrievalModel]
    images: Callable[[int, torch.Generator], ModalityBatch] = regions
    texts: Callable[[int, torch.Generator], ModalityBatch] = words

    def build(self) -> RetrievalModel:
        torch.manual_seed(0)
        return trained(self.spec.build()).eval()


def trained(model: RetrievalModel) -> RetrievalModel:
    """The same with batch norms that do something, as they do after training."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            for tensor in (module.weight, module.bias, module.running_mean):
                nn.init.normal_(tensor)
    return model


def own_regions() -> Regions:
    return lazy(Regions, features=FEATURES, width=WIDTH)


def own_gru(**options: bool) -> GRU:
    return lazy(GRU, words=WORDS, word_width=4, width=WIDTH, **options)


def own_patches() -> PatchTower:
    return lazy(PatchTower, size=16, patch=8, width=WIDTH, channels=4, depth=1)


def _filip(image: ImageTower | None = None, **options: object) -> Config[RetrievalModel]:
    return config(FILIP, image=image or own_regions(), text=own_gru(), **options)


def _blip(**options: object) -> Config[RetrievalModel]:
    sizes = {"layers": 2, "width": WIDTH, "heads": 2, "inner": 12, "positions": LENGTH + 2}
    sizes |= {"image_layers": 2, "image_width": 12, "image_heads": 2, "image_inner": 8}
    return config(BLIP, vocabulary=WORDS, size=16, patch=8, **sizes, **options)


CASES = (
    Case("vse", config(VSEPP, image=own_regions(), text=own_gru(bidirectional=False))),
    Case(
        "vse-order",
        config(
            VSEPP,
            image=own_regions(),
            text=own_gru(),
            text_pool="mean",
            measure="order",
            absolute=True,
        ),
    ),
    Case(
        "vse-max",
        config(VSEPP, image=own_regions(), text=own_gru(), image_pool="mean+max", text_pool="max"),
    ),
    Case(
        "vse-pixels",
        config(VSEPP, image=own_patches(), text=own_gru(), image_pool="first", text_pool="mean"),
        images=pixels,
    ),
    Case("blip", _blip(), images=pixels),
    Case("blip-probability", _blip(score="probability", mask=3), images=pixels),
    Case("filip", _filip()),
    Case("filip-patches", _filip(image=own_patches(), direction="i2t", mean=False), images=pixels),
    Case("filip-t2i", _filip(direction="t2i", mean=False)),
    Case("vectors", config(EmbeddingModel), images=vectors, texts=vectors),
)


def poisoned(tensor: Tensor, mask: Tensor) -> Tensor:
    """The same with garbage, never zeros, where the mask is False."""
    hidden = ~mask.view(*mask.shape, *[1] * (tensor.dim() - mask.dim()))
    garbage = torch.nan if tensor.is_floating_point() else 10**9
    return tensor.masked_fill(hidden, garbage)


# need a folder: see tests/models/test_{clip,open_clip,adapted,sentence_transformers}.py
ELSEWHERE = {
    CrossEncoderModel,
    DenseEmbedder,
    MultiVectorEmbedder,
    DualEncoder,
    OpenClipModel,
    FrozenWithAdapters,
    FrozenAdapters,
    OwnEncoders,
    OwnScore,
}
