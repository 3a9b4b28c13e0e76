"""Ranks in both directions, hence every recall, from ready embeddings."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.speed import Result
from benchmarks.speed.gemm import against, product_in_tiles
from benchmarks.speed.memory import peak, words
from benchmarks.speed.pools import member, pool
from counterfoil.scoring.encode import tile_shape
from counterfoil.scoring.reducers import Ranks
from counterfoil.scoring.stream import stream_scores

IMAGES, TEXTS, WIDTH = 5_000, 25_000, 1024
TARGET, MOST = 1.1, 2**30


def results(threads: int) -> Iterator[Result]:
    """COCO 5K's size, for embeddings that retrieve well and for some that hardly do."""
    yield _measured(signal=0.14)
    yield _measured(signal=0.05)


def _measured(signal: float) -> Result:
    images, texts, text_to_image = pool(IMAGES, TEXTS, WIDTH, signal=signal)
    given = member(images, texts)
    high, wide = tile_shape([given], images.device)
    ranks = Ranks("image", IMAGES, text_to_image), Ranks("text", TEXTS, text_to_image)
    most = peak(lambda: stream_scores([given], ranks))
    assert most is None or most <= MOST, f"{words(most)} is above 1 GiB"
    timing = against(
        lambda: product_in_tiles(images, texts, high, wide), lambda: stream_scores([given], ranks)
    )
    first = 100 * (ranks[1].ranks() == 0).double().mean().item()
    name = f"recall {IMAGES:,} x {TEXTS:,} x {WIDTH}, embeddings with R@1 {first:.0f} %"
    note = f"{timing.work:.2f} s against {timing.plain:.2f} s, {words(most)}"
    return Result(name, timing.ratio, TARGET, note=note)
