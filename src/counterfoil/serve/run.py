"""Opens an index with its models and serves it with uvicorn."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterfoil.core.console import PrintableFormatter, output
from counterfoil.model import Model, load_model
from counterfoil.search.index import open_index
from counterfoil.search.rerank import open_reranker
from counterfoil.serve.settings import ServerSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from counterfoil.pipelines.run import DataSource


_GRACE = 10  # seconds for open requests after SIGTERM
_KEEP_ALIVE = 15  # seconds; an idle connection counts towards the limit of connections
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(
    index: Path,
    *,
    model: str | None = None,
    explainer: str | None = None,
    rerank: str | None = None,
    depth: int | None = None,
    source: DataSource | None = None,
    settings: ServerSettings | None = None,
) -> None:
    """Serve an index until SIGTERM or Ctrl-C."""
    try:
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401

        from counterfoil.serve.app import application
        from counterfoil.serve.service import SearchService
    except ImportError as error:
        message = f'serving needs {error.name}; install it: pip install "counterfoil[web]"'
        raise ValueError(message) from None
    limits = settings or ServerSettings()
    with (
        _end_at_sigterm(),  # also while the models are opened
        open_index(index, model=model) as opened,
        listen(limits) as listener,
    ):
        dataset = source and source.open()
        reranker = open_reranker(rerank, depth, dataset)
        if reranker is not None and explainer == rerank:
            service = SearchService(opened, reranker.model, dataset, reranker)
        else:
            service = SearchService(opened, _open_explainer(explainer, source), dataset, reranker)
        app = application(service, limits)
        output(f"{index}: {opened.description}, {service.name}")
        if service.reranker is not None:
            name, depth = service.reranker.model.name, service.reranker.depth
            output(f"{name} puts the first {depth} results in order")
        output(f"captions: {service.basis}")
        if not limits.local and limits.key is None:
            output(f"anyone who reaches {limits.host} can search; --key-file sets an API key")
        run(app, limits, listener)


def listen(settings: ServerSettings) -> socket.socket:
    """Bind a socket to the address of a server."""
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ValueError(f"{settings.host!r} is no address of this machine") from None
    family, _, _, _, address = addresses[0]
    # the protocol is named: asyncio turns Nagle's algorithm off only for sockets that say TCP
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ValueError(
            f"port {settings.port} of {settings.host} cannot be listened at "
            f"({error.strerror or error}); name another with --port or --host"
        ) from None
    listener.set_inheritable(True)
    return listener


def run(app: FastAPI, settings: ServerSettings, listener: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, and finish open requests."""
    import uvicorn

    log = logging.StreamHandler()  # errors may quote captions and names
    log.setFormatter(PrintableFormatter())
    logging.getLogger("counterfoil.serve").addHandler(log)
    server = uvicorn.Server(uvicorn_config(app, settings))
    with listener, _end_at_signals(server):
        listener.listen(settings.connections)  # before its address is printed
        output(f"{url(settings, listener)}  (Ctrl-C ends it)")
        server.run(sockets=[listener])
    output("ended")


def uvicorn_config(app: FastAPI, settings: ServerSettings) -> Any:
    """How uvicorn serves the application: its limits, timeouts, and no logs of its own."""
    import uvicorn

    return uvicorn.Config(
        app,
        http="h11",  # limits the size of a request head; httptools does not
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=settings.connections + 1,  # uvicorn counts the current connection
        timeout_graceful_shutdown=_GRACE,
        timeout_keep_alive=_KEEP_ALIVE,
        ws="none",
    )


def url(settings: ServerSettings, listener: socket.socket) -> str:
    """Address of the server for a browser."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listener.getsockname()[1]}/"


@contextmanager
def _end_at_sigterm() -> Iterator[None]:
    """End the command with exit code 0 at SIGTERM."""

    def end(*_: object) -> None:
        raise SystemExit(0)

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def _end_at_signals(server: Any) -> Iterator[None]:
    """End a uvicorn server by signals that come before it handles them itself.

    After its shutdown it raises them again, which does nothing more.
    """

    def end(*_: object) -> None:
        server.should_exit = True

    previous = {sign: signal.signal(sign, end) for sign in _SIGNALS}
    try:
        yield
    finally:
        for sign, handler in previous.items():
            signal.signal(sign, handler)


def _open_explainer(name: str | None, source: DataSource | None) -> Model | None:
    """Open the explaining model; None for the model of the index."""
    model = None if name is None else load_model(name)
    if model is not None and model.reads_features and source is None:
        raise ValueError(
            f"{name} reads stored features of images; name the data that have them, "
            "as in --data my-photos/:features=features/"
        )
    return model
