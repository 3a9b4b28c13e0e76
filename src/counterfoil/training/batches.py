"""Batches in a fixed order, read ahead by a thread while the model computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, cast, final

import torch

from counterfoil.core.types import Batch, Pairs, Role
from counterfoil.data.batching import BatchSampler, collate
from counterfoil.data.processor import ProcessedDataset
from counterfoil.negatives.sources import NegativeSource, named, overrides
from counterfoil.training.checkpoint import derive_seed

T = TypeVar("T")


@final
@dataclass(frozen=True, kw_only=True)
class BatchStream:
    """The batches of a training; batch n depends on the seed and n alone, also after a resume."""

    processor: ProcessedDataset
    sampler: BatchSampler
    epochs: int
    seed: int
    sources: tuple[NegativeSource, ...] = ()

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Batch `start` of the training and those after it."""
        for number, texts in numbered_batches(self.sampler, self.epochs, start):
            yield self._batch(texts, number)

    def _batch(self, texts: torch.Tensor, number: int) -> Batch:
        sources = named(self.sources)
        for name, source in sources:
            if overrides(source, "join"):
                texts = source.join(texts, self._rng(name, number))
        negatives: dict[Role, Pairs] = {}
        candidates: dict[Role, Pairs] = {}
        for name, source in sources:
            if overrides(source, "draw"):
                negatives |= source.draw(texts, self._rng(name, number))
            if overrides(source, "candidates"):
                candidates |= source.candidates(texts, self._rng(name, number))
        return collate(
            self.processor,
            texts,
            negatives=negatives,
            candidates=candidates,
            step=number,
        )

    def _rng(self, name: str, number: int) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(self.seed, name, number))


def numbered_batches(
    sampler: BatchSampler, epochs: int, start: int
) -> Iterator[tuple[int, torch.Tensor]]:
    """Numbers and texts of batch `start` of a training and of those after it."""
    first, place = divmod(start, len(sampler))
    for epoch in range(first, epochs):
        yield from enumerate(sampler.epoch(epoch, start=place), epoch * len(sampler) + place)
        place = 0


_END = object()


@contextmanager
def prefetch(make: Callable[[], Iterator[T]], size: int) -> Iterator[Iterator[T]]:
    """Iterate over the values of `make` in a thread that is at most `size` values ahead.

    An error in the thread is raised in place of its value. The thread ends with the block, even
    when values are left.
    """
    with ThreadPoolExecutor(1) as thread:
        try:
            yield _prefetched(thread, make(), size)
        finally:
            thread.shutdown(wait=False, cancel_futures=True)


def _prefetched(thread: ThreadPoolExecutor, values: Iterator[T], size: int) -> Iterator[T]:
    waiting = deque(thread.submit(next, values, _END) for _ in range(size))
    while (value := waiting.popleft().result()) is not _END:
        waiting.append(thread.submit(next, values, _END))
        yield cast("T", value)
