"""Mining 10,000 captions among 10,000 to 1,000,000 memory-mapped images: time, memory, recall.

The cost model: Q x N scores cost a constant each, and memory beside the mapped vectors is that of
the lists, 8 bytes for each of (k + 64 or k, whichever is more) places, and of a tile. IVF meets
`PROBES` of sqrt(N) cells, so its share of the pairs falls with sqrt(N). Images are unit vectors
around 1,000 centres, and a caption is near its image.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.speed import Result
from benchmarks.speed.gemm import product_in_tiles, seconds
from benchmarks.speed.memory import AnonymousPeak
from benchmarks.speed.pools import member
from counterfoil.negatives.mining import rerank_proposals
from counterfoil.negatives.proposals import propose_by_ivf, recall_of_lists
from counterfoil.scoring.encode import tile_shape
from counterfoil.scoring.reducers import TopK
from counterfoil.scoring.stream import stream_scores

COUNTS, TEXTS, WIDTH = (10_000, 100_000, 1_000_000), 10_000, 128
IMAGES_PER_TEXT, TEXTS_PER_IMAGE = 50, 5
PROPOSED, PROBES = 200, 32
CENTRES, PART = 1_000, 50_000


def results(threads: int) -> Iterator[Result]:
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            yield from _measured(count, Path(folder) / "images.npy")


def mapped(count: int, path: Path) -> tuple[Tensor, Tensor, Tensor]:
    """(N, D) memory-mapped image vectors, (T, D) text vectors and the image of each text."""
    rng = torch.Generator().manual_seed(0)
    centres = torch.randn(CENTRES, WIDTH, generator=rng)
    file = np.lib.format.open_memmap(path, "w+", np.float32, (count, WIDTH))
    for start in range(0, count, PART):
        size = min(PART, count - start)
        own = centres[torch.randint(CENTRES, (size,), generator=rng)]
        noise = torch.randn(size, WIDTH, generator=rng)
        file[start : start + size] = normalize(own + noise, dim=1).numpy()
    file.flush()
    images = torch.from_numpy(np.load(path, mmap_mode="c"))
    text_to_image = torch.randperm(count, generator=rng)[:TEXTS]
    noise = torch.randn(len(text_to_image), WIDTH, generator=rng) / WIDTH**0.5
    return images, normalize(images[text_to_image] + noise, dim=1), text_to_image


def _measured(count: int, path: Path) -> Iterator[Result]:
    images, texts, text_to_image = mapped(count, path)
    given = member(images, texts)
    high, wide = tile_shape([given], images.device)
    plain = seconds(lambda: product_in_tiles(images, texts, high, wide))
    best = TopK("text", len(texts), IMAGES_PER_TEXT, text_to_image)
    lists = best, TopK("image", count, TEXTS_PER_IMAGE, text_to_image)
    cost, most = anonymous_peak(lambda: stream_scores([given], lists))
    size = f"{len(texts):,} captions x {count:,} images x {WIDTH}"
    each = cost / count / len(texts) * 1e9
    note = f"{cost:.1f} s, plain {plain:.1f} s, {each:.1f} ns a score, {most / 2**20:,.0f} MiB"
    yield Result(f"exact lists, both directions, {size}", cost / plain, note=note)
    found: list[Tensor] = []

    def proposed() -> None:
        lists = propose_by_ivf(
            images, texts, texts_per_image=0, images_per_text=PROPOSED, probes=PROBES
        )
        ranked = rerank_proposals(
            lists,
            [given],
            text_to_image,
            texts_per_image=1,
            images_per_text=IMAGES_PER_TEXT,
        )
        found.append(ranked.images)

    cost, most = anonymous_peak(proposed)
    recall, first = (recall_of_lists(found[0], best.rows[:, :k]) for k in (IMAGES_PER_TEXT, 1))
    note = (
        f"{cost:.1f} s, {most / 2**20:,.0f} MiB; {recall:.1%} of the exact lists of images, "
        f"{first:.1%} of the hardest"
    )
    yield Result(f"IVF proposes images, ranked exactly, {size}", cost / plain, note=note)


def anonymous_peak(work: Callable[[], object]) -> tuple[float, int]:
    """Seconds of the work, and bytes that it held at most beside mapped files (Linux; else 0)."""
    with AnonymousPeak() as peak:
        cost = seconds(work)
    return cost, peak.bytes
