"""Queries that come at about the same time are answered together, in one worker thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Generic, TypeVar, final

from counterfoil.serve.refused import Refused

Q = TypeVar("Q")
A = TypeVar("A")


@final
class Batcher(Generic[Q, A]):
    """Gathers queries for a moment and asks for all their answers at once.

    A query whose batch fails is asked again alone, so that nobody pays for another's.

    Args:
        answer: an answer for each query, in order; equal to asking one by one.
        worker: where it runs.
        at_once: queries answered together, at most.
        gather: seconds to wait for more.
        waiting: queries that may wait.
        what: they are, in the plural.

    Attributes:
        batches: how many batches were answered.
        queries: how many queries were in them.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Q]], Sequence[A]],
        worker: Executor,
        *,
        at_once: int,
        gather: float,
        waiting: int,
        what: str = "queries",
    ) -> None:
        self._answer, self._worker = answer, worker
        self._at_once, self._gather, self._waiting = at_once, gather, waiting
        self._what = what
        self._queue: dict[asyncio.Future[A], Q] = {}  # in order
        self._running: asyncio.Task[None] | None = None
        self.batches = self.queries = 0

    async def ask(self, query: Q) -> A:
        """The answer to one query; whoever no longer waits for it takes up no room.

        Raises:
            Refused: too many are waiting.
        """
        if len(self._queue) >= self._waiting:
            raise Refused(503, f"too many {self._what} are waiting; try again in a moment")
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._queue[future] = query
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        try:
            return await future
        finally:
            self._queue.pop(future, None)

    async def _run(self) -> None:
        try:
            while self._queue:
                if len(self._queue) < self._at_once:
                    await asyncio.sleep(self._gather)
                futures = list(islice(self._queue, self._at_once))
                await self._answered([(self._queue.pop(one), one) for one in futures])
        finally:
            self._running = None

    async def _answered(self, asked: Sequence[tuple[Q, asyncio.Future[A]]]) -> None:
        batch = [(query, future) for query, future in asked if not future.done()]
        if not batch:
            return
        try:
            answers = await self._asked([query for query, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                _fail(batch[0][1], error)
                return
            for one in batch:
                await self._answered([one])
            return
        self.batches += 1
        self.queries += len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)

    async def _asked(self, queries: Sequence[Q]) -> Sequence[A]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, self._answer, queries)


def _fail(future: asyncio.Future[A], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
