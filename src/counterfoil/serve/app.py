"""FastAPI application: search, similar images, explanations, thumbnails, metrics and the page."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from importlib.resources import files
from typing import Annotated, Any, TypeVar, final

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import APIKeyHeader
from PIL import Image
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.datastructures import ImmutableMultiDict, UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from counterfoil import __version__
from counterfoil.data.images import ImageTransform
from counterfoil.evaluation.explain import DOUBT_THRESHOLD, Explanation
from counterfoil.search.query import parse_query
from counterfoil.serve.batcher import Batcher, overloaded
from counterfoil.serve.decoding import FORMATS, FULL, THUMBNAIL, PictureDecoder, PictureError
from counterfoil.serve.middleware import CLIENT_CLOSED, JSON, RequestGuard, media_type
from counterfoil.serve.schemas import (
    MOST_CONDITIONS,
    MOST_EXAMPLES,
    ErrorMessage,
    ExplainRequest,
    ExplanationResponse,
    Health,
    ImageRequest,
    RequestFields,
    RequestLimits,
    SearchOptions,
    SearchRequest,
    SearchResponse,
    SearchResult,
    ServerInfo,
    SimilarRequest,
    error_sentence,
)
from counterfoil.serve.service import (
    ImageInput,
    QueryInput,
    SearchQuery,
    SearchService,
    image_transform,
    index_stamp,
)
from counterfoil.serve.settings import ServerSettings

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")

FORM = "multipart/form-data"
UPLOADED = ", ".join(f"image/{name.lower()}" for name in FORMATS)  # types of an uploaded picture
JPEG_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}}
}
FIELDS = 2 * MOST_EXAMPLES + MOST_CONDITIONS + 4  # of a form: examples, conditions and others
DEFAULT_TOP = 20
THUMBNAILS = 1000  # kept in memory, of some 50 KB each
_log = logging.getLogger("counterfoil.serve")


@final
class RequestParser:
    """Dependency that validates a query string, a JSON body or a form by one model.

    FastAPI binds a route to one type of body; these routes take JSON, and forms with pictures.
    """

    def __init__(self, model: type[RequestFields]) -> None:
        self._model = model

    def openapi(self, method: str, limits: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
        """OpenAPI description of the parameters of a GET or of the body of a POST.

        `limits` adds what a server limits to its fields, as in ``{"text": {"maxLength": 1000}}``.
        """
        whole = self._model.model_json_schema()
        fields = {
            name: _limited(field, limits.get(name, {}))
            for name, field in whole["properties"].items()
        }
        picture = fields.pop("picture", None)
        # only forms carry a picture in the place of another field, and only JSON has null
        replaced = [name for name in self._model.alternatives if name in fields]
        given = {name: _not_null(field) for name, field in fields.items()}
        needed = whole.get("required", [])
        required = [*needed, *replaced]
        if method == "GET":
            return {
                "parameters": [
                    {"name": name, "in": "query", "required": name in required, "schema": field}
                    for name, field in given.items()
                ]
            }
        json = {**fields, **{name: given[name] for name in replaced}}
        json_schema = {**whole, "properties": json, "required": required}
        form: dict[str, Any] = {
            "schema": {**whole, "properties": given, "required": required},
        }
        if picture is not None:
            # either choice is whole: tools read fields that exclude each other as if they did not
            shown = {name: field for name, field in given.items() if name not in replaced}
            shown["picture"] = _not_null(picture)
            with_file = {**whole, "properties": shown, "required": [*needed, "picture"]}
            every = {**whole, "properties": given | shown, "required": needed}
            form["schema"] = {**every, "oneOf": [form["schema"], with_file]}
            form["encoding"] = {"picture": {"contentType": UPLOADED}}
        content = {JSON: {"schema": json_schema}, FORM: form}
        return {"requestBody": {"required": True, "content": content}}

    async def __call__(self, request: Request) -> BaseModel:
        """Read and validate a request."""
        try:
            async with asyncio.timeout(request.app.state.settings.seconds / 2):
                values = await _fields(request)
        except TimeoutError:
            message = "the request took too long to arrive; send it again"
            raise HTTPException(408, message) from None
        try:
            return self._model.model_validate(values)
        except ValidationError as error:
            raise RequestValidationError(error.errors()) from None


def _limited(field: dict[str, Any], limits: Mapping[str, int]) -> dict[str, Any]:
    """A field's schema with further limits, where it may be null those of what it else is."""
    if "anyOf" not in field:
        return {**field, **limits}
    first, *others = field["anyOf"]
    return {**field, "anyOf": [{**first, **limits}, *others]}


def _not_null(field: dict[str, Any]) -> dict[str, Any]:
    """A field's schema without null."""
    values = [value for value in field.get("anyOf", ()) if value != {"type": "null"}]
    if len(values) != 1:
        return field
    return {**{key: value for key, value in field.items() if key != "anyOf"}, **values[0]}


async def _fields(request: Request) -> Any:
    """Fields of a query string, JSON or a form, not yet validated."""
    if request.method == "GET":
        return _with_lists(request.query_params)
    kind = media_type(request.headers)
    if kind == JSON:
        try:
            return from_json(await request.body())
        except ValueError:
            raise HTTPException(400, "the body is not JSON") from None
    if kind != FORM:
        raise HTTPException(415, f"the body is {kind[:80]!r}; send {JSON} or {FORM}")
    try:
        async with request.form(max_files=1, max_fields=FIELDS, max_part_size=65536) as form:
            return {
                name: await value.read() if isinstance(value, UploadFile) else value
                for name, value in _with_lists(form).items()
            }
    except (ValueError, KeyError):  # multipart headers that the parser does not expect
        message = f"the form is damaged; send one picture and at most {FIELDS} fields"
        raise HTTPException(400, message) from None


def _with_lists(fields: ImmutableMultiDict[str, Any]) -> dict[str, Any]:
    """The last value of each name, and all of the names of examples and conditions."""
    lists = {name: fields.getlist(name) for name in ("more", "less", "where") if name in fields}
    return {**fields, **lists}


SEARCH, SIMILAR, EXPLAIN = (
    RequestParser(SearchRequest),
    RequestParser(SimilarRequest),
    RequestParser(ExplainRequest),
)


@final
class SearchServer(Collector):
    """Endpoints, and the batches, threads and limits between them and the models."""

    def __init__(self, service: SearchService, settings: ServerSettings) -> None:
        depth = settings.top if service.reranker is None else service.reranker.depth
        self._service, self._settings, self.top = service, settings, min(settings.top, depth)
        self._worker = ThreadPoolExecutor(1, "model")  # models are not thread-safe
        self._decoder = PictureDecoder(
            processes=settings.decoders, pixels=settings.pixels, seconds=settings.decoding
        )
        # models of unknown transforms read the whole picture, so few of these wait for the model
        self._pictures, self._uploads = asyncio.Semaphore(settings.pictures), 0
        self._thumbnail = lru_cache(THUMBNAILS)(self._make_thumbnail)
        self._refused: object = None  # stamp of an index that could not be opened
        self._looked, self._reopening = time.monotonic(), False
        # a query goes with the service that found its rows: the index may be reopened meanwhile
        self._searches: Batcher[tuple[SearchService, SearchQuery], tuple[SearchResult, ...]] = (
            Batcher(
                _search_all,
                self._worker,
                at_once=settings.at_once,
                gather=settings.gather,
                waiting=settings.waiting,
            )
        )
        # one at a time, so that the worker takes searches between slow requests
        single = partial(Batcher, worker=self._worker, at_once=1, gather=0.0)
        self._reranks: Batcher[
            tuple[SearchService, SearchQuery, tuple[SearchResult, ...]], tuple[SearchResult, ...]
        ] = single(_each(lambda work: work[0].rerank(*work[1:])), waiting=settings.waiting)
        self._explanations: Batcher[tuple[ImageInput, str], Explanation] = single(
            _each(lambda pair: self._service.explain(*pair)),
            waiting=settings.explaining,
            unit="explanations",
        )
        self.registry = CollectorRegistry()
        gauge = partial(Gauge, registry=self.registry)
        self._size = gauge("counterfoil_images", "Images of the index.")
        self._size.set(len(service))
        gauge("counterfoil_start_time_seconds", "Start of the server.").set_to_current_time()
        self.registry.register(self)

    async def search(
        self, request: Request, query: Annotated[SearchRequest, Depends(SEARCH)]
    ) -> SearchResponse:
        """Images or captions for a caption or an uploaded picture."""
        if query.text is not None:
            return await self._answer(request, self._rank(query.text, query))
        if not self._service.sees_pictures:
            raise _reads_features("this model")
        return await self._answer(request, self._rank_picture(query))

    async def similar(
        self, request: Request, query: Annotated[SimilarRequest, Depends(SIMILAR)]
    ) -> SearchResponse:
        """Images similar to an image of the index, or captions for it."""
        return await self._answer(request, self._rank_similar(query))

    async def explain(
        self, request: Request, query: Annotated[ExplainRequest, Depends(EXPLAIN)]
    ) -> ExplanationResponse:
        """Does a caption fit an image of the index or an uploaded picture, and which words do?"""
        if query.id is None and not self._service.explains_pictures:
            raise _reads_features("the model that explains")
        return await self._answer(request, self._explain(query))

    async def picture(self, request: Request, query: Annotated[ImageRequest, Query()]) -> Response:
        """An image of the index, small or, with `full`, as large as a screen."""
        work = (self._make_thumbnail, query.id, FULL) if query.full else (self._thumbnail, query.id)
        content = await self._answer(request, self._decoder.run(*work))
        headers = {"cache-control": "private, max-age=3600"}
        return Response(content, media_type="image/jpeg", headers=headers)

    async def about(self) -> ServerInfo:
        """Size of the index, models and limits."""
        await self._refresh()
        service, settings, explainer = self._service, self._settings, self._service.explainer
        return ServerInfo(
            version=__version__,
            images=len(service),
            captions=service.captions,
            sees_pictures=service.sees_pictures,
            explains_pictures=service.explains_pictures,
            limits=RequestLimits(upload=settings.upload, caption=settings.caption, top=self.top),
            model=service.name,
            reranker=service.reranker_name,
            explainer=explainer.name,
            basis=service.basis,
            columns=service.columns,
        )

    async def health(self) -> Health:
        """Liveness, and the models if the server has no key: this route never asks for one."""
        if self._settings.key is not None:
            return Health(status="ok")
        return Health(status="ok", model=self._service.name, reranker=self._service.reranker_name)

    async def metrics(self) -> Response:
        """Answer Prometheus with counts and times of requests."""
        content = generate_latest(self.registry)
        return Response(content, headers={"content-type": CONTENT_TYPE_LATEST})

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Counts of the batchers, for Prometheus."""
        for name, description, value in (
            ("queries", "Queries answered by the index.", self._searches.queries),
            ("batches", "Passes over the index.", self._searches.batches),
            ("reranked", "Queries re-ranked.", self._reranks.queries),
            ("explained", "Captions explained.", self._explanations.queries),
        ):
            yield CounterMetricFamily(f"counterfoil_{name}", description, value)

    def close(self) -> None:
        """Kill the processes that decode, and end the thread of the models after its work."""
        self._decoder.close()
        self._worker.shutdown(cancel_futures=True)

    async def _answer(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """Await work, but cancel it when the client disconnects or the time limit passes."""
        try:
            await self._refresh()
        except BaseException:
            work.close()
            raise
        task = asyncio.ensure_future(work)
        disconnect = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait(
                (task, disconnect),
                timeout=self._settings.seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if task.done():
                return task.result()
            if disconnect.done():
                disconnect.result()  # raises if the body was too long
                raise ClientDisconnect
            message = "the answer took too long; try again in a moment"
            raise HTTPException(503, message, {"retry-after": "1"})
        finally:
            task.cancel()
            disconnect.cancel()

    async def _refresh(self) -> None:
        """Open an index that changed on disk; requests that are under way keep the old one.

        One that cannot be opened, as while it is replaced or by another model, leaves the old one.
        """
        now = time.monotonic()
        if self._reopening or now < self._looked + self._settings.reload:
            return
        self._looked, service = now, self._service
        stamp = index_stamp(service.folder)
        if stamp in (service.stamp, self._refused):
            return
        self._reopening = True
        try:
            self._service = await asyncio.to_thread(service.reopened)
        except Exception as error:  # of a backend, too
            self._refused = stamp
            _log.warning("the index has changed and is not opened again: %s", error)
            return
        finally:
            self._reopening = False
        self._refused = None
        self._thumbnail.cache_clear()
        self._size.set(len(self._service))
        _log.info("the index has changed and was opened again: %d images", len(self._service))

    async def _rank_similar(self, query: SimilarRequest) -> SearchResponse:
        return await self._rank(self._service.row(query.id), query)

    async def _rank_picture(self, query: SearchRequest) -> SearchResponse:
        transforms = self._service.query_transforms(query.find)
        with self._upload():
            async with self._pictures:
                pictures = await self._decode(query.picture, transforms)
                return await self._rank(pictures[0], query, pictures[-1])

    async def _rank(
        self, value: QueryInput, options: SearchOptions, again: Image.Image | None = None
    ) -> SearchResponse:
        """Results for a query; `again` is the picture for the reranker."""
        service, top = self._service, options.top
        if isinstance(value, str):
            self._check_caption(value)
            _check_wanted(value)
        if top is None:
            top = min(DEFAULT_TOP, self.top)
        elif top > self.top:
            raise HTTPException(400, f"top is {top}; give a whole number of 1 to {self.top}")
        if options.find == "captions" and not service.captions:
            raise HTTPException(422, "the index holds no captions; only images can be found")
        more, less = (tuple(map(service.row, ids)) for ids in (options.more, options.less))
        conditions, reranker = service.conditions(options.where), None
        query = SearchQuery(value, top, options.find, more, less, conditions)
        service.check_examples(query)
        least = options.min_probability if isinstance(options, SearchRequest) else None
        if least is not None:
            service.check_probability(least, query)
        hits = await _unprocessable(self._searches.submit((service, query)))
        if service.reranks(query):
            try:
                second = query if again is None else replace(query, value=again)
                hits = await self._reranks.submit((service, second, hits))
                reranker = service.reranker_name
            except ValueError as error:  # such as a missing picture; the message may name its path
                _log.warning("not re-ranked: %r", str(error))
        if least is not None:
            hits = tuple(hit for hit in hits if (hit.probability or 0) >= least)
        note = service.query_note(value)
        return SearchResponse(find=options.find, reranker=reranker, note=note, results=hits[:top])

    async def _explain(self, query: ExplainRequest) -> ExplanationResponse:
        self._check_caption(query.caption)
        self._explanations.check_room()
        explainer = self._service.explainer
        if query.id is not None:
            image = await self._decoder.run(self._indexed_image, query.id)
        else:
            with self._upload():
                (image,) = await self._decode(query.picture, (image_transform(explainer),))
        explanation = await _unprocessable(self._explanations.submit((image, query.caption)))
        return ExplanationResponse(
            **explanation.to_dict(),
            doubts=explanation.doubts,
            threshold=DOUBT_THRESHOLD,
            explainer=explainer.name,
            basis=self._service.basis,
        )

    @contextmanager
    def _upload(self) -> Iterator[None]:
        """Count an uploaded picture, whose file is in memory."""
        if self._uploads >= self._settings.uploads:
            raise overloaded("pictures")
        self._uploads += 1
        try:
            yield
        finally:
            self._uploads -= 1

    async def _decode(
        self, content: bytes | None, transforms: Sequence[ImageTransform | None]
    ) -> list[Image.Image]:
        return await self._decoder.run(self._decoder.upload, content or b"", transforms)

    def _indexed_image(self, name: str) -> ImageInput:
        """The decoded picture of an indexed image for the explainer, or the id of its features."""
        transform = image_transform(self._service.explainer)
        return self._service.image_input(name, lambda path: self._decoder.open(path, transform))

    def _make_thumbnail(self, name: str, longest: int = THUMBNAIL) -> bytes:
        path = self._service.picture_file(name)
        if path is None:
            return self._service.thumbnail(name, longest)
        return self._decoder.thumbnail(path, longest)

    def _check_caption(self, caption: str) -> None:
        size, limit = len(caption), self._settings.caption
        if size > limit:
            message = f"the caption has {size:,} characters; at most {limit:,} are read"
            raise HTTPException(400, message)


def _search_all(
    work: Sequence[tuple[SearchService, SearchQuery]],
) -> list[tuple[SearchResult, ...]]:
    """Results of each query by its service; the queries of a service share a pass."""
    answers: list[tuple[SearchResult, ...]] = [()] * len(work)
    for service in dict.fromkeys(service for service, _ in work):
        places = [place for place, (own, _) in enumerate(work) if own is service]
        for place, results in zip(places, service.search([work[p][1] for p in places])):
            answers[place] = results
    return answers


def application(service: SearchService, settings: ServerSettings) -> FastAPI:
    """The ASGI application of a search service."""
    server = SearchServer(service, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            server.close()

    key = [Security(APIKeyHeader(name="X-API-Key", auto_error=False))] if settings.key else []
    app = FastAPI(
        title="counterfoil",
        version=__version__,
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # to the host name that the client sent
        lifespan=lifespan,
        dependencies=key,  # documents the key; the middleware checks it
        responses={"default": {"model": ErrorMessage, "description": "Error, in one sentence"}},
        routes=[_file_route(path, *file) for path, file in page_files().items()],
        exception_handlers=_exception_handlers(),
    )
    app.state.settings = settings
    caption, top = {"maxLength": settings.caption}, {"maximum": server.top}
    limits = {"text": caption, "caption": caption, "top": top}
    for method in ("GET", "POST"):
        for path, endpoint, body in (
            ("/search", server.search, SEARCH),
            ("/similar", server.similar, SIMILAR),
            ("/explain", server.explain, EXPLAIN),
        ):
            description = body.openapi(method, limits)
            app.add_api_route(path, endpoint, methods=[method], openapi_extra=description)
    app.get("/picture", response_class=Response, responses=JPEG_ANSWER)(server.picture)
    app.get("/about")(server.about)
    app.get("/health", response_model_exclude_unset=True)(server.health)
    app.get("/metrics", response_class=Response)(server.metrics)
    paths = {route.path for route in app.routes if isinstance(route, Route)}
    app.add_middleware(RequestGuard, settings=settings, registry=server.registry, paths=paths)
    return app


def page_files() -> dict[str, tuple[str, bytes]]:
    """Media type and content of the files of the web page, by path."""
    page, templates = files("counterfoil") / "serve" / "page", files("counterfoil") / "report"
    # colours and fonts are those of the HTML reports
    style = (templates / "templates" / "style.html.j2").read_text("utf-8")
    shared = style[style.index("<style>") + len("<style>") : style.index("</style>")]
    css = shared + (page / "page.css").read_text("utf-8")
    return {
        "/": ("text/html", (page / "page.html").read_bytes()),
        "/page.css": ("text/css", css.encode()),
        "/page.js": ("text/javascript", (page / "page.js").read_bytes()),
    }


def _file_route(path: str, media_type: str, content: bytes) -> Route:
    async def file(request: Request) -> Response:
        return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})

    return Route(path, file, include_in_schema=False)


def _exception_handlers() -> dict[Any, Callable[[Request, Any], Coroutine[Any, Any, Response]]]:
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"error": error_sentence(error.errors())}, 400)

    async def failed(request: Request, error: StarletteHTTPException) -> Response:
        path = request.url.path[:80]
        if error.detail == "Not Found":  # of the router
            error.detail = f"there is nothing at {path!r}"
        elif error.status_code == 405:
            error.detail = f"{path} does not support {request.method}"
            routes = (route for route in request.app.routes if isinstance(route, Route))
            methods = {m for r in routes if r.path == request.url.path for m in r.methods or ()}
            # of all routes of the path; the router names those of the first
            error.headers = {"allow": ", ".join(sorted(methods))}
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    async def refused(request: Request, error: PictureError) -> Response:
        return JSONResponse({"error": error.detail}, error.status_code)

    async def disconnected(request: Request, error: ClientDisconnect) -> Response:
        return JSONResponse({"error": "the client disconnected"}, CLIENT_CLOSED)

    return {
        RequestValidationError: invalid,
        StarletteHTTPException: failed,
        PictureError: refused,
        ClientDisconnect: disconnected,
    }


def _check_wanted(query: str) -> None:
    """Refuse a query before it shares a batch with others."""
    try:
        parse_query(query)
    except ValueError as error:
        raise HTTPException(422, str(error)) from None


def _reads_features(model: str) -> HTTPException:
    return HTTPException(422, f"{model} reads stored features and cannot look at a new picture")


def _each(answer: Callable[[Q], A]) -> Callable[[Sequence[Q]], list[A]]:
    return lambda queries: [answer(query) for query in queries]


async def _disconnected(request: Request) -> None:
    """Returns when the client has disconnected; the body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _unprocessable(answer: Awaitable[T]) -> T:
    """Turns a ValueError of the models, which names a fault of the request, into status 422."""
    try:
        return await answer
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
