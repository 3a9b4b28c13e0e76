"""SCAN mines a Flickr30K-sized training set: ``python -m benchmarks.speed.gpu_mining``.

Synthetic tensors of the real shape, on a GPU where there is one. It stops by itself, and says then
how far it came.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.speed.bags import LONGEST, REGIONS, SHORTEST, scan
from counterfoil.core.resumable import WorkStopped
from counterfoil.core.types import Embeddings, ModalityBatch
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.fused import prepare_context
from counterfoil.negatives.mining import mine_half_precision, mine_lists
from counterfoil.scoring.encode import EmbeddedDataset

IMAGES, TEXTS, WIDTH = 29_000, 145_000, 1024
HARD_TEXTS, HARD_IMAGES = 300, 60
TILE = 512, 1024  # of the plain product
_AT_ONCE = 2048
_SAMPLE = 1.0  # seconds


@final
class Counting(RetrievalModel):
    """Counts the pairs that another matcher scores in blocks."""

    def __init__(self, inner: RetrievalModel) -> None:
        super().__init__()
        self.inner, self.scored = inner, 0
        self.has_kernels = inner.has_kernels

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        return self.inner.encode_images(images)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        return self.inner.encode_texts(texts)

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> Tensor:
        return self.inner.score_pairs(images, texts)

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> Tensor:
        self.scored += len(images) * len(texts)
        return self.inner.score_matrix(images, texts)


@dataclass(frozen=True, slots=True)
class Plain:
    """Seconds a pair takes in the plain product of regions with real words."""

    single: float
    half: float


def bag(
    count: int, longest: int, shortest: int, width: int, device: torch.device, seed: int
) -> Embeddings:
    """Bags of unit vectors, made where they are used."""
    rng = torch.Generator(device).manual_seed(seed)
    tokens = torch.empty(count, longest, width, device=device)
    for part in torch.split(tokens, _AT_ONCE):
        part.copy_(normalize(torch.randn(part.shape, generator=rng, device=device), dim=-1))
    lengths = torch.randint(shortest, longest + 1, (count, 1), generator=rng, device=device)
    return Embeddings(tokens, torch.arange(longest, device=device) < lengths)


def plain(images: Embeddings, texts: Embeddings) -> Plain:
    """Multiply one tile for a while, in each precision."""
    high, wide = min(TILE[0], len(images)), min(TILE[1], len(texts))
    regions = images.tokens[:high].flatten(0, 1)
    words = whole(texts.tokens[:wide][texts.mask[:wide]])
    each = []
    for kind in (torch.float32, torch.bfloat16):
        left, right = regions.to(kind), words.to(kind).T.contiguous()
        out = torch.empty(len(left), right.shape[1], device=left.device, dtype=kind)
        torch.mm(left, right, out=out)
        _wait(left.device)
        began, times = time.perf_counter(), 0
        while time.perf_counter() - began < _SAMPLE:
            torch.mm(left, right, out=out)
            _wait(left.device)
            times += 1
        share = len(right.T) / int(texts.mask[:wide].sum())
        each.append((time.perf_counter() - began) / times / (high * wide * share))
    return Plain(*each)


def whole(vectors: Tensor) -> Tensor:
    """Return a multiple of 64 of the rows: cuBLAS takes three times as long for an odd number."""
    return vectors[: len(vectors) // 64 * 64] if len(vectors) >= 64 else vectors


def measure(
    name: str, model: Counting, total: int, product: Plain, work: Callable[[], str]
) -> None:
    """Run one way of mining and print what it took."""
    model.scored, began, said = 0, time.perf_counter(), ""
    try:
        said = work()
    except WorkStopped:
        share = model.scored / total
        said = "out of time " + (f"at {share:.1%}" if share < 1 else "when mining again")
    spent = time.perf_counter() - began
    done = min(model.scored, total)
    each = spent / max(1, done)
    print(
        f"{name}: {done:,} pairs in {spent:.1f} s, {1 / each:,.0f} pairs/s, all in "
        f"{each * total / 60:.1f} min, {each / product.single:.2f} x the float32 product, "
        f"{each / product.half:.2f} x the bfloat16 product{'; ' if said else ''}{said}",
        flush=True,
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.gpu_mining", description=__doc__
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything together")
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> None:
    """Measure the product, then mining by way of bfloat16, then in float32."""
    asked = _arguments(given)
    until = time.monotonic() + 60 * asked.minutes
    device, total = torch.device(asked.device), asked.images * asked.texts
    images = prepare_context(bag(asked.images, REGIONS, REGIONS, asked.width, device, 0), gram=True)
    texts = bag(asked.texts, LONGEST, SHORTEST, asked.width, device, 1)
    model, product = Counting(scan("t2i", asked.width).to(device)), plain(images, texts)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(
        f"{asked.images:,} x {asked.texts:,}, width {asked.width}, {where}, torch "
        f"{torch.__version__}: the plain product of all pairs takes {product.single * total:.1f} s "
        f"in float32, {product.half * total:.1f} s in bfloat16",
        flush=True,
    )
    for name, way in ways(EmbeddedDataset(model, images, texts), lambda: time.monotonic() >= until):
        measure(name, model, total, product, way)
    if device.type == "cuda":
        print(f"peak {torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB", flush=True)


def ways(member: EmbeddedDataset, late: Callable[[], bool]) -> list[tuple[str, Callable[[], str]]]:
    """Ways to mine, and what there is to say of each when it is done."""
    text_to_image = torch.arange(len(member.texts)) % len(member.images)

    def halved() -> str:
        _, certificate = mine_half_precision(
            [member],
            text_to_image,
            texts_per_image=HARD_TEXTS,
            images_per_text=HARD_IMAGES,
            stop=late,
        )
        return certificate.describe()

    def single() -> str:
        mine_lists(
            [member],
            text_to_image,
            texts_per_image=HARD_TEXTS,
            images_per_text=HARD_IMAGES,
            stop=late,
        )
        return ""

    return [("bfloat16, then float32", halved), ("float32", single)]


if __name__ == "__main__":
    main()
