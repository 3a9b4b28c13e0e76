"""Malformed requests to a live server: each gets a 4xx in one sentence, and none hangs.

`tests/serve/test_requests.py` says which sentence the application answers; here the bytes on the
wire are wrong as well.
"""

from __future__ import annotations

import gzip
import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from serve_cases import indexed, running

PATIENCE = 5.0  # seconds for an answer
HOST = b"Host: 127.0.0.1\r\n"
pytestmark = pytest.mark.slow


def get(target: bytes, more: bytes = HOST, version: bytes = b"HTTP/1.1") -> bytes:
    return b"GET " + target + b" " + version + b"\r\n" + more + b"Connection: close\r\n\r\n"


def post(head: bytes, body: bytes = b"", route: bytes = b"/search", more: bytes = HOST) -> bytes:
    """A request of any header lines and body."""
    return b"POST " + route + b" HTTP/1.1\r\n" + more + head + b"\r\n" + body


def sent(body: bytes, kind: bytes = b"application/json", route: bytes = b"/search") -> bytes:
    """A well-formed request of any body."""
    head = b"Content-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n"
    return post(head % (kind, len(body)), body, route)


def chunked(*chunks: bytes, coding: bytes = b"chunked") -> bytes:
    """A request in chunks."""
    head = b"Content-Type: application/json\r\nTransfer-Encoding: " + coding + b"\r\n"
    return post(head, b"".join(chunks))


def part(head: bytes, end: bytes = b"\r\n--x--\r\n", kind: bytes = b"boundary=x") -> bytes:
    """A form of one part."""
    return sent(b"--x\r\n" + head + b"\r\n\r\nabc" + end, b"multipart/form-data; " + kind)


OK = b'{"text": "a"}'
PLAIN = b"Content-Type: application/json\r\n"
NAMED = b'Content-Disposition: form-data; name="picture"; filename="a.png"'
BODIES: dict[str, bytes] = {
    "empty": b"",
    "brace": b"{",
    "bracket": b"[",
    "null": b"null",
    "true": b"true",
    "number": b"1",
    "string": b'"text"',
    "list": b"[]",
    "object": b"{}",
    "two values": OK + OK,
    "comma at the end": b'{"text": "a",}',
    "comment": b'{"text": "a" /* b */}',
    "single quotes": b"{'text': 'a'}",
    "no quotes": b"{text: a}",
    "undefined": b'{"text": undefined}',
    "NUL bytes": bytes(50),
    "control character": b'{"text": "a\x01"}',
    "UTF-16": OK.decode().encode("utf-16"),
    "UTF-32": OK.decode().encode("utf-32"),
    "Latin-1": b'{"text": "caf\xe9"}',
    "overlong UTF-8": b'{"text": "\xc0\xaf"}',
    "half a surrogate": b'{"text": "\\ud800"}',
    "gzip": gzip.compress(OK),
    "brackets, 30,000 deep": b"[" * 30_000 + b"]" * 30_000,
    "braces, 10,000 deep": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "text 10,000 deep": b'{"text": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "70,000 bytes": b'{"text": "' + b"a" * 70_000 + b'"}',
    "5,000 fields": json.dumps({f"f{n}": n for n in range(5_000)}).encode(),
}
VALUES: dict[str, tuple[object, ...]] = {
    "text": (None, 3, True, [], ["a"], {}, {"$ne": ""}, "", " \t\n", "a" * 1001),
    "top": (0, -1, 101, 10**30, 1.5, "x", "", True, [], {}, 1e300),
    "find": (None, "", "texts", 1, ["images"], "../images"),
    "min_probability": (-1, 2, 1e308, "x", [], {}, "nan"),
    "picture": ("/etc/passwd", "http://127.0.0.1/", {}, [], 1, "data:image/png;base64,AAAA"),
    "__proto__": ({}, 1),
    "": (1,),
}
NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "0x10", "01", "1_0", "--1", ".5")
OTHERS: dict[bytes, tuple[object, ...]] = {
    b"/similar": ({"id": ""}, {"id": 3}, {"id": ["a"]}, {"id": "a" * 1001}, {"id": "\0"}, {}),
    b"/explain": (
        {"id": "a"},
        {"caption": "a"},
        {"id": "a", "caption": ""},
        {"id": "../a", "caption": "a"},
        {"id": "a", "caption": ["a"]},
    ),
}
KINDS: dict[str, bytes] = {
    kind: sent(OK, kind.encode("latin-1"))
    for kind in (
        "text/plain", "text/xml", "application/x-www-form-urlencoded", "application/jsonp", "é",
        "*/*", ",", "multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed",
        "multipart/form-data; boundary=" + "b" * 9_000, "multipart/form-data; boundary=\"",
    )
}  # fmt: skip
FORMS: dict[str, bytes] = {
    "no name": part(b"Content-Disposition: form-data"),
    "no disposition": part(b"Content-Type: text/plain"),
    "no header": sent(b"--x\r\nabc\r\n--x--\r\n", b"multipart/form-data; boundary=x"),
    "another boundary": part(NAMED, kind=b"boundary=y"),
    "no end": part(NAMED, end=b""),
    "header without a colon": part(b"Content-Disposition form-data"),
    "header of 100,000 bytes": part(NAMED + b"; a=" + b"b" * 100_000),
    "5,000 headers": part(NAMED + b"\r\nA: b" * 5_000),
    "a form in a form": part(NAMED + b"\r\nContent-Type: multipart/mixed; boundary=z"),
    "a coded part": part(NAMED + b"\r\nContent-Transfer-Encoding: base64"),
    "a name of bytes": part(b'Content-Disposition: form-data; name="\xff\xfe"'),
    "a quote without end": part(b'Content-Disposition: form-data; name="picture'),
    "a name in UTF-7": part(b"Content-Disposition: form-data; name*=utf-7''+AGE-"),
    "an unknown charset": part(NAMED, kind=b"boundary=x; charset=klingon"),
    "nothing": sent(b"", b"multipart/form-data; boundary=x"),
    "the end alone": sent(b"--x--\r\n", b"multipart/form-data; boundary=x"),
    "1,000 parts": sent(
        (b"--x\r\n" + NAMED + b"\r\n\r\na\r\n") * 1_000 + b"--x--\r\n",
        b"multipart/form-data; boundary=x",
    ),
}
WIRE: dict[str, bytes] = {
    "not HTTP": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40) + b"\r\n\r\n",
    "HTTP 0.9": b"GET /search\r\n\r\n",
    "HTTP 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no version": get(b"/health", version=b""),
    "a method in small letters": get(b"/health").replace(b"GET", b"get"),
    "a method of symbols": get(b"/health").replace(b"GET", b"G(E)T"),
    "an unknown method": get(b"/health").replace(b"GET", b"BREW"),
    "CONNECT": b"CONNECT a.example:80 HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n",
    "TRACE": get(b"/search?text=a").replace(b"GET", b"TRACE"),
    "DELETE": get(b"/search?text=a").replace(b"GET", b"DELETE"),
    "no host": get(b"/health", b""),
    "two hosts": get(b"/health", HOST + b"Host: evil.example\r\n"),
    "another host": get(b"/about", b"Host: evil.example\r\n"),
    "an empty host": get(b"/about", b"Host: \r\n"),
    "a host with a path": get(b"/about", b"Host: 127.0.0.1/@evil.example\r\n"),
    "a host of bytes": get(b"/about", b"Host: \xff\xfe\r\n"),
    "a header without a colon": get(b"/health", HOST + b"Nothing\r\n"),
    "a header name with a blank": get(b"/health", HOST + b"A b: c\r\n"),
    "a header of NUL": get(b"/health", HOST + b"A: b\0c\r\n"),
    "a header of 200,000 bytes": get(b"/health", HOST + b"A: " + b"b" * 200_000 + b"\r\n"),
    "a target with blanks": get(b"/search?text=a b c"),
    "a target of bytes": get(b"/\xff\xfe"),
    "a target of 100,000 bytes": get(b"/search?text=" + b"a" * 100_000),
    "a length twice": post(PLAIN + b"Content-Length: 13\r\nContent-Length: 14\r\n", OK),
    "a length list": post(PLAIN + b"Content-Length: 13, 14\r\n", OK),
    "a negative length": post(PLAIN + b"Content-Length: -1\r\n", OK),
    "a signed length": post(PLAIN + b"Content-Length: +13\r\n", OK),
    "a hexadecimal length": post(PLAIN + b"Content-Length: 0xd\r\n", OK),
    "a length of words": post(PLAIN + b"Content-Length: much\r\n", OK),
    "a huge length": post(PLAIN + b"Content-Length: " + b"9" * 30 + b"\r\n", OK),
    "a gigabyte announced": post(PLAIN + b"Content-Length: 1000000000\r\n", OK),
    "no length": post(PLAIN),
    "a chunk of words": chunked(b"zz\r\n", OK, b"\r\n0\r\n\r\n"),
    "a negative chunk": chunked(b"-d\r\n", OK, b"\r\n0\r\n\r\n"),
    "a huge chunk": chunked(b"f" * 40 + b"\r\n", OK, b"\r\n0\r\n\r\n"),
    "a chunk without an end of line": chunked(b"d\r\n", OK, b"0\r\n\r\n"),
    "a chunk that is too long": chunked(b"3\r\n", OK, b"\r\n0\r\n\r\n"),
    "chunks of nothing": chunked(b"0\r\n\r\n"),
    "chunks of 70,000 bytes": chunked(b"11170\r\n", bytes(70_000), b"\r\n0\r\n\r\n"),
    "another coding": chunked(OK, coding=b"gzip"),
    "chunks in chunks": chunked(b"d\r\n", OK, b"\r\n0\r\n\r\n", coding=b"chunked, chunked"),
    "an unknown expectation": post(PLAIN + b"Expect: tea\r\nContent-Length: 2\r\n", b"{}"),
    "a key of bytes": post(PLAIN + b"X-API-Key: \xff\r\nContent-Length: 2\r\n", b"{}"),
    "an origin that is none": get(b"/about", HOST + b"Origin: http://[::1\r\n"),
    "an origin of bytes": get(b"/about", HOST + b"Origin: \xff\xfe\r\n"),
    "another site": get(b"/about", HOST + b"Sec-Fetch-Site: cross-site\r\n"),
    "an unknown site": get(b"/about", HOST + b"Sec-Fetch-Site: moon\r\n"),
}
TARGETS = (
    b"/../../etc/passwd", b"/..%2f..%2fetc%2fpasswd", b"//etc/passwd", b"/%00", b"/%zz", b"/%",
    b"/page.css/..", b"/.git/config", b"/search/", b"/Search?text=a", b"/picture/0.png", b"/;a=b",
    b"http://evil.example/etc/passwd", b"/search", b"/search?", b"/search?text", b"/search?text=",
    b"/search?text=%ff%fe&top=x", b"/search?text=a&top=", b"/search?text=a&top=1e3", b"/similar",
    b"/search?text=a&find=%00", b"/search?text=a&a=b", b"/search?text=a&min_probability=nan",
    b"/search?picture=a.png", b"/similar?id=", b"/similar?id=..%2f..%2fa", b"/explain?id=a",
    b"/picture", b"/picture?id=", b"/picture?id=%2e%2e/index.json", b"/picture?id=/etc/passwd",
    b"/picture?id=%00", b"/picture?id=a&size=9", b"/picture?" + b"id=a&" * 3_000,
)  # fmt: skip
INCOMPLETE: dict[str, bytes] = {
    "nothing": b"",
    "half a line": b"GET /hea",
    "half a head": b"GET /health HTTP/1.1\r\nHost: 127",
    "half a body": post(PLAIN + b"Content-Length: 900\r\n", OK),
    "half a chunk": chunked(b"ff\r\n", OK),
}
MALFORMED: dict[str, bytes] = {
    **{f"JSON: {name}": sent(body) for name, body in BODIES.items()},
    **{
        f"JSON: {name} {value!r:.40}": sent(
            json.dumps({**({} if name == "picture" else {"text": "a"}), name: value}).encode()
        )
        for name, values in VALUES.items()
        for value in values
    },
    **{f"JSON: top {n:.9}": sent(b'{"text": "a", "top": ' + n.encode() + b"}") for n in NUMBERS},
    **{
        f"{route.decode()} {value!r:.40}": sent(json.dumps(value).encode(), route=route)
        for route, values in OTHERS.items()
        for value in values
    },
    **{f"type: {name:.60}": request for name, request in KINDS.items()},
    **{f"form: {name}": request for name, request in FORMS.items()},
    **{f"wire: {name}": request for name, request in WIRE.items()},
    **{f"GET {target.decode():.40}": get(target) for target in TARGETS},
}


@pytest.fixture(scope="module")
def port(tmp_path_factory) -> Iterator[int]:
    """Port of a server, which ends well, says nothing, and has answered no 5xx."""
    root = indexed(tmp_path_factory.mktemp("malformed"), 6)
    with running(root / "index") as (where, process):
        yield httpx.URL(where).port
        metrics = httpx.get(f"{where}metrics").text
        assert httpx.get(f"{where}search", params={"text": "a dog"}).status_code == 200
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(60) == 0
    assert not re.search(r'status="5', metrics)
    assert "Traceback" not in rest


def answer(port: int, request: bytes, *, half: bool = False) -> bytes:
    """The first answer of the server; `half` closes the client's side."""
    with socket.create_connection(("127.0.0.1", port), 60) as opened:
        with suppress(OSError):  # it may have refused already
            opened.sendall(request)
        if half:
            opened.shutdown(socket.SHUT_WR)
        found = b""
        with suppress(ConnectionResetError):  # of what it did not read
            while not _whole(found) and (more := opened.recv(65536)):
                found += more
        return found


def _whole(found: bytes) -> bool:
    head, blank, body = found.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return bool(blank) and length is not None and len(body) >= int(length[1])


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_gets_4xx(port, name):
    began = time.monotonic()
    found = answer(port, MALFORMED[name])
    assert time.monotonic() - began < PATIENCE
    assert re.match(rb"HTTP/1\.1 4\d\d ", found), found[:200]
    if b"application/json" in found:
        told = json.JSONDecoder().raw_decode(found.decode().partition("\r\n\r\n")[2])[0]["error"]
        assert told
        assert "\n" not in told


@pytest.mark.parametrize("name", INCOMPLETE)
def test_half_a_request_is_given_up(port, name):
    """The client has closed its side."""
    began = time.monotonic()
    found = answer(port, INCOMPLETE[name], half=True)
    assert time.monotonic() - began < PATIENCE
    assert not found or re.match(rb"HTTP/1\.1 4\d\d ", found), found[:200]


def test_there_are_enough(tmp_path: Path):
    assert len(MALFORMED) + len(INCOMPLETE) >= 100
