"""The plain matrix product everything is compared with, and the stopwatch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of the work and of the plain product, and the median of their ratios."""

    work: float
    plain: float
    ratio: float


def seconds(work: Callable[[], object]) -> float:
    """What one call costs: process CPU time on one thread, wall time on several."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    work()
    return clock() - start


def against(
    plain: Callable[[], object], work: Callable[[], object], repeats: int = 7, warm: int = 1
) -> Timing:
    """Time both in turn, so that a busy machine is unfair to neither."""
    for _ in range(warm):
        plain()
        work()
    times = [(seconds(plain), seconds(work)) for _ in range(repeats)]
    return Timing(
        work=statistics.median(w for _, w in times),
        plain=statistics.median(p for p, _ in times),
        ratio=statistics.median(w / p for p, w in times),
    )


def product_in_tiles(images: Tensor, texts: Tensor, high: int, wide: int) -> None:
    """Every inner product of (I, D) with (T, D), tile by tile into one buffer, nothing kept."""
    out = torch.empty(high, wide)
    for top in range(0, len(images), high):
        rows = images[top : top + high]
        for left in range(0, len(texts), wide):
            columns = texts[left : left + wide].T
            torch.mm(
                rows,
                columns,
                out=out[: len(rows)]
                .flatten()[: len(rows) * columns.shape[1]]
                .view(len(rows), columns.shape[1]),
            )
