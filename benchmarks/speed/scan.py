"""SCAN's score of 128 images with 128 captions, against the plain product of the real words."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.speed import Result
from benchmarks.speed.bags import REGIONS, bags, both, compared, forward, hardest, scan

IMAGES, TEXTS, WIDTH = 128, 128, 1024
SIZE = f"{IMAGES} x {TEXTS}, {REGIONS} regions, width {WIDTH}"
TARGETS = {"t2i": (1.15, 3.6), "i2t": (1.15, 3.5)}
AUTHORS = {"t2i": (12.9, 66.8), "i2t": (25.1, 115.4)}


def results(threads: int) -> Iterator[Result]:
    images, texts = bags(IMAGES, TEXTS, WIDTH)
    weights = torch.randn(IMAGES, TEXTS, generator=torch.Generator().manual_seed(1))
    sparse = hardest(weights)
    for direction in ("t2i", "i2t"):
        model = scan(direction, WIDTH)
        targets, authors = TARGETS[direction], AUTHORS[direction]
        name = f"SCAN {direction} LogSumExp, {SIZE}"
        rows = (
            ("forward", forward(model, images, texts), targets[0], authors[0]),
            ("forward + backward", both(model, images, texts, weights), targets[1], authors[1]),
            (
                "forward + backward, hardest triplet",
                both(model, images, texts, sparse),
                None,
                None,
            ),
        )
        yield from compared(name, images, texts, rows)
