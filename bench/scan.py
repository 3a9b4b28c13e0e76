"""SCAN's score of 128 images with 128 captions, against the plain product of the real words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

from bench import Result
from bench.gemm import against
from counterfoil.models.blocks.attention import Direction
from counterfoil.models.blocks.gru import GRU
from counterfoil.models.blocks.regions import Regions
from counterfoil.models.scan import SCAN
from counterfoil.records import Encoded

IMAGES, TEXTS, REGIONS, WIDTH, SHORTEST, LONGEST = 128, 128, 36, 1024, 8, 20
SIZE = f"{IMAGES} x {TEXTS}, {REGIONS} regions, width {WIDTH}"
TARGETS = {"t2i": (1.9, 6.0), "i2t": (2.6, 9.0)}
AUTHORS = {"t2i": (12.9, 66.8), "i2t": (25.1, 115.4)}


def results(threads: int) -> Iterator[Result]:
    images, texts, weights = _inputs()
    words, regions = texts.tokens[texts.mask], images.tokens.flatten(0, 1)
    sparse = _hardest(weights)

    def plain() -> Tensor:
        return words @ regions.T

    for direction in ("t2i", "i2t"):
        model = _model(direction)
        compiled = _model(direction, compiled=True)
        targets, authors = TARGETS[direction], AUTHORS[direction]
        name = f"SCAN {direction} LogSumExp, {SIZE}"
        rows = (
            ("forward", _forward(model, images, texts), targets[0], authors[0]),
            ("forward + backward", _both(model, images, texts, weights), targets[1], authors[1]),
            (
                "forward + backward, hardest triplet",
                _both(model, images, texts, sparse),
                None,
                None,
            ),
            ("forward, compiled", _forward(compiled, images, texts), None, None),
            ("forward + backward, compiled", _both(compiled, images, texts, weights), None, None),
        )
        for what, work, target, theirs in rows:
            timing = against(plain, work, warm=2)
            note = f"{timing.work * 1e3:.0f} ms; plain {timing.plain * 1e3:.0f} ms"
            yield Result(f"{name}: {what}", timing.ratio, target, theirs, note)


def _inputs() -> tuple[Encoded, Encoded, Tensor]:
    """Unit vectors, captions of 8 to 20 words, and a gradient for every score."""
    rng = torch.Generator().manual_seed(0)
    regions = normalize(torch.randn(IMAGES, REGIONS, WIDTH, generator=rng), dim=-1)
    words = normalize(torch.randn(TEXTS, LONGEST, WIDTH, generator=rng), dim=-1)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (TEXTS, 1), generator=rng)
    mask = torch.arange(LONGEST) < lengths
    every = torch.ones(IMAGES, REGIONS, dtype=torch.bool)
    return (
        Encoded(regions, every),
        Encoded(words, mask),
        torch.randn(IMAGES, TEXTS, generator=rng),
    )


def _hardest(weights: Tensor) -> Tensor:
    """The gradient where a hardest triplet loss has one: positives, hardest of row and column."""
    kept = torch.eye(len(weights), dtype=torch.bool)
    kept.scatter_(1, weights.argmax(1, keepdim=True), True)
    kept.scatter_(0, weights.argmax(0, keepdim=True), True)
    return weights.masked_fill(~kept, 0)


def _model(direction: Direction, *, compiled: bool = False) -> SCAN:
    words_attend = direction == "t2i"
    return SCAN(
        image=Regions(features=1, width=WIDTH),
        text=GRU(words=1, word_width=1, width=WIDTH),
        direction=direction,
        lambda_softmax=9.0 if words_attend else 4.0,
        lambda_lse=6.0 if words_attend else 5.0,
        compiled=compiled,
    )


def _forward(model: SCAN, images: Encoded, texts: Encoded) -> Callable[[], object]:
    def work() -> None:
        with torch.no_grad():
            model.grid(images, texts)

    return work


def _both(model: SCAN, images: Encoded, texts: Encoded, weights: Tensor) -> Callable[[], object]:
    regions, words = (x.tokens.clone().requires_grad_() for x in (images, texts))

    def work() -> None:
        regions.grad = words.grad = None
        scores = model.grid(Encoded(regions, images.mask), Encoded(words, texts.mask))
        scores.backward(weights)

    return work
