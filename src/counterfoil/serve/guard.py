"""What every request passes: who may ask, for how long, and what is said when it fails."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, final

from counterfoil.serve.metrics import Metrics
from counterfoil.serve.refused import Refused
from counterfoil.serve.settings import Settings, is_loopback
from counterfoil.serve.silence import Connection, asking

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

ROUTES = ("/search", "/similar", "/explain", "/picture", "/about", "/health", "/metrics")
OPEN = ("/", "/page.css", "/page.js", "/health")  # ask for no key: nothing of the index is there
FAILED = "the server failed at this request; its log says why"
CLOSED = 499  # the client went away, as nginx counts it
HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_log = logging.getLogger("counterfoil.serve")


@final
@dataclass(slots=True)
class _Answer:
    """What was sent of an answer so far."""

    status: int = 0


@final
class Guard:
    """Stands before an app: the key, the host, the time limit, headers, and failures in words.

    Args:
        app: what it stands before.
        settings: the limits.
        metrics: where every request is counted.
    """

    def __init__(self, app: App, settings: Settings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, answer = time.perf_counter(), _Answer()

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        try:
            with asking(scope) as connection:
                await self._answered(scope, receive, told, answer, connection)
        finally:
            seconds = time.perf_counter() - began
            self._metrics.note(_route(scope["path"]), answer.status or CLOSED, seconds)

    async def _answered(
        self,
        scope: Message,
        receive: Receive,
        send: Send,
        answer: _Answer,
        connection: Connection | None,
    ) -> None:
        try:
            self._admit(scope)
            async with asyncio.timeout(self._settings.seconds) as limit:
                with connection.ending(limit) if connection else nullcontext():
                    await self._app(scope, receive, send)
            return
        except Refused as error:
            refused = error
        except TimeoutError:
            refused = Refused(503, "the answer took too long; try again in a moment")
        except Exception:
            _log.exception("%r failed", scope["path"])  # as quoted, it forges no line
            refused = Refused(500, FAILED)
        if not answer.status and not (connection and connection.left):
            await refuse(send, refused)

    def _admit(self, scope: Message) -> None:
        """Refuse a wrong key; and on loopback another host, which a foreign page would have."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self._settings.local and not is_loopback(_hostname(host)):
            raise Refused(400, f"this server is no {host[:80]!r}; ask it at its own address")
        if self._settings.key is None or scope["path"] in OPEN:
            return
        given = headers.get(b"x-api-key", b"")
        if not hmac.compare_digest(given, self._settings.key.encode()):
            raise Refused(401, "the API key is missing or wrong; send it as X-API-Key")


async def refuse(send: Send, refused: Refused) -> None:
    """Answer that a request is refused, and why."""
    body = json.dumps({"error": refused.sentence}, ensure_ascii=False).encode(errors="replace")
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((name.encode(), value.encode()) for name, value in refused.headers.items()),
    ]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _hostname(host: str) -> str:
    """A host without its port.

    >>> _hostname("localhost:80"), _hostname("[::1]:80"), _hostname("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _route(path: str) -> str:
    first = "/" + path.split("/", 2)[1] if path.startswith("/") else path
    return first if first in ROUTES else "/" if path in OPEN else "other"
