"""Ready region and word vectors for the benchmarks of cross-attention, and what is done to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.speed import Result
from benchmarks.speed.gemm import against
from counterfoil.core.types import Embeddings
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.cross_attention import Direction, Rule
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.papers.models.bfan import BFAN
from counterfoil.papers.models.chan import CHAN, Coding, Pooling
from counterfoil.papers.models.scan import SCAN

REGIONS, FEWEST, SHORTEST, LONGEST = 36, 22, 8, 20


def bags(images: int, texts: int, width: int) -> tuple[Embeddings, Embeddings]:
    """Unit vectors: 36 regions to an image, 8 to 20 words to a caption."""
    rng = torch.Generator().manual_seed(0)
    regions = normalize(torch.randn(images, REGIONS, width, generator=rng), dim=-1)
    words = normalize(torch.randn(texts, LONGEST, width, generator=rng), dim=-1)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (texts, 1), generator=rng)
    every = torch.ones(images, REGIONS, dtype=torch.bool)
    return Embeddings(regions, every), Embeddings(words, torch.arange(LONGEST) < lengths)


def fewer(images: Embeddings) -> Embeddings:
    """The same with 22 to all of their regions."""
    rng = torch.Generator().manual_seed(1)
    counts = torch.randint(FEWEST, REGIONS + 1, (len(images), 1), generator=rng)
    return Embeddings(images.tokens, torch.arange(REGIONS) < counts)


def scan(direction: Direction, width: int) -> SCAN:
    """SCAN with LogSumExp and the paper's temperatures."""
    words_attend = direction == "t2i"
    return SCAN(
        image=Regions(features=1, width=width),
        text=GRU(words=1, word_width=1, width=width),
        direction=direction,
        lambda_softmax=9.0 if words_attend else 4.0,
        lambda_lse=6.0 if words_attend else 5.0,
    )


def bfan(focus: Rule, width: int) -> BFAN:
    """BFAN."""
    image, text = Regions(features=1, width=width), GRU(words=1, word_width=1, width=width)
    return BFAN(image=image, text=text, focus=focus)


def chan(coding: Coding, pooling: Pooling, width: int) -> CHAN:
    """CHAN."""
    image, text = Regions(features=1, width=width), GRU(words=1, word_width=1, width=width)
    return CHAN(image=image, text=text, coding=coding, pooling=pooling)


def hardest(weights: Tensor) -> Tensor:
    """The gradient where a hardest triplet loss has one: positives, hardest of row and column."""
    kept = torch.eye(len(weights), dtype=torch.bool)
    kept.scatter_(1, weights.argmax(1, keepdim=True), True)
    kept.scatter_(0, weights.argmax(0, keepdim=True), True)
    return weights.masked_fill(~kept, 0)


def forward(model: RetrievalModel, images: Embeddings, texts: Embeddings) -> Callable[[], object]:
    """Score all with all."""

    def work() -> None:
        with torch.no_grad():
            model.score_matrix(images, texts)

    return work


def both(
    model: RetrievalModel, images: Embeddings, texts: Embeddings, weights: Tensor
) -> Callable[[], object]:
    """Score all with all, and carry the gradient of the scores back to the vectors."""
    regions, words = (x.tokens.clone().requires_grad_() for x in (images, texts))

    def work() -> None:
        regions.grad = words.grad = None
        scores = model.score_matrix(Embeddings(regions, images.mask), Embeddings(words, texts.mask))
        scores.backward(weights)

    return work


Row = tuple[str, Callable[[], object], float | None, float | None]


def compared(
    name: str, images: Embeddings, texts: Embeddings, rows: tuple[Row, ...]
) -> Iterator[Result]:
    """Works, with their targets and what the authors' code takes, against the plain product.

    Args:
        name: what is measured.
        images: all of them whole.
        texts: their real words are multiplied with the regions.
        rows: what is done, the work, its target and the authors' ratio.
    """
    words, regions = texts.tokens[texts.mask], images.tokens.flatten(0, 1)

    def plain() -> Tensor:
        return words @ regions.T

    for what, work, target, authors in rows:
        timing = against(plain, work, warm=2)
        note = f"{timing.work * 1e3:.0f} ms; plain {timing.plain * 1e3:.0f} ms"
        yield Result(f"{name}: {what}", timing.ratio, target, authors, note)
