"""ASGI middleware: host and key checks, body size, security headers, metrics and failures."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Collection
from typing import final
from urllib.parse import urlsplit

from fastapi import HTTPException
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from counterfoil.serve.settings import MEGABYTE, ServerSettings, is_loopback

JSON = "application/json"
MAX_JSON = 65536  # bytes; parsing blocks all other requests, and JSON holds no picture
OPEN = ("/", "/page.css", "/page.js", "/health")  # served without a key: no data of the index
CLIENT_CLOSED = 499  # the client disconnected; the status code of nginx
FAILED = "the server failed at this request; its log says why"
SECURITY_HEADERS = (
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
class RequestGuard:
    """Middleware that every request passes.

    Starlette's `TrustedHostMiddleware` is not used: it answers in plain text and compares names,
    while every loopback address is allowed here.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        registry: CollectorRegistry,
        paths: Collection[str],
    ) -> None:
        self._app, self._settings, self._paths = app, settings, frozenset(paths)
        self._requests = Counter(
            "counterfoil_requests", "Requests.", ["route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "counterfoil_request_seconds", "Time to answer.", ["route"], registry=registry
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
            await send(message)

        # the path labels the metrics only if it is a route: clients may ask for any other path
        route = scope["path"] if scope["path"] in self._paths else "other"
        if scope["method"] == "HEAD":  # FastAPI's routes know GET only; uvicorn drops the body
            scope = {**scope, "method": "GET"}
        error = None
        try:
            limit = self._check(Headers(scope=scope), scope["path"])
            await self._app(scope, _limited(receive, limit), send_with_headers)
        except HTTPException as refused:
            error = JSONResponse({"error": refused.detail}, refused.status_code, refused.headers)
        except Exception:
            _log.exception("%r failed", scope["path"])  # repr: a path cannot forge a log line
            error = JSONResponse({"error": FAILED}, 500)
        finally:
            if error is not None and not status:
                await error(scope, receive, send_with_headers)
            self._requests.labels(route, str(status or CLIENT_CLOSED)).inc()
            self._seconds.labels(route).observe(time.perf_counter() - start)

    def _check(self, headers: Headers, path: str) -> int:
        """Check host, site, key and declared length; returns the limit of the body in bytes."""
        host, settings = headers.get("host", ""), self._settings
        # a foreign page can make its own host name resolve to loopback (DNS rebinding)
        name = host_name(host)
        if settings.local and not is_loopback(name) and name.lower() not in settings.names:
            raise HTTPException(
                400,
                f"{host[:80]!r} is not a name of this server; use its own address, or start it "
                "with --public-name",
            )
        if path not in OPEN and _from_other_site(headers, settings.names):
            raise HTTPException(403, "requests from pages of other sites are refused")
        if settings.key is not None and path not in OPEN:
            key = headers.get("x-api-key", "").encode("latin-1")
            if not hmac.compare_digest(key, settings.key.encode()):  # takes constant time
                raise HTTPException(401, "the API key is missing or wrong; send it as X-API-Key")
        if "content-length" in headers and "transfer-encoding" in headers:
            # a proxy that believes the other one would see another request in the body
            raise HTTPException(
                400, "a request has a length or is chunked, not both", {"connection": "close"}
            )
        limit = settings.upload
        if media_type(headers) == JSON:
            limit = min(limit, MAX_JSON)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > limit:
            raise _too_large(limit)
        return limit


def _from_other_site(headers: Headers, names: Collection[str]) -> bool:
    """Return True if a browser says that the page of another site makes the request.

    A form or an image of any page can reach a server on loopback under its own name. Browsers say
    so in ``Sec-Fetch-Site``, and older ones, or all over plain HTTP, in ``Origin``; other programs
    send neither. A proxy may keep the origin and name itself as the host: the pages of `names` are
    ours.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:  # "same-site" is another port of this host
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    try:
        address = urlsplit(origin or "")
        own = address.netloc == headers.get("host", "") or address.hostname in names
        return origin is not None and not own
    except ValueError:  # such as "http://[::1"
        return True


def media_type(headers: Headers) -> str:
    """Content type of a request without parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def host_name(host: str) -> str:
    """Host of a ``Host`` header, without its port.

    >>> host_name("localhost:80"), host_name("[::1]:80"), host_name("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _limited(receive: Receive, limit: int) -> Receive:
    """Receive that raises once the body exceeds a limit, whatever length was declared."""
    left = limit

    async def limited() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise _too_large(limit)
        return message

    return limited


def _too_large(limit: int) -> HTTPException:
    size = f"{limit / MEGABYTE:g} MB" if limit > MAX_JSON else f"{limit:,} bytes"
    return HTTPException(413, f"the request is too large; at most {size} are accepted")
