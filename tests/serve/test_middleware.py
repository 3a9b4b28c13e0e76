from __future__ import annotations

from pathlib import Path

import pytest

from counterfoil.serve.settings import ServerSettings
from serve_cases import asked, got, indexed, posted, served

KEY = "open sesame"


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return indexed(tmp_path_factory.mktemp("guarded"), 4)


@pytest.fixture(scope="module")
def locked(root):
    return served(root, ServerSettings(key=KEY))


CLOSED = ("/search?text=a", "/similar?id=00003.png", "/picture?id=00003.png", "/about", "/metrics",
          "/explain?id=00003.png&caption=a", "/nothing")  # fmt: skip


@pytest.mark.parametrize("route", CLOSED)
@pytest.mark.parametrize("key", [None, "", "open sesam", "open sesame ", "OPEN SESAME", "é"])
def test_missing_or_wrong_key_gives_401(locked, route, key):
    headers = {} if key is None else {"X-API-Key": key.encode()}
    answer = got(locked, route, headers=headers)
    assert answer.status_code == 401
    assert "X-API-Key" in answer.json()["error"]


@pytest.mark.parametrize("route", CLOSED[:-1])
def test_correct_key(locked, route):
    assert got(locked, route, headers={"X-API-Key": KEY}).status_code == 200


@pytest.mark.parametrize("route", ["/", "/page.css", "/page.js", "/health"])
def test_page_needs_no_key(locked, route):
    assert got(locked, route).status_code == 200


def test_key_is_checked_before_the_body_is_read(locked):
    async def never():
        raise AssertionError
        yield b""

    answer = posted(locked, "/search", content=never())
    assert answer.status_code == 401


@pytest.mark.parametrize("host", ["http://evil.example", "http://evil.example:8000"])
def test_foreign_host_name_on_loopback_gives_400(root, host):
    """DNS rebinding: a foreign name that resolves to loopback."""
    app = served(root)
    assert asked(app, lambda client: client.get("/about"), host).status_code == 400
    for own in ("http://localhost:1", "http://127.0.0.1", "http://[::1]:8000"):
        assert asked(app, lambda client: client.get("/about"), own).status_code == 200
    abroad = served(root, ServerSettings(host="0.0.0.0"))
    assert asked(abroad, lambda client: client.get("/about"), host).status_code == 200


@pytest.mark.parametrize(
    "headers, status",
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.example"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Origin": "http://localhost:8001"}, 403),
        ({"Origin": "http://localhost:8000"}, 200),
    ],
)
def test_pages_of_other_sites_are_refused(root, headers, status):
    app, own = served(root), "http://localhost:8000"
    answer = asked(app, lambda client: client.get("/search?text=a", headers=headers), own)
    assert answer.status_code == status
    assert asked(app, lambda client: client.get("/", headers=headers), own).status_code == 200


def test_metrics_count_by_route(root):
    app = served(root, ServerSettings(gather=0.0))
    for route in ("/search?text=a", "/search?text=b", "/search", "/%3Cb%3E", "/picture?id=x"):
        got(app, route)
    text = got(app, "/metrics").text
    assert 'counterfoil_requests_total{route="/search",status="200"} 2' in text
    assert 'counterfoil_requests_total{route="/search",status="400"} 1' in text
    assert 'counterfoil_requests_total{route="other",status="404"} 1' in text
    assert 'counterfoil_requests_total{route="/picture",status="404"} 1' in text
    assert "<b>" not in text


def test_a_public_name_behind_a_proxy(root):
    """The proxy may keep the host, or name itself and keep the origin of the page."""
    app = served(root, ServerSettings(names=("photos.example",)))
    public, body = "http://photos.example", {"text": "a"}

    def status(where: str, **headers: str) -> int:
        post = lambda client: client.post("/search", json=body, headers=headers)  # noqa: E731
        return asked(app, post, where).status_code

    assert status(public) == status(public, Origin=public) == 200
    assert status("http://127.0.0.1:8000", Origin="https://photos.example") == 200
    assert status("http://127.0.0.1:8000", Origin="https://photos.example.evil") == 403
    assert status("http://evil.example") == 400
    for name in ("https://photos.example", "photos.example:80", "photos.example/x", ""):
        with pytest.raises(ValueError, match="is no host name"):
            ServerSettings(names=(name,))
