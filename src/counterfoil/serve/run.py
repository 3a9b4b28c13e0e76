"""A server on a socket, until it is told to end."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from counterfoil.core.console import output
from counterfoil.serve.settings import Settings
from counterfoil.serve.silence import Connections

if TYPE_CHECKING:
    from counterfoil.serve.guard import Guard

_PATIENCE = 10  # seconds for what is being answered when the server is told to end
_IDLE = 75  # seconds that a connection may be silent; browsers and proxies let go of it earlier
_STOPS = (signal.SIGTERM, signal.SIGINT)


def listening(settings: Settings) -> socket.socket:
    """A socket at the address of a server.

    Raises:
        ValueError: there is no such address here, or it is taken.
    """
    where = f"port {settings.port} of {settings.host}"
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ValueError(f"{settings.host!r} is no address of this machine") from None
    family, _, _, _, address = found[0]
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(address)
    except OSError as error:
        opened.close()
        raise ValueError(
            f"{where} cannot be listened at ({error.strerror or error}); name another with --port "
            "or --host"
        ) from None
    opened.set_inheritable(True)
    return opened


def run(app: Guard, settings: Settings, opened: socket.socket) -> None:
    """Answer until SIGTERM or Ctrl-C; what is being answered then is answered still."""
    import uvicorn

    config = configuration(app, settings)
    with opened, _quietly():
        opened.listen(settings.connections)  # whoever reads the line below may connect
        output(f"{address(settings, opened)}  (Ctrl-C ends it)")
        uvicorn.Server(config).run(sockets=[opened])
    output("ended")


def configuration(app: Guard, settings: Settings) -> Any:
    """How uvicorn is to serve an application."""
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol  # bounds a head, unlike the other

    connections = Connections(
        H11Protocol, most=settings.connections, seconds=settings.seconds, idle=_IDLE
    )
    return uvicorn.Config(
        app,
        http=connections,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=settings.connections + 1,  # who asks meanwhile is told to come back
        timeout_graceful_shutdown=_PATIENCE,
        timeout_keep_alive=_IDLE,
        ws="none",
    )


def address(settings: Settings, opened: socket.socket) -> str:
    """Where a browser finds the server."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{opened.getsockname()[1]}/"


@contextmanager
def _quietly() -> Iterator[None]:
    """Signals that end a server end nothing more: uvicorn raises them again when it is done."""
    before = {sign: signal.signal(sign, lambda *_: None) for sign in _STOPS}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
