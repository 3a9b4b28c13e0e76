"""Scoring a batch's offline pairs, four roles of 128, against scoring its 128 x 128 block.

The ratios here are to the block, not to the plain product. Nothing is encoded; the pools hold the
anchors, their negatives and the companions, and the pairs are listed by rows, as in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from benchmarks.speed import Result
from benchmarks.speed.bags import bags, bfan, both, forward, hardest, scan
from benchmarks.speed.gemm import against
from benchmarks.speed.scan import IMAGES, TEXTS, WIDTH
from counterfoil.core.types import Embeddings, Pairs
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.fused import prepare_context

ROLES, POOL, TARGET = 4, 3, 0.10


def results(threads: int) -> Iterator[Result]:
    """SCAN both ways and BFAN, forward and with the gradient."""
    images, texts = bags(POOL * IMAGES, POOL * TEXTS, WIDTH)
    rng = torch.Generator().manual_seed(2)
    size = ROLES * IMAGES
    rows = (torch.randint(0, len(x), (size,), generator=rng) for x in (images, texts))
    pairs, weights = Pairs(*rows), torch.randn(IMAGES, TEXTS, generator=rng)
    hosts: dict[str, RetrievalModel] = {
        "SCAN t2i": scan("t2i", WIDTH),
        "SCAN i2t": scan("i2t", WIDTH),
        "BFAN equal": bfan("equal", WIDTH),
    }
    for name, model in hosts.items():
        pool = prepare_context(images, gram=name != "SCAN i2t")
        anchors = pool.rows(slice(IMAGES)), texts.rows(slice(TEXTS))
        works = (
            ("forward", forward(model, *anchors), _listed(model, pool, texts, pairs), TARGET),
            (
                "forward + backward, block with the hardest triplet",
                both(model, *anchors, hardest(weights)),
                _learnt(model, pool, texts, pairs),
                None,
            ),
        )
        for what, block, work, target in works:
            timing = against(block, work, warm=2)
            note = f"to the block; {timing.work * 1e3:.0f} ms, block {timing.plain * 1e3:.0f} ms"
            yield Result(f"{size} offline pairs, {name}: {what}", timing.ratio, target, note=note)


def _listed(
    model: RetrievalModel, images: Embeddings, texts: Embeddings, pairs: Pairs
) -> Callable[[], object]:
    def work() -> None:
        with torch.no_grad():
            model.score_indices(images, texts, pairs)

    return work


def _learnt(
    model: RetrievalModel, images: Embeddings, texts: Embeddings, pairs: Pairs
) -> Callable[[], object]:
    regions, words = (x.tokens.clone().requires_grad_() for x in (images, texts))
    gram = None if images.gram is None else images.gram.clone().requires_grad_()

    def work() -> None:
        regions.grad = words.grad = None
        pool = Embeddings(regions, images.mask, gram)
        model.score_indices(pool, Embeddings(words, texts.mask), pairs).sum().backward()

    return work
