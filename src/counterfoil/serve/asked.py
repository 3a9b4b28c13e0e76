"""The body of a request: JSON or a form, read no further than is allowed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from counterfoil.search.index import TARGET_SIDES, SearchTarget
from counterfoil.serve.refused import Refused
from counterfoil.serve.settings import MEGABYTE, Settings

if TYPE_CHECKING:
    from starlette.requests import Request

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

JSON = "application/json"
FORM = "multipart/form-data"
PICTURE = "picture"
TOP = 20
LONGEST_ID = 1000
LONGEST_JSON = 65536  # bytes; all answers wait while it is read, and it holds no picture


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for; None where it does not say.

    Attributes:
        text: a caption.
        id: of an image of the index.
        picture: an uploaded file.
        top: how many results.
        find: images or captions.
    """

    text: str | None = None
    id: str | None = None
    picture: bytes | None = None
    top: int = TOP
    find: SearchTarget = "images"

    def one(self, *names: str) -> str:
        """The one of these that is given.

        Raises:
            Refused: none is, or several.
        """
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) == 1:
            return given[0]
        told = " and ".join(repr(name) for name in given) or "nothing"
        raise Refused(
            400, f"{told} was sent; send {' or '.join(repr(name) for name in names)}, just one"
        )


async def read(request: Request, settings: Settings, fields: Collection[str]) -> Asked:
    """What a request asks for.

    Args:
        request: a GET with a query, or a POST whose body is JSON or a form; only a form can hold a
            picture.
        settings: the limits.
        fields: names that may occur; "caption" is another name of the text.

    Raises:
        Refused: the body is too large or too slow, of another type or damaged, or a value is none.
    """
    try:
        async with asyncio.timeout(settings.seconds / 2):
            values = await _values(request, settings.upload)
    except TimeoutError:
        raise Refused(408, "the request took too long to arrive; send it again") from None
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise Refused(400, f"{unknown[0][:40]!r} is not known here; {', '.join(fields)} are")
    upload = values.get(PICTURE)
    if upload is not None and not isinstance(upload, bytes):
        raise Refused(400, "the picture is no file; send it in a form")
    return Asked(
        text=_text(values.get("text", values.get("caption")), settings.caption),
        id=_id(values.get("id")),
        picture=upload,
        top=_top(values.get("top", min(TOP, settings.top)), settings.top),
        find=_find(values.get("find", "images")),
    )


async def _values(request: Request, limit: int) -> Mapping[str, object]:
    if request.method in ("GET", "HEAD"):
        return dict(request.query_params)
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind == JSON:
        limit = min(limit, LONGEST_JSON)
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared[:20]) > limit:
        raise _too_large(limit)
    from starlette.requests import Request as Bounded

    bounded = Bounded(request.scope, _bounded(request.receive, limit))
    if kind == JSON:
        return _json(await bounded.body())
    if kind == FORM:
        return await _form(bounded)
    raise Refused(415, f"the body is {kind[:80]!r}; send {JSON} or {FORM}")


def _bounded(receive: Receive, limit: int) -> Receive:
    """The same messages, until there are too many bytes."""
    left = limit

    async def bounded() -> MutableMapping[str, Any]:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise _too_large(limit)
        return message

    return bounded


def _too_large(limit: int) -> Refused:
    most = f"{limit / MEGABYTE:g} MB" if limit > LONGEST_JSON else f"{limit:,} bytes"
    return Refused(413, f"the request is too large; at most {most} are accepted")


def _json(body: bytes) -> Mapping[str, object]:
    try:
        plain = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(plain, dict):
        raise Refused(400, 'the body is no JSON object; one as {"text": "a dog"} is needed')
    return plain


def _no_number(name: str) -> object:
    raise ValueError(name)  # NaN and infinity, which Python reads and JSON does not know


async def _form(request: Request) -> Mapping[str, object]:
    from starlette.datastructures import UploadFile
    from starlette.exceptions import HTTPException

    try:
        async with request.form(max_files=1, max_fields=8, max_part_size=65536) as form:
            return {
                name: await value.read() if isinstance(value, UploadFile) else value
                for name, value in form.items()
            }
    except (HTTPException, ValueError, KeyError):
        raise Refused(400, "the form is damaged; send one picture and at most 8 fields") from None


def _text(value: object, longest: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise Refused(400, "the caption is empty; say something of the picture")
    if len(value) > longest:
        raise Refused(
            400, f"the caption has {len(value):,} characters; at most {longest:,} are read"
        )
    return _unicode(value, "the caption")


def _id(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_ID:
        raise Refused(400, "the id is none; give that of an image of the index")
    return _unicode(value, "the id")


def _find(value: object) -> SearchTarget:
    for find in TARGET_SIDES:
        if find == value:
            return find
    raise Refused(400, f"find is {str(value)[:20]!r}; it can be {' or '.join(TARGET_SIDES)}")


def _unicode(value: str, what: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(400, f"{what} has halves of characters; send Unicode") from None
    return value


def _top(value: object, most: int) -> int:
    given = str(value)
    if isinstance(value, int | str) and given.isdecimal() and given.isascii() and len(given) < 9:
        top = int(given)
        if 1 <= top <= most:
            return top
    raise Refused(400, f"top is {given[:20]!r}; give a whole number of 1 to {most}")
