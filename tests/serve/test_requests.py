from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import unquote

import pytest
from PIL import Image

from counterfoil.serve.settings import ServerSettings
from serve_cases import asked, content, got, indexed, painted, posted, served

SETTINGS = ServerSettings(upload=200_000, pixels=100_000, caption=200, gather=0.0, key=None)
JSON = {"content-type": "application/json"}
LINES = {"content-type": "multipart/form-data; boundary=x"}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return indexed(tmp_path_factory.mktemp("asked"), 6)


@pytest.fixture(scope="module")
def app(root):
    return served(root, SETTINGS)


def uploaded(body: bytes, name: str = "a.png") -> dict[str, object]:
    return {"files": {"picture": (name, body)}}


def part(head: str, body: bytes = b"", end: bytes = b"\r\n--x--\r\n") -> dict[str, object]:
    return {"content": b"--x\r\n" + head.encode() + b"\r\n\r\n" + body + end, "headers": LINES}


HALF = '{"text": "\\ud800"}'
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
FILE = 'Content-Disposition: form-data; name="picture"; filename="a.png"'
REFUSED = {
    "truncated picture": (uploaded(content(painted(0, 200))[:300]), 422, "damaged or cut off"),
    "empty picture": (uploaded(b""), 400, "is empty"),
    "huge picture": (uploaded(bytes(200_001)), 413, "at most 0.2 MB"),
    "huge JSON": ({"json": {"text": "a" * 66_000}}, 413, "at most 65,536 bytes"),
    "many pixels": (uploaded(content(Image.new("1", (400, 400)))), 413, "400 x 400 pixels"),
    "drawing": (uploaded(SVG, "a.svg"), 415, "no picture that can be read"),
    "path as picture": ({"json": {"picture": "/etc/passwd"}}, 400, "is not a file; send it in"),
    "address as picture": ({"json": {"picture": "http://a"}}, 400, "is not a file; send it in"),
    "two pictures": (
        {"files": [("picture", ("a", b"a")), ("picture", ("b", b"b"))]}, 400, "Too many files",
    ),
    "form that ends early": (part(FILE, b"abc", b""), 400, "nothing was sent"),
    "form without a boundary": (
        {"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400,
        "Missing boundary",
    ),
    "form of noise": (
        {"content": bytes(range(256)), "headers": LINES}, 400, "Invalid multipart data",
    ),
    "form with too many fields": (
        {"files": [(f"f{n}", (None, "x")) for n in range(70)]}, 400, "Too many fields",
    ),
    "no text": ({"json": {}}, 400, "nothing was sent; send 'text' or 'picture'"),
    "nothing in a form": (
        {"files": {"top": (None, "5")}}, 400, "nothing was sent; send 'text' or 'picture'",
    ),
    "a file as text": ({"files": {"text": ("a.txt", b"a dog")}}, 400, "a valid string"),
    "text as picture in a form": ({"files": {"picture": (None, "a.png")}}, 400, "not a file"),
    "empty text": ({"json": {"text": "  "}}, 400, "the caption is empty"),
    "long text": ({"json": {"text": "a " * 101}}, 400, "202 characters; at most 200"),
    "number as text": ({"json": {"text": 3}}, 400, "text is '3'"),
    "half a character": ({"content": HALF, "headers": JSON}, 400, "the body is not JSON"),
    "both": ({"data": {"text": "a"}, **uploaded(b"x")}, 400, "just one"),
    "unknown field": ({"json": {"text": "a", "file": "../x"}}, 400, "'file' is not a field"),
    "no JSON": ({"content": "{", "headers": JSON}, 400, "the body is not JSON"),
    "not a number": (
        {"content": '{"text": "a", "top": NaN}', "headers": JSON}, 400, "a finite number",
    ),
    "infinity": (
        {"content": '{"text": "a", "top": -Infinity}', "headers": JSON}, 400, "a finite number",
    ),
    "a number of many digits": (
        {"content": '{"top": ' + "9" * 5000 + "}", "headers": JSON}, 400, "is not JSON",
    ),
    "no UTF-8": ({"content": b'{"text": "\xff"}', "headers": JSON}, 400, "is not JSON"),
    "a deep list": ({"content": "[" * 30_000, "headers": JSON}, 400, "is not JSON"),
    "a list": ({"json": ["a"]}, 400, "not a JSON object"),
    "no top": ({"json": {"text": "a", "top": 0}}, 400, "top is '0'"),
    "too large a top": ({"json": {"text": "a", "top": 101}}, 400, "1 to 100"),
    "a fraction as top": ({"json": {"text": "a", "top": 1.5}}, 400, "top is '1.5'"),
    "a list as top": ({"json": {"text": "a", "top": [1]}}, 400, "top is '[1]'"),
    "true as top": ({"json": {"text": "a", "top": True}}, 400, "top is 'True'"),
    "no type": ({"content": b"x"}, 415, "send application/json or multipart/form-data"),
    "another type": (
        {"content": b"<a/>", "headers": {"content-type": "text/xml"}}, 415, "'text/xml'",
    ),
}  # fmt: skip


# a form that ends early leaves starlette with a temporary file, which is closed when it is found
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_bad_request_gets_one_sentence(app, root, name):
    how, status, fragment = REFUSED[name]
    answer = posted(app, "/search", **how)
    assert answer.status_code == status, answer.text
    (told,) = answer.json().values()
    assert fragment in told
    assert "\n" not in told
    assert str(root) not in told
    assert posted(app, "/search", json={"text": "a dog"}).status_code == 200


def test_body_limit_without_content_length(app):
    sent = 0

    async def endless():
        nonlocal sent
        while True:
            sent += 1
            yield bytes(50_000)

    answer = posted(app, "/search", content=endless(), headers=JSON)
    assert answer.status_code == 413
    assert sent <= 3


def test_time_limit_of_a_body(root):
    app = served(root, ServerSettings(seconds=0.2))

    async def slow():
        yield b"{"
        await asyncio.sleep(60)

    answer = posted(app, "/search", content=slow(), headers=JSON)
    assert answer.status_code == 408
    assert "took too long to arrive" in answer.json()["error"]


PATHS = (
    "../photos/0.png", "..%2Fphotos%2F0.png", "%2e%2e/index/index.json", "/etc/passwd",
    "index.json", "....//....//etc/passwd", "..\\..\\photos\\0.png", "a/../a/b c.png",
    "./a/b c.png", "a/b c.png\0", "file:///etc/passwd", "C:\\a", "~", "*", ".", "é" * 1000,
)  # fmt: skip


@pytest.mark.parametrize("name", PATHS)
def test_nothing_outside_the_index_is_served(app, root, name):
    for route in ("/picture", "/similar"):
        answer = got(app, route, params={"id": name})
        assert answer.status_code == 404, answer.text
        assert str(root) not in answer.text
    answer = posted(app, "/explain", json={"id": name, "caption": "a dog"})
    assert answer.status_code == 404
    assert got(app, "/picture", params={"id": str(root / "photos" / "0.png")}).status_code == 404


FILES = (
    "/../index.json", "/..%2f..%2fetc/passwd", "//etc/passwd", "/page/page.js", "/index.json",
    "/page.css/../app.py", "/%2e%2e/%2e%2e/etc/passwd", "/picture/../../etc/passwd", "/docs",
    "/redoc", "/search/",
)  # fmt: skip


@pytest.mark.parametrize("path", FILES)
def test_no_path_is_a_file(app, path):
    answer = raw(app, path)
    assert answer == 404


def raw(app, path: str) -> int:
    """Status of a path that no client has normalised."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": unquote(path), "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "headers": [(b"host", b"127.0.0.1")], "client": None, "server": None,
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"]


def test_wrong_method_or_path(app):
    assert posted(app, "/health").status_code == 405
    assert asked(app, lambda client: client.put("/search")).status_code == 405
    assert posted(app, "/nothing").json()["error"] == "there is nothing at '/nothing'"


OTHERS = {
    "no caption": ("/explain", {"id": "00003.png"}, "no 'caption' was sent"),
    "no image": ("/explain", {"caption": "a dog"}, "send 'id' or 'picture', just one"),
    "empty caption": ("/explain", {"id": "00003.png", "caption": ""}, "the caption is empty"),
    "another field": ("/explain", {"id": "00003.png", "text": "a"}, "'text' is not a field"),
    "empty id": ("/explain", {"id": "", "caption": "a"}, "id is ''; string should have at least 1"),
    "long id": ("/explain", {"id": "a" * 1001, "caption": "a"}, "at most 1000 characters"),
    "nothing": ("/similar", {}, "no 'id' was sent; /openapi.json lists the fields"),
    "a name": ("/similar", {"name": "a"}, "'name' is not a field of this request"),
    "texts": ("/search", {"text": "a", "find": "texts"}, "input should be 'images' or 'captions'"),
    "no find": ("/search", {"text": "a", "find": None}, "input should be 'images' or 'captions'"),
    "finds": ("/search", {"text": "a", "find": ["captions"]}, "should be 'images' or 'captions'"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_bad_requests_of_other_kinds_get_one_sentence(app, name):
    route, body, fragment = OTHERS[name]
    answer = posted(app, route, json=body)
    assert answer.status_code == 400
    assert fragment in answer.json()["error"]
