"""DivE's score of 128 images with 128 captions, against the plain product of the real words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import normalize

from benchmarks.speed import Result
from benchmarks.speed.bags import bags, compared, hardest
from benchmarks.speed.scan import IMAGES, TEXTS, WIDTH
from counterfoil.core.types import Embeddings
from counterfoil.papers.models.dive import SetSimilarity, set_score_matrix

SLOTS, ALPHA, TARGET = 4, 16.0, 0.1


def results(threads: int) -> Iterator[Result]:
    """Sets of four vectors; the plain product is that of 36 regions and 8 to 20 words."""
    images, texts = bags(IMAGES, TEXTS, WIDTH)
    rng = torch.Generator().manual_seed(1)
    weights = torch.randn(IMAGES, TEXTS, generator=rng)
    left, right = sets(IMAGES, rng), sets(TEXTS, rng)
    rows = (
        ("smooth-Chamfer, forward", forward("smooth_chamfer", left, right), TARGET, 0.07),
        ("smooth-Chamfer, forward + backward", both(left, right, weights), None, 0.21),
        ("smooth-Chamfer, hardest triplet", both(left, right, hardest(weights)), None, None),
        ("chamfer, forward", forward("chamfer", left, right), None, None),
        ("max, forward", forward("max", left, right), None, None),
    )
    name = f"DivE, {IMAGES} x {TEXTS}, {SLOTS} slots, width {WIDTH}"
    yield from compared(name, images, texts, rows)


def sets(count: int, rng: torch.Generator) -> Embeddings:
    """Unit vectors, four to an item."""
    tokens = normalize(torch.randn(count, SLOTS, WIDTH, generator=rng), dim=2)
    return Embeddings(tokens, torch.ones(count, SLOTS, dtype=torch.bool))


def forward(kind: SetSimilarity, images: Embeddings, texts: Embeddings) -> Callable[[], object]:
    """Score all with all."""

    def work() -> None:
        with torch.no_grad():
            set_score_matrix(kind, images, texts, ALPHA)

    return work


def both(images: Embeddings, texts: Embeddings, weights: torch.Tensor) -> Callable[[], object]:
    """Score all with all, and carry the gradient of the scores back to the vectors."""
    leaves = [bag.tokens.clone().requires_grad_() for bag in (images, texts)]
    bags = [Embeddings(leaf, bag.mask) for leaf, bag in zip(leaves, (images, texts), strict=True)]

    def work() -> None:
        for leaf in leaves:
            leaf.grad = None
        set_score_matrix("smooth_chamfer", *bags, ALPHA).backward(weights)

    return work
