"""HREM's graph over 128 images and 128 captions, against the plain product of the real words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from benchmarks.speed import Result
from benchmarks.speed.bags import FEWEST, REGIONS, bags, compared, fewer
from benchmarks.speed.scan import IMAGES, SIZE, TEXTS, WIDTH
from counterfoil.core.types import Embeddings
from counterfoil.models.layers.pooling import pool_vectors
from counterfoil.papers.models.hrem import BatchGraph, ResidualPool

TARGET, POOLING = 3.0, 2.0


def results(threads: int) -> Iterator[Result]:
    images, texts = bags(IMAGES, TEXTS, WIDTH)
    some = fewer(images)
    rows = (
        ("relation scores", relations(images, texts), TARGET, 8.47),
        (f"relation scores, {FEWEST} to {REGIONS} regions", relations(some, texts), TARGET, None),
        ("whole graph", whole(images, texts, backward=False), None, 8.83),
        ("whole graph, forward + backward", whole(images, texts, backward=True), None, None),
        ("pooling of the images", pooled(images), POOLING, 5.0),
    )
    yield from compared(f"HREM, {SIZE}", images, texts, rows)


def relations(images: Embeddings, texts: Embeddings) -> Callable[[], object]:
    """Who reads whom, and how relevant that is."""
    graph, vectors = (
        BatchGraph(width=WIDTH).eval(),
        (pool_vectors("mean", images), pool_vectors("mean", texts)),
    )

    def work() -> None:
        with torch.no_grad():
            graph.relations(*vectors, images, texts)

    return work


def whole(images: Embeddings, texts: Embeddings, *, backward: bool) -> Callable[[], object]:
    """The same and the attention along it, with a gradient back to the vectors if wanted."""
    graph = BatchGraph(width=WIDTH).eval()
    vectors = [pool_vectors("mean", items).requires_grad_(backward) for items in (images, texts)]

    def work() -> None:
        with torch.set_grad_enabled(backward):
            told = graph(vectors[0], vectors[1], images, texts)
            loss = (told.images @ told.texts.T).sum() + told.penalty
        if backward:
            loss.backward()

    return work


def pooled(images: Embeddings) -> Callable[[], object]:
    """Regions to one vector."""
    head = ResidualPool(width=WIDTH).eval()

    def work() -> None:
        with torch.no_grad():
            head(images)

    return work
