"""Small indices for the tests of the engine and of the recipes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from counterfoil.core.config import config, lazy
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.model import Model
from counterfoil.models.filip import FILIP
from counterfoil.models.layers.towers import GRU, PatchTower
from counterfoil.search.vector_index import IndexEntry, IndexState, NewVectors, VectorIndex


def empty(folder: Path, width: int = 8, **more: object) -> VectorIndex:
    return VectorIndex.create(folder, IndexState(identity="me", model="m", width=width, **more))


def names(count: int, first: int = 0) -> list[str]:
    return [f"i{n}" for n in range(first, first + count)]


def images(names: Iterable[str], vectors: Tensor) -> NewVectors:
    return NewVectors([IndexEntry(name, place=f"/{name}.png") for name in names], vectors)


def texts(names: Iterable[str], vectors: Tensor) -> NewVectors:
    return NewVectors(
        [IndexEntry(name, text=f"text {name}", image=name) for name in names], vectors
    )


def found(index: VectorIndex, queries: Tensor, k: int) -> list[list[tuple[str, float]]]:
    """Ids and scores of the best images."""
    rows, scores = index.images.search(queries, k)
    return [
        [(index.images.entry(row).id, score) for row, score in zip(*own) if row >= 0]
        for own in zip(rows.tolist(), scores.tolist())
    ]


def brute(
    queries: Tensor, vectors: Tensor, names: Sequence[str], k: int
) -> list[list[tuple[str, float]]]:
    """The same by sorting all scores, ties in the order of names given."""
    out = []
    for query in queries:
        scores = [float((query.double() * vector.double()).sum()) for vector in vectors]
        order = sorted(range(len(names)), key=lambda row: (-scores[row], row))
        out.append([(names[row], scores[row]) for row in order[:k]])
    return out


def whole(shape: Sequence[int], seed: int = 0, most: int = 3) -> Tensor:
    """Small whole numbers, so that products are exact and ties are many."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, tuple(shape), generator=generator).float()


def clustered(count: int, width: int = 64, centres: int = 40, seed: int = 0) -> Tensor:
    """Unit vectors in clumps, as embeddings are."""
    generator = torch.Generator().manual_seed(seed)
    middle = torch.randn(centres, width, generator=generator)
    which = torch.randint(0, centres, (count,), generator=generator)
    values = middle[which] + 0.7 * torch.randn(count, width, generator=generator)
    return torch.nn.functional.normalize(values, dim=1)


def recall(index: VectorIndex, queries: Tensor, vectors: Tensor, k: int = 10) -> float:
    """Share of the exact k best images that are found."""
    exact = (queries @ vectors.T).topk(k, 1).indices
    rows, _ = index.images.search(queries, k)
    alive = index.images.alive.nonzero().squeeze(1)
    hit = [len(set(a) & set(alive[b].tolist())) for a, b in zip(rows.tolist(), exact)]
    return sum(hit) / (k * len(queries))


def filip(direction="t2i", mean=True):
    """A small multi-vector model, and scenes."""
    torch.manual_seed(0)
    data = load_dataset("scenes:images=36")
    processor = ProcessorConfig(images="pixels", size=32).fit(data)
    spec = config(
        FILIP,
        image=lazy(PatchTower, size=32, patch=16, width=8, channels=4, depth=1),
        text=lazy(GRU, words=processor.tokenizer.size, word_width=8, width=8),
        direction=direction,
        mean=mean,
    )
    return Model(spec.build().eval(), processor, "filip", spec), data
