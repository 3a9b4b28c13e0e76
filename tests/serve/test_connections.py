"""Real sockets: limits on connections, and clients that disconnect."""

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
from counterfoil.serve.batcher import Batcher
from counterfoil.serve.service import SearchService
from counterfoil.serve.settings import ServerSettings
from serve_cases import indexed, library

T = TypeVar("T")
LONG = 60.0  # seconds in which a busy machine does anything
HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
SEARCH = b"GET /search?text=a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
CANCELLED = b'counterfoil_requests_total{route="/search",status="499"} '
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Client]]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return indexed(tmp_path_factory.mktemp("connections"), 4)


@pytest.fixture
def gate(monkeypatch) -> threading.Event:
    """Searches wait for this event."""
    gate, search = threading.Event(), SearchService.search
    monkeypatch.setattr(SearchService, "search", lambda *args: gate.wait(LONG) and search(*args))
    return gate


@pytest.fixture
def queued(monkeypatch) -> list[object]:
    """The queries that reached a batcher."""
    queries: list[object] = []
    submit = Batcher.submit

    def recorded(batcher, query):
        queries.append(query)
        return submit(batcher, query)

    monkeypatch.setattr(Batcher, "submit", recorded)
    return queries


def with_server(root: Path, scene: Callable[[Connect], Awaitable[T]], **limits: object) -> T:
    """Run a scene against a server on a free port."""
    settings = ServerSettings(port=0, gather=0.0, seconds=LONG, **limits)
    app = application(library(root), settings)

    async def play() -> T:
        with run.listen(settings) as listener:
            listener.listen()
            port = listener.getsockname()[1]
            server = uvicorn.Server(run.uvicorn_config(app, settings))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            clients: list[Client] = []

            async def connect() -> Client:
                clients.append(await asyncio.open_connection("127.0.0.1", port))
                return clients[-1]

            try:
                return await asyncio.wait_for(scene(connect), LONG)
            finally:
                server.should_exit = True
                for _, writer in clients:
                    writer.close()
                await serving

    return asyncio.run(play())


async def status(client: Client, request: bytes = HEALTH) -> int:
    """Status of a request, after the whole answer has arrived."""
    reader, writer = client
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = [line.split(b":")[1] for line in head.lower().splitlines() if b"nt-length" in line]
    await reader.readexactly(int(length[0]) if length else 0)
    return int(head.split()[1])


async def until(queries: list[object], count: int) -> None:
    while len(queries) < count:
        await asyncio.sleep(0.01)


def test_an_idle_connection_is_closed(root, monkeypatch):
    monkeypatch.setattr(run, "_KEEP_ALIVE", 0.2)

    async def scene(connect: Connect) -> tuple[int, bytes]:
        client = await connect()
        return await status(client), await client[0].read(1)

    assert with_server(root, scene) == (200, b"")


def test_a_head_without_end_is_refused(root):
    async def scene(connect: Connect) -> bytes:
        reader, writer = await connect()
        writer.write(HEALTH[:-2] + b"X: " + b"x" * 200_000)
        return await reader.readline()

    assert with_server(root, scene).startswith(b"HTTP/1.1 400 ")


def test_a_request_beyond_the_limit_of_connections_gets_503(root, gate, queued):
    async def scene(connect: Connect) -> tuple[int, list[int]]:
        busy = [asyncio.create_task(status(await connect(), SEARCH)) for _ in range(2)]
        await until(queued, 2)
        refused = await status(await connect())
        gate.set()
        return refused, await asyncio.gather(*busy)

    assert with_server(root, scene, connections=2) == (503, [200, 200])


async def cancelled(connect: Connect, count: int) -> None:
    """Wait until the server has cancelled so many searches."""
    while True:
        reader, writer = await connect()
        writer.write(METRICS)
        if CANCELLED + b"%d.0\n" % count in await reader.read():
            return
        await asyncio.sleep(0.01)


POST = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
BODY = b'{"text": "a"}'


@pytest.mark.parametrize("search", [SEARCH, POST + b"Content-Length: 13\r\n\r\n" + BODY])
def test_a_client_that_disconnects_frees_its_place_in_the_queue(root, gate, queued, search):
    """Otherwise others get 503 while queries wait whose answer nobody reads."""

    async def scene(connect: Connect) -> list[int]:
        first = asyncio.create_task(status(await connect(), search))
        await until(queued, 1)
        for number in (1, 2, 3):
            client = await connect()
            client[1].write(search)
            await until(queued, 1 + number)
            client[1].close()
            await cancelled(connect, number)
        last = asyncio.create_task(status(await connect(), search))
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(first, last)

    assert with_server(root, scene, waiting=1, at_once=1) == [200, 200]


def test_a_client_that_disconnects_during_its_upload_is_counted(root):
    async def scene(connect: Connect) -> None:
        _, writer = await connect()
        writer.write(POST + b"Content-Length: 900\r\n\r\n{")
        await writer.drain()
        writer.close()
        await cancelled(connect, 1)

    with_server(root, scene)


@pytest.mark.parametrize("path", ["/health", "/search?text=a"])
@pytest.mark.parametrize(
    "headers",
    [
        ("Content-Length: 4", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 4"),
    ],
)
def test_a_length_and_chunks_together_are_refused(path, headers, root):
    """Else a proxy and the server could see different requests in one stream of bytes."""
    head = "\r\n".join((f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *headers))

    async def scene(connect: Connect) -> bytes:
        reader, writer = await connect()
        writer.write(head.encode() + b"\r\n\r\n0\r\n\r\n" + HEALTH)
        return await reader.read()

    answer = with_server(root, scene)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"not both" in answer
    assert answer.count(b"HTTP/1.1 ") == 1  # what follows is no request of its own
