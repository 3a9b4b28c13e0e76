"""Clients that open connections and say little, over real sockets; no test measures time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import uvicorn

from counterfoil.serve import run
from counterfoil.serve.app import application
from counterfoil.serve.guard import Guard
from counterfoil.serve.holdings import Library
from counterfoil.serve.settings import Settings
from counterfoil.serve.silence import Connection
from serve_cases import indexed, library

T = TypeVar("T")
LONG = 60.0  # seconds in which a busy machine does anything
HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
SEARCH = b"GET /search?text=a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Opening = Callable[[], Awaitable[Client]]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return indexed(tmp_path_factory.mktemp("silence"), 4)


def served(root: Path, settings: Settings, scene: Callable[[Opening], Awaitable[T]]) -> T:
    """What a scene gives, played before a server that listens at a socket."""
    app: Guard = application(library(root), settings)

    async def play() -> T:
        with run.listening(settings) as opened:
            opened.listen()
            port = opened.getsockname()[1]
            server = uvicorn.Server(run.configuration(app, settings))
            serving = asyncio.create_task(server.serve(sockets=[opened]))
            clients: list[Client] = []

            async def opening() -> Client:
                clients.append(await asyncio.open_connection("127.0.0.1", port))
                return clients[-1]

            try:
                return await asyncio.wait_for(scene(opening), LONG)
            finally:
                server.should_exit = True
                for _, writer in clients:
                    writer.close()
                await serving

    return asyncio.run(play())


def free(**more: object) -> Settings:
    return Settings(port=0, gather=0.0, **more)


async def status(client: Client, request: bytes = HEALTH) -> int:
    """Ask, and read all of the answer."""
    reader, writer = client
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split()[0])
    await reader.readexactly(length)
    return int(head.split()[1])


async def ended(client: Client) -> bool:
    """Whether the server closes; waits until it does."""
    try:
        return await client[0].read(1) == b""
    except ConnectionResetError:
        return True


STARTS = {"nothing": b"", "half a line": b"GET /hea", "half a head": HEALTH[:-2]}


@pytest.mark.parametrize("name", STARTS)
def test_a_head_that_does_not_come_is_not_waited_for(root, name):
    async def scene(opening: Opening) -> bool:
        client = await opening()
        client[1].write(STARTS[name])
        return await ended(client)

    assert served(root, free(seconds=0.2), scene)


def test_nor_is_one_that_comes_a_byte_at_a_time(root):
    async def scene(opening: Opening) -> bool:
        reader, writer = await opening()

        async def trickle() -> None:
            while True:
                writer.write(b"G")
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        try:
            return await ended((reader, writer))
        finally:
            trickling.cancel()

    assert served(root, free(seconds=0.2), scene)


def test_nor_is_the_next_one_on_the_same_connection(root):
    async def scene(opening: Opening) -> tuple[int, bool]:
        client = await opening()
        found = await status(client)
        client[1].write(HEALTH[:-2])
        return found, await ended(client)

    assert served(root, free(seconds=2.0), scene) == (200, True)


@pytest.mark.parametrize("body", [b"", b"{"])
def test_the_rest_of_a_body_that_was_refused_is_not_waited_for(root, body, monkeypatch):
    monkeypatch.setattr(run, "_IDLE", 0.2)
    request = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n"

    async def scene(opening: Opening) -> tuple[int, bool]:
        client = await opening()
        found = await status(client, request)
        client[1].write(body)
        return found, await ended(client)

    assert served(root, free(key="k", seconds=2.0), scene) == (401, True)


@pytest.fixture
def gate(monkeypatch) -> threading.Event:
    """Searches are answered once it is set."""
    made, answer = threading.Event(), Library.answer
    monkeypatch.setattr(Library, "answer", lambda *given: made.wait(LONG) and answer(*given))
    return made


@pytest.fixture
def heard(monkeypatch) -> list[Connection]:
    """The connections that asked something, as often as they did."""
    found: list[Connection] = []
    asks = Connection.asks

    def noted(one: Connection) -> None:
        asks(one)
        found.append(one)

    monkeypatch.setattr(Connection, "asks", noted)
    return found


async def until(found: list[Connection], count: int) -> None:
    while len(found) < count:
        await asyncio.sleep(0.01)


def test_who_is_being_answered_is_not_silent(root, gate, heard):
    """A connection outlives others that were opened after it, and gets its answer."""

    async def scene(opening: Opening) -> tuple[bool, int]:
        found = asyncio.create_task(status(await opening(), SEARCH))
        await until(heard, 1)
        silent = [await opening() for _ in range(4)]
        dropped = await ended(silent[0])  # of five, where four may be open
        gate.set()
        return dropped, await found

    assert served(root, free(connections=4, seconds=LONG), scene) == (True, 200)


def test_silent_connections_keep_nobody_out(root):
    """The one that was silent longest makes room, whoever has opened all there may be."""

    async def scene(opening: Opening) -> tuple[list[int], bool, list[int]]:
        silent = [await opening() for _ in range(3)]
        asked = [await status(await opening()) for _ in range(3)]
        gone = all([await ended(client) for client in silent])
        return asked, gone, [await status(await opening()) for _ in range(2)]

    assert served(root, free(connections=3, seconds=LONG), scene) == ([200] * 3, True, [200] * 2)


def test_where_all_are_being_answered_others_are_told_to_come_back(root, gate, heard):
    async def scene(opening: Opening) -> tuple[int, list[int]]:
        busy = [asyncio.create_task(status(await opening(), SEARCH)) for _ in range(2)]
        await until(heard, 2)
        refused = await status(await opening())
        gate.set()
        return refused, await asyncio.gather(*busy)

    assert served(root, free(connections=2, seconds=LONG), scene) == (503, [200, 200])


def test_a_head_without_end_is_not_kept(root):
    async def scene(opening: Opening) -> bytes:
        client = await opening()
        client[1].write(HEALTH[:-2] + b"X: " + b"x" * 200_000)
        return await client[0].readline()

    assert served(root, free(seconds=LONG), scene).startswith(b"HTTP/1.1 400 ")


METRICS = HEALTH.replace(b"/health", b"/metrics")
LEFT = b'counterfoil_requests_total{route="/search",status="499"} '


async def leave(opening: Opening, client: Client, left: int) -> None:
    """Close a connection, and wait until the server has given up so many requests."""
    client[1].close()
    while True:
        reader, writer = await opening()
        writer.write(METRICS.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        if LEFT + b"%d\n" % left in await reader.read():
            return
        await asyncio.sleep(0.01)


def test_who_left_is_not_answered_and_takes_up_no_room(root, gate, heard):
    """Others would be told to come back while queries wait that nobody wants answered."""

    async def scene(opening: Opening) -> list[int]:
        first = asyncio.create_task(status(await opening(), SEARCH))
        await until(heard, 1)
        for number in (1, 2, 3):
            client = await opening()
            client[1].write(SEARCH)
            await until(heard, len(heard) + 1)
            await leave(opening, client, number)
        last = asyncio.create_task(status(await opening(), SEARCH))
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(first, last)

    assert served(root, free(waiting=1, at_once=1, seconds=LONG), scene) == [200, 200]
