"""BFAN's score of 128 images with 128 captions, against the plain product of the real words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import torch

from benchmarks.speed import Result
from benchmarks.speed.bags import bags, bfan, both, compared, forward, hardest
from benchmarks.speed.scan import IMAGES, SIZE, TEXTS, WIDTH
from counterfoil.models.layers.cross_attention import Rule

TARGETS = (1.5, 4.5)
AUTHORS = {"equal": (38.1, 182.1), "prob": (53.4, None)}


def results(threads: int) -> Iterator[Result]:
    """Both focal rules, forward and with the gradient of all scores or of the hardest."""
    images, texts = bags(IMAGES, TEXTS, WIDTH)
    weights = torch.randn(IMAGES, TEXTS, generator=torch.Generator().manual_seed(1))
    for focus in get_args(Rule):
        model, authors = bfan(focus, WIDTH), AUTHORS[focus]
        sparse = both(model, images, texts, hardest(weights))
        rows = (
            ("forward", forward(model, images, texts), TARGETS[0], authors[0]),
            ("forward + backward", both(model, images, texts, weights), TARGETS[1], authors[1]),
            ("forward + backward, hardest triplet", sparse, None, None),
        )
        yield from compared(f"BFAN {focus}, {SIZE}", images, texts, rows)
