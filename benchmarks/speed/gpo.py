"""GPO's pooling of 128 images and of 128 captions, against the plain product of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from benchmarks.speed import Result
from benchmarks.speed.bags import FEWEST, REGIONS, bags, compared, fewer
from counterfoil.core.types import Embeddings
from counterfoil.papers.models.gpo import GeneralizedPooling

IMAGES, TEXTS, WIDTH = 128, 128, 1024
TARGET = 1.2


def results(threads: int) -> Iterator[Result]:
    images, texts = bags(IMAGES, TEXTS, WIDTH)
    some = fewer(images)
    rows = (
        (f"{REGIONS} regions, forward", evaluated(images), TARGET, 1.56),
        (f"{REGIONS} regions, forward + backward", trained(images), None, None),
        (f"{FEWEST} to {REGIONS} regions, forward", evaluated(some), TARGET, 1.35),
        (f"{FEWEST} to {REGIONS} regions, forward + backward", trained(some), None, 2.38),
        ("8 to 20 words, forward", evaluated(texts), None, 0.58),
        ("8 to 20 words, forward + backward", trained(texts), None, 0.93),
    )
    yield from compared(f"GPO pooling, {IMAGES} bags, width {WIDTH}", images, texts, rows)


def evaluated(bag: Embeddings) -> Callable[[], object]:
    """Pool as in evaluation."""
    pool = GeneralizedPooling()

    def work() -> None:
        with torch.no_grad():
            pool(bag)

    return work


def trained(bag: Embeddings) -> Callable[[], object]:
    """Pool, and carry a gradient back to the vectors and the weights of the pool."""
    pool, tokens = GeneralizedPooling(), bag.tokens.clone().requires_grad_()

    def work() -> None:
        tokens.grad = None
        pool(Embeddings(tokens, bag.mask)).sum().backward()

    return work
