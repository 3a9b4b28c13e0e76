"""A tiny corpus with boxes, a tiny UNITER, and classes of regions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor

import train_cases
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FeatureArray
from counterfoil.data.processor import ProcessedDataset, ProcessorConfig
from counterfoil.papers.models.uniter import UNITER

CLASSES = 5
OUTPUTS = ("match", "fill", "regress", "classify")


def dataset(images: int = 12, captions: int = 2) -> ImageTextDataset:
    """The corpus of the training cases, with boxes."""
    made = train_cases.dataset(images, captions)
    assert made.features is not None
    values, lengths = made.features.values, made.features.lengths
    rng = np.random.default_rng(1)
    corner = rng.uniform(0, 0.5, (*values.shape[:2], 2))
    boxes = np.concatenate([corner, corner + rng.uniform(0.1, 0.5, corner.shape)], 2)
    features = FeatureArray.of(np.asarray(values), lengths=lengths, boxes=boxes.astype(np.float32))
    return replace(made, features=features)


def processor(images: int = 12, captions: int = 2) -> ProcessedDataset:
    made = dataset(images, captions)
    return ProcessorConfig().fit(made).process(made)


def uniter(words: int, *, dropout: float = 0.0, outputs: tuple[str, ...] = OUTPUTS) -> UNITER:
    """Always with the same weights."""
    torch.manual_seed(0)
    return UNITER(
        layers=1,
        width=16,
        heads=2,
        inner=32,
        vocabulary=words,
        positions=32,
        features=train_cases.WIDTH,
        classes=CLASSES,
        dropout=dropout,
        outputs=outputs,
    )


def model(processor: ProcessedDataset, *, dropout: float = 0.0) -> UNITER:
    assert processor.processor.tokenizer is not None
    return uniter(processor.processor.tokenizer.size, dropout=dropout)


@final
@dataclass(frozen=True)
class Detector:
    """Classes of regions that depend on the image alone."""

    regions: int = 4

    def likely(self, rows: Tensor) -> Tensor:
        place = torch.arange(self.regions * CLASSES).view(self.regions, CLASSES)
        return torch.sin(rows.view(-1, 1, 1) * 1.3 + place).softmax(2)
