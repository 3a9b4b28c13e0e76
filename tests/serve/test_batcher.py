from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi import HTTPException

from counterfoil.serve.batcher import Batcher


def doubled(seen: list[list[int]]):
    def answer(queries: Sequence[int]) -> list[int]:
        seen.append(list(queries))
        if 13 in queries:
            raise ValueError("13 is unlucky")
        return [2 * query for query in queries]

    return answer


@pytest.fixture
def worker():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def batcher(answer, worker, *, at_once: int = 4, waiting: int = 100) -> Batcher[int, int]:
    return Batcher(answer, worker, at_once=at_once, gather=0.01, waiting=waiting)


def test_answers_and_batch_sizes(worker):
    seen: list[list[int]] = []

    async def scene() -> list[int]:
        made = batcher(doubled(seen), worker)
        found = await asyncio.gather(*(made.ask(n) for n in range(20, 31)))
        assert (made.queries, made.batches) == (11, 3)
        assert await made.ask(1) == 2  # it begins anew when all was answered
        return found

    assert asyncio.run(scene()) == [2 * n for n in range(20, 31)]
    assert seen == [[20, 21, 22, 23], [24, 25, 26, 27], [28, 29, 30], [1]]


def test_failed_query_fails_alone(worker):
    seen: list[list[int]] = []

    async def scene() -> list[object]:
        made = batcher(doubled(seen), worker)
        return await asyncio.gather(*(made.ask(n) for n in (1, 13, 2)), return_exceptions=True)

    one, unlucky, two = asyncio.run(scene())
    assert (one, two) == (2, 4)
    assert isinstance(unlucky, ValueError)


def test_full_queue_gives_503(worker):
    async def scene() -> list[object]:
        made = batcher(doubled([]), worker, waiting=3)
        return await asyncio.gather(*(made.ask(n) for n in range(5)), return_exceptions=True)

    found = asyncio.run(scene())
    assert found[:3] == [0, 2, 4]
    assert all(isinstance(one, HTTPException) and one.status_code == 503 for one in found[3:])


def test_cancelled_query_is_not_computed(worker):
    seen: list[list[int]] = []
    begun, gate = threading.Event(), threading.Event()

    def answer(queries: Sequence[int]) -> list[int]:
        begun.set()
        gate.wait(60)
        return doubled(seen)(queries)

    async def scene() -> int:
        made = batcher(answer, worker, at_once=1)
        first = asyncio.create_task(made.ask(1))
        while not begun.is_set():  # the first is with the worker
            await asyncio.sleep(0.01)
        gone, last = asyncio.create_task(made.ask(2)), asyncio.create_task(made.ask(3))
        await asyncio.sleep(0)
        gone.cancel()
        gate.set()
        assert await first == 2
        return await last

    assert asyncio.run(scene()) == 6
    assert seen == [[1], [3]]


def test_cancelled_query_leaves_the_queue(worker):
    begun, gate = threading.Event(), threading.Event()

    def answer(queries: Sequence[int]) -> list[int]:
        begun.set()
        gate.wait(60)
        return list(queries)

    async def scene() -> list[int]:
        made = batcher(answer, worker, at_once=1, waiting=1)
        first = asyncio.create_task(made.ask(1))
        await asyncio.to_thread(begun.wait, 60)
        for number in (2, 3, 4):
            gone = asyncio.create_task(made.ask(number))
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.wait([gone])
            assert gone.cancelled()  # and was not told to come back
        last = asyncio.create_task(made.ask(5))
        await asyncio.sleep(0)
        gate.set()
        return [await first, await last]

    assert asyncio.run(scene()) == [1, 5]


def test_cancelled_query_is_not_retried(worker):
    seen: list[list[int]] = []
    begun, gate = threading.Event(), threading.Event()

    def answer(queries: Sequence[int]) -> list[int]:
        begun.set()
        gate.wait(60)
        return doubled(seen)(queries)

    async def scene() -> list[object]:
        made = batcher(answer, worker)
        asked = [asyncio.create_task(made.ask(number)) for number in (13, 2, 3)]
        await asyncio.to_thread(begun.wait, 60)
        asked[1].cancel()
        gate.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    unlucky, gone, three = asyncio.run(scene())
    assert isinstance(unlucky, ValueError)
    assert isinstance(gone, asyncio.CancelledError)
    assert three == 6
    assert seen == [[13, 2, 3], [13], [3]]
