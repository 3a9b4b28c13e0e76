"""Batches concurrent queries and runs them in one worker thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Generic, TypeVar, final

from fastapi import HTTPException

Q = TypeVar("Q")
A = TypeVar("A")


def overloaded(unit: str) -> HTTPException:
    """Error for a request beyond a limit of those that wait."""
    message = f"too many {unit} are waiting; try again in a moment"
    return HTTPException(503, message, {"retry-after": "1"})


@final
class Batcher(Generic[Q, A]):
    """Collects queries for a moment and answers them in one call.

    A batch that fails is repeated query by query, so that one bad query fails alone.

    Args:
        answer: computes one answer per query, in order, independent of the rest of the batch.
        worker: executor that runs it.
        at_once: maximum queries of a batch.
        gather: seconds to collect queries.
        waiting: maximum queries in the queue.
        unit: plural noun for the queries in error messages.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Q]], Sequence[A]],
        worker: Executor,
        *,
        at_once: int,
        gather: float,
        waiting: int,
        unit: str = "queries",
    ) -> None:
        self._answer, self._worker = answer, worker
        self._at_once, self._gather, self._waiting = at_once, gather, waiting
        self._unit = unit
        self._queue: dict[asyncio.Future[A], Q] = {}  # a dict removes cancelled queries in O(1)
        self._task: asyncio.Task[None] | None = None
        self.batches = self.queries = 0

    async def submit(self, query: Q) -> A:
        """Queue a query and wait for its answer; cancellation removes it from the queue."""
        self.check_room()
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._queue[future] = query
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            return await future
        finally:
            self._queue.pop(future, None)

    def check_room(self) -> None:
        """Refuse, with status 503, a query that the queue has no room for."""
        if len(self._queue) >= self._waiting:
            raise overloaded(self._unit)

    async def _run(self) -> None:
        try:
            while self._queue:
                if len(self._queue) < self._at_once:
                    await asyncio.sleep(self._gather)
                futures = list(islice(self._queue, self._at_once))
                await self._answer_batch([(self._queue.pop(future), future) for future in futures])
        finally:
            self._task = None

    async def _answer_batch(self, batch: Sequence[tuple[Q, asyncio.Future[A]]]) -> None:
        batch = [(query, future) for query, future in batch if not future.done()]
        if not batch:
            return
        queries, loop = [query for query, _ in batch], asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._worker, self._answer, queries)
        except Exception as error:
            if len(batch) > 1:
                for pair in batch:
                    await self._answer_batch([pair])
            elif not batch[0][1].done():
                batch[0][1].set_exception(error)
            return
        self.batches += 1
        self.queries += len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
