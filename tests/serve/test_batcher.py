from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi import HTTPException

from counterfoil.serve.batcher import Batcher


class Doubled:
    """Doubles queries, of which 13 is refused; it notes its batches, and waits for the gate."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.begun, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self, queries: Sequence[int]) -> list[int]:
        self.begun.set()
        self.gate.wait(60)
        self.batches.append(list(queries))
        if 13 in queries:
            raise ValueError("13 is unlucky")
        return [2 * query for query in queries]


@pytest.fixture
def doubled():
    return Doubled()


@pytest.fixture
def worker():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def batcher(answer, worker, *, at_once: int = 4, waiting: int = 100) -> Batcher[int, int]:
    return Batcher(answer, worker, at_once=at_once, gather=0.01, waiting=waiting)


async def begun(made: Batcher[int, int], doubled: Doubled, *queries: int) -> list[asyncio.Task]:
    """Ask, and return when the worker has begun and waits for the gate."""
    doubled.gate.clear()
    tasks = [asyncio.create_task(made.submit(query)) for query in queries]
    await asyncio.to_thread(doubled.begun.wait, 60)
    return tasks


def test_answers_and_batch_sizes(doubled, worker):
    async def scene() -> list[int]:
        made = batcher(doubled, worker)
        found = await asyncio.gather(*(made.submit(n) for n in range(20, 31)))
        assert (made.queries, made.batches) == (11, 3)
        assert await made.submit(1) == 2  # it begins anew when all was answered
        return found

    assert asyncio.run(scene()) == [2 * n for n in range(20, 31)]
    assert doubled.batches == [[20, 21, 22, 23], [24, 25, 26, 27], [28, 29, 30], [1]]


def test_failed_query_fails_alone(doubled, worker):
    async def scene() -> list[object]:
        made = batcher(doubled, worker)
        return await asyncio.gather(*(made.submit(n) for n in (1, 13, 2)), return_exceptions=True)

    one, unlucky, two = asyncio.run(scene())
    assert (one, two) == (2, 4)
    assert isinstance(unlucky, ValueError)


def test_full_queue_gives_503(doubled, worker):
    async def scene() -> list[object]:
        made = batcher(doubled, worker, waiting=3)
        return await asyncio.gather(*(made.submit(n) for n in range(5)), return_exceptions=True)

    found = asyncio.run(scene())
    assert found[:3] == [0, 2, 4]
    assert all(isinstance(one, HTTPException) and one.status_code == 503 for one in found[3:])


def test_cancelled_query_is_not_computed(doubled, worker):
    async def scene() -> list[int]:
        made = batcher(doubled, worker, at_once=1)
        (first,) = await begun(made, doubled, 1)
        gone, last = asyncio.create_task(made.submit(2)), asyncio.create_task(made.submit(3))
        await asyncio.sleep(0)
        gone.cancel()
        doubled.gate.set()
        return [await first, await last]

    assert asyncio.run(scene()) == [2, 6]
    assert doubled.batches == [[1], [3]]


def test_cancelled_query_leaves_the_queue(doubled, worker):
    async def scene() -> list[int]:
        made = batcher(doubled, worker, at_once=1, waiting=1)
        (first,) = await begun(made, doubled, 1)
        for number in (2, 3, 4):
            gone = asyncio.create_task(made.submit(number))
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.wait([gone])
            assert gone.cancelled()  # and was not refused with 503
        last = asyncio.create_task(made.submit(5))
        await asyncio.sleep(0)
        doubled.gate.set()
        return [await first, await last]

    assert asyncio.run(scene()) == [2, 10]


def test_cancelled_query_is_not_retried(doubled, worker):
    async def scene() -> list[object]:
        tasks = await begun(batcher(doubled, worker), doubled, 13, 2, 3)
        tasks[1].cancel()
        doubled.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    unlucky, gone, three = asyncio.run(scene())
    assert isinstance(unlucky, ValueError)
    assert isinstance(gone, asyncio.CancelledError)
    assert three == 6
    assert doubled.batches == [[13, 2, 3], [13], [3]]
