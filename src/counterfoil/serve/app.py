"""The routes: JSON in and out, pictures of the index, and the page."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, final

from PIL import Image

from counterfoil import __version__
from counterfoil.evaluation.explain import DOUBT_THRESHOLD, Explanation, describe_missing_heads
from counterfoil.serve.asked import Asked, read
from counterfoil.serve.batcher import Batcher
from counterfoil.serve.guard import CLOSED, FAILED, Guard
from counterfoil.serve.holdings import Library, Seen
from counterfoil.serve.metrics import Metrics, Told
from counterfoil.serve.page_files import page_files
from counterfoil.serve.queries import About, Hit, Query, Shortlist
from counterfoil.serve.refused import Refused
from counterfoil.serve.settings import Settings
from counterfoil.serve.thumbnails import Thumbnails
from counterfoil.serve.uploads import picture

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")
Answering = Coroutine[Any, Any, "Response"]
Endpoint = Callable[["Request"], Awaitable["Response"]]
_log = logging.getLogger("counterfoil.serve")
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


@final
class Server:
    """What answers requests.

    Args:
        library: what is served.
        settings: what is allowed.
    """

    def __init__(self, library: Library, settings: Settings) -> None:
        depth = settings.top if library.reranker is None else library.reranker.depth
        self._library, self._settings = library, replace(settings, top=min(settings.top, depth))
        self.metrics, self._began = Metrics(), time.time()
        self._worker = ThreadPoolExecutor(1, "model")  # no model is asked by two threads at once
        self._decoders = ThreadPoolExecutor(settings.decoders, "pictures")
        self._room = asyncio.Semaphore(settings.pictures)  # a small file may be a large picture
        self._thumbnails = Thumbnails()
        self._files = page_files()
        self._batcher: Batcher[Query, tuple[Hit, ...]] = Batcher(
            library.answer,
            self._worker,
            at_once=settings.at_once,
            gather=settings.gather,
            waiting=settings.waiting,
        )
        # one by one between the batches, so that none of the three keeps another waiting for long
        alone = partial(Batcher, worker=self._worker, at_once=1, gather=0.0)
        self._reranking: Batcher[Shortlist, tuple[Hit, ...]] = alone(
            partial(_each, library.reranked), waiting=settings.waiting
        )
        self._explaining: Batcher[Asked, Explanation] = alone(
            partial(_each, self._explained), waiting=settings.explaining, what="explanations"
        )

    async def search(self, request: Request) -> Response:
        """Images or captions for a caption or a picture."""
        asked = await read(request, self._settings, ("text", "picture", "top", "find"))
        if asked.one("text", "picture") == "text":
            return await self._best(asked.text or "", asked)
        async with self._room:
            return await self._best(await self._uploaded(asked), asked)

    async def similar(self, request: Request) -> Response:
        """Images like one of the index, or captions for it."""
        asked = await read(request, self._settings, ("id", "top", "find"))
        asked.one("id")
        return await self._best(self._library.row(asked.id or ""), asked)

    async def explain(self, request: Request) -> Response:
        """Which words of a caption match an image."""
        asked = await read(request, self._settings, ("caption", "id", "picture"))
        if asked.text is None:
            raise Refused(400, "no 'caption' was sent; say what is to be checked")
        if asked.one("id", "picture") == "picture" and not self._library.explains_pictures:
            raise _blind("the model that explains")
        found = await _fair(self._explaining.ask(asked))
        told = {"doubts": found.doubts, "threshold": DOUBT_THRESHOLD, **self._explainer()}
        return _json({**found.to_dict(), **told})

    async def thumbnail(self, request: Request) -> Response:
        """A small picture of an image of the index."""
        from starlette.responses import Response

        asked = await read(request, self._settings, ("id",))
        asked.one("id")
        name = asked.id or ""
        content = self._thumbnails.get(name)
        if content is None:
            content = await _on(self._decoders, self._library.thumbnail, name)
            self._thumbnails.put(name, content)
        kept = {"cache-control": "private, max-age=3600"}
        return Response(content, media_type="image/jpeg", headers=kept)

    async def about(self, request: Request) -> Response:
        """What is served, and what it can do."""
        library, allowed = self._library, self._settings
        limits = {"upload": allowed.upload, "caption": allowed.caption, "top": allowed.top}
        holds = {"images": len(library), "captions": library.captions}
        sees = {
            "sees_pictures": library.sees_pictures,
            "explains_pictures": library.explains_pictures,
        }
        told = {"version": __version__, **holds, **sees, "limits": limits}
        return _json({**told, **self._models(), **self._explainer()})

    async def health(self, request: Request) -> Response:
        """That the server lives, and by which models unless a key is wanted: this asks for none."""
        models = self._models() if self._settings.key is None else {}
        return _json({"status": "ok", **models})

    async def measured(self, request: Request) -> Response:
        """Counts and latencies for Prometheus."""
        from starlette.responses import Response

        batcher, size = self._batcher, len(self._library)
        more = (
            Told("queries_total", "counter", "Queries answered by the index.", batcher.queries),
            Told("batches_total", "counter", "Passes over the index.", batcher.batches),
            Told("reranked_total", "counter", "Queries re-ranked.", self._reranking.queries),
            Told("explained_total", "counter", "Captions explained.", self._explaining.queries),
            Told("images", "gauge", "Images of the index.", size),
            Told("start_time_seconds", "gauge", "When the server started.", self._began),
        )
        return Response(self.metrics.text(more), media_type=PROMETHEUS)

    async def page(self, request: Request) -> Response:
        """A file of the page."""
        from starlette.responses import Response

        file = self._files[request.url.path]
        fresh = {"cache-control": "no-cache"}
        return Response(file.content, headers={**fresh, "content-type": file.kind})

    def close(self) -> None:
        """End the threads, once what they do is done."""
        for pool in (self._decoders, self._worker):
            pool.shutdown(cancel_futures=True)

    async def _best(self, about: About, asked: Asked) -> Response:
        query, reranker = Query(about, asked.top, asked.find), self._library.reranker
        if asked.find == "captions" and not self._library.captions:
            raise Refused(422, "the index holds no captions; only images can be found")
        hits = await _fair(self._batcher.ask(query))
        by = None
        if reranker is not None and self._library.reranks(query):
            try:
                hits, by = await self._reranking.ask(Shortlist(query, hits)), reranker.model.name
            except ValueError as error:  # as a picture that is gone; it may say where that lay
                _log.warning("not re-ranked: %r", str(error))
        hits = hits[: asked.top]
        return _json({"find": asked.find, "reranker": by, "results": [asdict(hit) for hit in hits]})

    def _explained(self, asked: Asked) -> Explanation:
        """In the model's thread, where one picture at a time is decoded."""
        if asked.picture is None:
            seen: Seen = self._library.seen(asked.id or "")
        else:
            seen = picture(asked.picture, self._settings.pixels)
        return self._library.explain(seen, asked.text or "")

    async def _uploaded(self, asked: Asked) -> Image.Image:
        if not self._library.sees_pictures:
            raise _blind("this model")
        return await _on(self._decoders, picture, asked.picture or b"", self._settings.pixels)

    def _models(self) -> dict[str, str | None]:
        reranker = self._library.reranker
        return {"model": self._library.name, "reranker": reranker and reranker.model.name}

    def _explainer(self) -> dict[str, str]:
        explainer = self._library.explainer
        return {"explainer": explainer.name, "lacking": describe_missing_heads(explainer)}


def application(library: Library, settings: Settings) -> Guard:
    """The ASGI application of a library.

    Raises:
        ValueError: what a server needs is not installed.
    """
    try:
        import python_multipart  # noqa: F401
        from fastapi import FastAPI
    except ImportError:
        raise ValueError('serving needs FastAPI; install it: pip install "counterfoil[web]"') from (
            None
        )
    from starlette.routing import Route

    server = Server(library, settings)
    both, one = ["GET", "POST"], ["GET"]
    routes: list[tuple[str, Endpoint, list[str]]] = [
        ("/search", server.search, both),
        ("/similar", server.similar, both),
        ("/explain", server.explain, both),
        ("/picture", server.thumbnail, one),
        ("/about", server.about, one),
        ("/health", server.health, one),
        ("/metrics", server.measured, one),
        *((path, server.page, one) for path in page_files()),
    ]
    app = FastAPI(
        routes=[Route(path, endpoint, methods=list(kinds)) for path, endpoint, kinds in routes],
        openapi_url=None,
        lifespan=partial(_living, server),
        exception_handlers=_handlers(),
    )
    return Guard(app, settings, server.metrics)


@asynccontextmanager
async def _living(server: Server, app: object) -> AsyncIterator[None]:
    try:
        yield
    finally:
        server.close()


def _handlers() -> dict[int | type[Exception], Callable[[Request, Any], Answering]]:
    """What is said when a route raises."""
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect

    async def refused(request: Request, error: Refused) -> Response:
        return _json({"error": error.sentence}, error.status, error.headers)

    async def unknown(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:80]
        told = {404: f"there is nothing at {path!r}", 405: f"{path} is not asked this way"}
        return _json({"error": told.get(error.status_code, error.detail)}, error.status_code)

    async def failed(request: Request, error: Exception) -> Response:
        return _json({"error": FAILED}, 500)

    async def left(request: Request, error: ClientDisconnect) -> Response:
        return _json({"error": "the request was cut off"}, CLOSED)

    return {Refused: refused, HTTPException: unknown, ClientDisconnect: left, Exception: failed}


def _blind(model: str) -> Refused:
    return Refused(422, f"{model} reads stored features and cannot look at a new picture")


def _each(answer: Callable[[Q], A], asked: Sequence[Q]) -> list[A]:
    return [answer(one) for one in asked]


async def _on(pool: Executor, work: Callable[..., T], *given: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work, *given)


async def _fair(answer: Awaitable[T]) -> T:
    """An answer; what the models refuse in a sentence is the request's fault."""
    try:
        return await answer
    except ValueError as error:
        raise Refused(422, str(error)) from None


def _json(
    plain: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(plain, status, headers)
