"""Mean and deviation of features, from a sample that is read block by block."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from counterfoil.corpus.regions import Features

SAMPLE = 2_000  # items
AT_ONCE = 64  # of them in memory


def moments(features: Features) -> tuple[Tensor, Tensor]:
    """(F,) mean and deviation over the real regions of evenly spread items, in float64."""
    total, count = torch.zeros(features.width, dtype=torch.float64), 0
    for real in _blocks(features):
        total, count = total + real.sum(0), count + len(real)
    mean, squares = total / max(count, 1), torch.zeros_like(total)
    for real in _blocks(features):
        squares += (real - mean).square().sum(0)
    return mean, (squares / max(count, 1)).sqrt().clamp(min=1e-6)


def _blocks(features: Features) -> Iterator[Tensor]:
    size = min(SAMPLE, len(features))
    rows = torch.linspace(0, len(features) - 1, size, dtype=torch.float64).round().long()
    for start in range(0, size, AT_ONCE):
        items = features.take(rows[start : start + AT_ONCE])
        yield items.values[items.mask].double()
