"""CHAN's score of 128 images with 128 captions, against the plain product of the real words."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.speed import Result
from benchmarks.speed.bags import (
    FEWEST,
    REGIONS,
    bags,
    both,
    chan,
    compared,
    fewer,
    forward,
    hardest,
)
from benchmarks.speed.scan import IMAGES, SIZE, TEXTS, WIDTH
from counterfoil.papers.models.chan import Coding, Pooling

TARGETS = (1.3, 4.2)
Theirs = tuple[float | None, float | None]
CASES: tuple[tuple[Coding, Pooling, Theirs], ...] = (
    ("VHA", "LSE", (2.62, 6.58)),
    ("VHA", "Mean", (2.66, 6.52)),
    ("THA", "Mean", (2.72, None)),
    ("VSA", "LSE", (None, None)),
)


def results(threads: int) -> Iterator[Result]:
    """Forward and with the gradient of all scores or of the hardest; attention has no targets."""
    images, texts = bags(IMAGES, TEXTS, WIDTH)
    weights = torch.randn(IMAGES, TEXTS, generator=torch.Generator().manual_seed(1))
    for coding, pooling, authors in CASES:
        model = chan(coding, pooling, WIDTH)
        targets = (None, None) if coding == "VSA" else TARGETS
        sparse = both(model, images, texts, hardest(weights))
        some = forward(model, fewer(images), texts)
        rows = (
            ("forward", forward(model, images, texts), targets[0], authors[0]),
            ("forward + backward", both(model, images, texts, weights), targets[1], authors[1]),
            ("forward + backward, hardest triplet", sparse, None, None),
            (f"forward, {FEWEST} to {REGIONS} regions", some, targets[0], None),
        )
        yield from compared(f"CHAN {coding} {pooling}, {SIZE}", images, texts, rows)
