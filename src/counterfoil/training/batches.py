"""Batches in a fixed order, read ahead by a thread while the model computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar, final

import torch

from counterfoil.core.types import Batch, Pairs, Role
from counterfoil.data.batching import BatchSampler, Positives, collate
from counterfoil.data.processor import ProcessedDataset
from counterfoil.negatives.sampling import NegativeSampler, NeighbourImages
from counterfoil.training.checkpoint import derive_seed

T = TypeVar("T")


@final
@dataclass(frozen=True, kw_only=True)
class BatchStream:
    """The batches of a training, each the same from the same seed wherever it begins.

    Attributes:
        processor: where items come from.
        sampler: which captions form a batch.
        epochs: how many.
        seed: of the draws.
        draws: negatives drawn before encoding, if any.
        candidates: pairs that an online miner screens.
        positives: see `counterfoil.data.batching`.
        neighbours: similar images that join the captions of a batch as anchors.
    """

    processor: ProcessedDataset
    sampler: BatchSampler
    epochs: int
    seed: int
    draws: NegativeSampler | None = None
    candidates: NegativeSampler | None = None
    positives: Positives = "id"
    neighbours: NeighbourImages | None = None

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Batch `start` of the training and those after it."""
        first, place = divmod(start, len(self.sampler))
        for epoch in range(first, self.epochs):
            number = epoch * len(self.sampler) + place
            for texts in self.sampler.epoch(epoch, start=place):
                yield self._batch(texts, number)
                number += 1
            place = 0

    def _batch(self, texts: torch.Tensor, number: int) -> Batch:
        if self.neighbours:
            texts = self.neighbours.joined(texts, self._rng("neighbours", number))
        drawn = self._draw(self.draws, "draw", texts, number)
        offered = self._draw(self.candidates, "candidates", texts, number)
        return collate(
            self.processor,
            texts,
            negatives=drawn,
            candidates=offered,
            positives=self.positives,
            step=number,
        )

    def _draw(
        self, draws: NegativeSampler | None, what: str, texts: torch.Tensor, number: int
    ) -> Mapping[Role, Pairs] | None:
        return draws.draw(texts, self._rng(what, number)) if draws else None

    def _rng(self, what: str, number: int) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(self.seed, what, number))


@final
@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException


@final
@dataclass(frozen=True, slots=True)
class _Ready(Generic[T]):
    value: T


_Message = _Ready[T] | _Failed | None  # None ends the stream


@contextmanager
def prefetch(make: Callable[[], Iterator[T]], size: int) -> Iterator[Iterator[T]]:
    """Iterate over the values of `make` in a thread that is at most `size` values ahead.

    An error in the thread is raised in place of its value. The thread ends with the block, even
    when values are left.
    """
    channel: queue.Queue[_Message[T]] = queue.Queue(size)
    over = threading.Event()
    thread = threading.Thread(target=_fill, args=(make, channel, over), daemon=True)
    thread.start()
    try:
        yield _receive(channel)
    finally:
        over.set()
        _drain(channel)
        thread.join()


def _fill(
    make: Callable[[], Iterator[T]], channel: queue.Queue[_Message[T]], over: threading.Event
) -> None:
    try:
        for value in make():
            if not _put(channel, _Ready(value), over):
                return
        _put(channel, None, over)
    except BaseException as error:
        _put(channel, _Failed(error), over)


def _put(channel: queue.Queue[_Message[T]], message: _Message[T], over: threading.Event) -> bool:
    """Put a message in the queue; return False if the consumer has stopped."""
    while not over.is_set():
        try:
            channel.put(message, timeout=0.2)
        except queue.Full:
            continue
        return True
    return False


def _drain(channel: queue.Queue[_Message[T]]) -> None:
    while not channel.empty():
        channel.get_nowait()


def _receive(channel: queue.Queue[_Message[T]]) -> Iterator[T]:
    while (message := channel.get()) is not None:
        if isinstance(message, _Failed):
            raise message.error
        yield message.value
