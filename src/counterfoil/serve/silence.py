"""Connections: how long silent ones are borne with, and that who left is not answered any more.

uvicorn bounds the time between two requests, but not how long the first byte or the rest of a
request's head may take, and it answers nobody while too many connections are open. Here its
protocol is wrapped: a connection is *silent* from when it opens, or its last request is answered,
until the head of a request has arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

_STATE = "counterfoil.connection"


@final
class Connections:
    """Every open connection.

    Args:
        behind: makes uvicorn's own protocol.
        most: that may be open at once; for one more, the one that was silent longest is closed.
        seconds: in which the head of a request arrives, from its first byte or the opening.
        idle: seconds that may lie between two requests.
    """

    def __init__(
        self, behind: Callable[..., asyncio.Protocol], *, most: int, seconds: float, idle: float
    ) -> None:
        self._behind, self._most, self._seconds, self._idle = behind, most, seconds, idle
        self._open: set[Connection] = set()
        self._silent: dict[Connection, asyncio.TimerHandle] = {}  # the longest first

    def __call__(
        self,
        config: object,
        server_state: object,
        app_state: Mapping[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> Connection:
        """A connection that uvicorn is about to open, made of what it makes its own of."""
        made = Connection(self)
        made.behind = self._behind(config, server_state, {**app_state, _STATE: made}, _loop)
        return made

    def opened(self, one: Connection) -> None:
        """Count a connection, and make room for it."""
        if len(self._open) >= self._most and self._silent:
            next(iter(self._silent)).drop()
        self._open.add(one)
        self.silent(one, self._seconds)

    def silent(self, one: Connection, seconds: float | None = None) -> None:
        """Wait for the next request of a connection, and no longer than this."""
        self.heard(one)
        if one in self._open:
            wait = self._idle if seconds is None else seconds
            self._silent[one] = asyncio.get_running_loop().call_later(wait, one.drop)

    def begun(self, one: Connection) -> None:
        """The first bytes of a request: its head is waited for, and the place in line is kept."""
        if one in self._silent:
            self._silent[one].cancel()
            self._silent[one] = asyncio.get_running_loop().call_later(self._seconds, one.drop)

    def heard(self, one: Connection) -> None:
        """A connection is not silent any more."""
        timer = self._silent.pop(one, None)
        if timer is not None:
            timer.cancel()

    def closed(self, one: Connection) -> None:
        """Forget a connection."""
        self.heard(one)
        self._open.discard(one)


@final
class Connection(asyncio.Protocol):
    """A connection, and uvicorn's protocol behind it.

    Args:
        every: all of them.

    Attributes:
        behind: uvicorn's protocol.
        left: whether the client is gone.
    """

    behind: asyncio.Protocol
    left: bool

    def __init__(self, every: Connections) -> None:
        self._every, self._asked, self._begun = every, 0, False
        self._limits: set[asyncio.Timeout] = set()
        self._transport: asyncio.Transport | None = None
        self.left = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open, and silent as yet."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._every.opened(self)
        self.behind.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        if not self._asked and not self._begun:
            self._begun = True
            self._every.begun(self)
        self.behind.data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return self.behind.eof_received()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self.behind.pause_writing()

    def resume_writing(self) -> None:
        """The client has read."""
        self.behind.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed."""
        self._every.closed(self)
        self.behind.connection_lost(exc)
        self.left = True
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(0.0)  # now: nobody reads the answer

    def drop(self) -> None:
        """Close it at once, whether the client reads or not."""
        self._every.closed(self)
        if self._transport is not None:
            self._transport.abort()

    def asks(self) -> None:
        """The head of a request is there."""
        self._asked += 1
        self._every.heard(self)

    def answered(self) -> None:
        """A request was answered; others may have come meanwhile."""
        self._asked -= 1
        if not self._asked:
            self._begun = False
            self._every.silent(self)

    @contextmanager
    def ending(self, limit: asyncio.Timeout) -> Iterator[None]:
        """In this block, a time limit ends once the client is gone."""
        self._limits.add(limit)
        try:
            if self.left:
                limit.reschedule(0.0)
            yield
        finally:
            self._limits.discard(limit)


@contextmanager
def asking(scope: Mapping[str, Any]) -> Iterator[Connection | None]:
    """While a request is answered, its connection is not silent; None where there is none."""
    connection: Connection | None = scope.get("state", {}).get(_STATE)
    if connection is None:
        yield None
        return
    connection.asks()
    try:
        yield connection
    finally:
        connection.answered()
