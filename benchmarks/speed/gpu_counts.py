"""What kernels multiply and read, padding included, counted without a GPU.

``python -m benchmarks.speed.gpu_counts`` prints the table of docs/results/speed.md. Counts follow
the launches: `tests/kernels/test_counts.py` compares them with those of the interpreter. They say
nothing of how fast a GPU does it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from counterfoil.gpu import CELLS
from counterfoil.gpu.attention import Tile
from counterfoil.gpu.common import Lengths, by_length, dot_settings, tiles
from counterfoil.gpu.max_sim import launches


@final
@dataclass(frozen=True, slots=True)
class Count:
    """Of one call that scores all queries with all contexts, without gradient.

    Attributes:
        plain: multiply-adds of the product of the real vectors.
        multiplied: those that the tensor cores do.
        read: bytes of vectors that programs read, from whatever memory; padding is not read.
        written: bytes of similarities between two passes, which are read once more.
    """

    plain: int
    multiplied: int
    read: int
    written: int


def count_max_sim(
    queries: Lengths, contexts: Lengths, width: int, dtype: torch.dtype = torch.bfloat16
) -> Count:
    """Count `counterfoil.gpu.max_sim` for items of these lengths."""
    vectors, multiplied, read = int(queries.sum()), 0, 0
    for launch in launches(vectors, contexts, width, dtype):
        full, tail = divmod(launch.longest, launch.head)
        columns = launch.head * (full + (not launch.tail and tail > 0)) + launch.tail
        visited = tiles(len(launch.chosen), launch.contexts)
        depth = _padded(width, launch.products["block_k"])
        high = launch.grid[0]
        multiplied += high * launch.rows * visited * launch.contexts * columns * depth
        products = visited * (-(-launch.longest // launch.head))
        times = launch.grid[1] if launch.products["resident"] else products
        read += vectors * times + high * int(contexts[launch.chosen].sum())
    plain = vectors * int(contexts.sum()) * width
    between = vectors * len(contexts) * 4
    return Count(plain, multiplied, read * width * dtype.itemsize, between)


def count_attention(
    queries: Lengths, contexts: Lengths, width: int, dtype: torch.dtype = torch.bfloat16
) -> Count:
    """Count `counterfoil.gpu.attention` in one direction for items of these lengths."""
    multiplied = read = 0
    settings = dot_settings(dtype)
    depth = _padded(width, settings["block_k"])
    inner = 3 if settings["inner"] == "split" else 1  # products with Gram matrices
    for of_queries, x in _groups(queries, dtype):
        for of_contexts, y in _groups(contexts, dtype):
            tile = Tile.of(x, y, CELLS)
            rows, columns = tile.items * tile.length, tile.contexts * tile.context_length
            high, wide = tiles(len(x), tile.items), tiles(len(y), tile.contexts)
            multiplied += high * wide * rows * columns * (depth + inner * columns)
            read += wide * int(of_queries.sum()) + high * int(of_contexts.sum())
    plain = int(queries.sum()) * int(contexts.sum()) * width
    return Count(plain, multiplied, read * width * dtype.itemsize, 0)


def _padded(size: int, block: int) -> int:
    return tiles(size, block) * block


def _groups(lengths: Lengths, dtype: torch.dtype) -> Iterator[tuple[Lengths, torch.Tensor]]:
    shape = len(lengths), int(lengths.max())
    rows = torch.arange(shape[0]).unsqueeze(1).expand(shape)
    for chosen, x, _ in by_length(torch.empty(*shape, 1, dtype=dtype), rows, lengths):
        yield lengths[chosen.numpy()], x


def main() -> None:
    """Print a line for each kernel and shape."""
    rng = np.random.default_rng(0)
    words, regions = rng.integers(2, 21, 1024), np.full(512, 36)
    one, thousand = np.full(1, 1), np.full(1000, 1)
    late = (
        ("32 × 300, one query, 1,000 documents", 32 * one, 300 * thousand),
        ("1,024 × 1,024, one query, 1,000 documents", 1024 * one, 1024 * thousand),
    )
    cases = [
        ("MaxSim t2i, width 128", count_max_sim(words, regions, 128)),
        ("MaxSim i2t, width 128", count_max_sim(regions, words, 128)),
        ("CHAN VHA, width 1024", count_max_sim(words, regions, 1024)),
        *((f"MaxSim {name}", count_max_sim(*sides, 128)) for name, *sides in late),
        ("SCAN t2i, width 1024", count_attention(words, regions, 1024)),
        ("SCAN i2t, width 1024", count_attention(regions, words, 1024)),
    ]
    print("| kernel | × the plain product | GFLOP | GB read | GB between passes |")
    print("|---|---|---|---|---|")
    for name, found in cases:
        ratio, billions = found.multiplied / found.plain, 2 * found.multiplied / 1e9
        print(
            f"| {name} | {ratio:.2f} | {billions:,.0f} | {found.read / 1e9:.2f} | "
            f"{found.written / 1e9:.3f} |"
        )


if __name__ == "__main__":
    main()
