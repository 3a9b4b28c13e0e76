"""Mining hard negatives in both directions from one pass over 29,000 x 145,000 scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from benchmarks.speed import Result
from benchmarks.speed.gemm import product_in_tiles, seconds
from benchmarks.speed.memory import peak, words
from benchmarks.speed.pools import member, pool, rising
from counterfoil.scoring.encode import tile_shape
from counterfoil.scoring.reducers import TopK
from counterfoil.scoring.stream import stream_scores

IMAGES, TEXTS, WIDTH, KEPT = 29_000, 145_000, 512, 100
ONE_THREAD, ALL_CORES, HOSTILE, MOST = 1.2, 1.3, 1.4, 2**30
AUTHORS = 99.2  # AOQ's two mining scripts, float32, 2,000 x 10,000 x 1024, one thread


def results(threads: int) -> Iterator[Result]:
    """The ordinary order, and the worst one."""
    images, texts, text_to_image = pool(IMAGES, TEXTS, WIDTH, signal=0.5)
    target = ONE_THREAD if threads == 1 else ALL_CORES
    mine = _mining(images, texts, text_to_image)
    before = seconds(_plain(images, texts))
    cost, most = _measured(mine)
    plain = (before + seconds(_plain(images, texts))) / 2  # a busy machine drifts in two minutes
    size = f"{IMAGES:,} x {TEXTS:,} x {WIDTH}, top {KEPT} both ways"
    assert most is None or most <= MOST, f"{words(most)} is above 1 GiB"
    note = f"{cost:.1f} s against {plain:.1f} s, {words(most)}"
    yield Result(f"mining {size}", cost / plain, target, AUTHORS, note)
    del images, texts, mine
    images, texts = rising(IMAGES, TEXTS, WIDTH)
    cost, most = _measured(_mining(images, texts, text_to_image))
    note = f"{cost:.1f} s against {plain:.1f} s, {words(most)}"
    yield Result(f"mining {size}, scores rising with the row", cost / plain, HOSTILE, note=note)


def _plain(images: Tensor, texts: Tensor) -> Callable[[], None]:
    high, wide = tile_shape([member(images, texts)], images.device)
    return lambda: product_in_tiles(images, texts, high, wide)


def _mining(images: Tensor, texts: Tensor, text_to_image: Tensor) -> Callable[[], None]:
    def run() -> None:
        lists = TopK("image", IMAGES, KEPT, text_to_image), TopK("text", TEXTS, KEPT, text_to_image)
        stream_scores([member(images, texts)], lists)

    return run


def _measured(work: Callable[[], None]) -> tuple[float, int | None]:
    found: list[int | None] = []
    cost = seconds(lambda: found.append(peak(work)))
    return cost, found[0]
