"""A tiny corpus with boxes, a tiny UNITER, and classes of regions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor

import train_cases
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.lens import CorpusLens, LensPlan
from counterfoil.corpus.regions import Features
from counterfoil.models.uniter import UNITER

CLASSES = 5
OUTPUTS = ("match", "fill", "regress", "classify")


def corpus(images: int = 12, captions: int = 2) -> Corpus:
    """The corpus of the training cases, with boxes."""
    made = train_cases.corpus(images, captions)
    assert made.features is not None
    values, lengths = made.features.values, made.features.lengths
    rng = np.random.default_rng(1)
    corner = rng.uniform(0, 0.5, (*values.shape[:2], 2))
    boxes = np.concatenate([corner, corner + rng.uniform(0.1, 0.5, corner.shape)], 2)
    features = Features.of(np.asarray(values), lengths=lengths, boxes=boxes.astype(np.float32))
    return replace(made, features=features)


def lens(images: int = 12, captions: int = 2) -> CorpusLens:
    made = corpus(images, captions)
    return LensPlan().fit(made).on(made)


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


def model(lens: CorpusLens, *, dropout: float = 0.0) -> UNITER:
    assert lens.lens.tokenizer is not None
    return uniter(lens.lens.tokenizer.size, dropout=dropout)


@final
@dataclass(frozen=True)
class Detector:
    """Classes of regions that depend on the image alone."""

    regions: int = 4

    def likely(self, rows: Tensor) -> Tensor:
        place = torch.arange(self.regions * CLASSES).view(self.regions, CLASSES)
        return torch.sin(rows.view(-1, 1, 1) * 1.3 + place).softmax(2)
