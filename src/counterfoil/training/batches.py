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
        sampler: which captions meet.
        epochs: how many.
        seed: of what is drawn.
        draws: negatives drawn before encoding, if any.
        candidates: what a proposer screens, if anything.
        positives: see `counterfoil.data.batching`.
        neighbours: who else joins the captions of a batch as an anchor, if anybody.
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
        drawn = self._drawn(self.draws, "draw", texts, number)
        offered = self._drawn(self.candidates, "candidates", texts, number)
        return collate(
            self.processor,
            texts,
            drawn=drawn,
            candidates=offered,
            positives=self.positives,
            step=number,
        )

    def _drawn(
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


_Message = _Ready[T] | _Failed | None  # None: there is no more


@contextmanager
def prefetch(make: Callable[[], Iterator[T]], size: int) -> Iterator[Iterator[T]]:
    """What `make` yields, in order, made by a thread that is `size` values ahead at most.

    An error in the thread is raised where the value would have come; the thread ends with the
    block, whether or not everything was taken.
    """
    box: queue.Queue[_Message[T]] = queue.Queue(size)
    over = threading.Event()
    thread = threading.Thread(target=_fill, args=(make, box, over), daemon=True)
    thread.start()
    try:
        yield _taken(box)
    finally:
        over.set()
        _drain(box)
        thread.join()


def _fill(
    make: Callable[[], Iterator[T]], box: queue.Queue[_Message[T]], over: threading.Event
) -> None:
    try:
        for value in make():
            if not _put(box, _Ready(value), over):
                return
        _put(box, None, over)
    except BaseException as error:
        _put(box, _Failed(error), over)


def _put(box: queue.Queue[_Message[T]], message: _Message[T], over: threading.Event) -> bool:
    """Whether there was still somebody to take it."""
    while not over.is_set():
        try:
            box.put(message, timeout=0.2)
        except queue.Full:
            continue
        return True
    return False


def _drain(box: queue.Queue[_Message[T]]) -> None:
    while not box.empty():
        box.get_nowait()


def _taken(box: queue.Queue[_Message[T]]) -> Iterator[T]:
    while (message := box.get()) is not None:
        if isinstance(message, _Failed):
            raise message.error
        yield message.value
