"""The server behind nginx and Caddy, configured as the documentation prints."""

from __future__ import annotations

import io
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from counterfoil.search.index import open_index
from page_cases import clean, drop, search, until
from serve.test_reload import more
from serve_cases import content, indexed, names, painted, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
NAME = "photos.example.org"
DOCS = Path(__file__).parents[2] / "docs" / "search.md"
NGINX = """
daemon off;
{user}
error_log stderr;
pid {folder}/nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {site}
}}
"""
# certificates of Caddy's own instead of Let's Encrypt's, and no port below 1024
CADDY = """
{{
    admin off
    local_certs
    skip_install_trust
    auto_https disable_redirects
    default_bind 127.0.0.1
    http_port {other}
    https_port {port}
    storage file_system {folder}
}}
{site}
"""


def printed(program: str) -> str:
    """The configuration that the documentation prints for a program."""
    (block,) = re.findall(rf"```{program}\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert "127.0.0.1:8000" in block
    return block


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@dataclass
class Proxy:
    """A running proxy: how a program and how a browser reach what is behind it."""

    client: httpx.Client
    page: str
    browser: str  # argument of Chromium, by which it finds the name

    def ask(self, method: str, path: str, **how: Any) -> httpx.Response:
        headers = {"Host": NAME, "Origin": self.page.rstrip("/"), **how.pop("headers", {})}
        sni = {"sni_hostname": NAME}
        return self.client.request(method, path, headers=headers, extensions=sni, **how)


@contextmanager
def started(
    program: str, folder: Path, port: int, edit: Callable[[str], str] = str
) -> Iterator[Proxy]:
    """A proxy of the server at a port, with the printed configuration, perhaps edited."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin")
    if path is None:
        pytest.skip(f"{program} is not installed")
    folder.mkdir()
    site = edit(printed(program).replace("127.0.0.1:8000", f"127.0.0.1:{port}"))
    own, other = free_port(), free_port()
    if program == "nginx":
        scheme, usual, file = "http", 80, folder / "nginx.conf"
        site = site.replace("listen 80;", f"listen 127.0.0.1:{own};")
        user = "user root;" if os.geteuid() == 0 else ""
        file.write_text(NGINX.format(folder=folder, user=user, site=site))
        command = [path, "-c", str(file), "-p", str(folder), "-e", "stderr"]
    else:
        scheme, usual, file = "https", 443, folder / "Caddyfile"
        file.write_text(CADDY.format(folder=folder, port=own, other=other, site=site))
        command = [path, "run", "--adapter", "caddyfile", "--config", str(file)]
    log = (folder / "log").open("wb")
    home = {**os.environ, "HOME": str(folder)}
    with log, subprocess.Popen(command, stdout=log, stderr=log, env=home, cwd=folder) as process:
        try:
            verify = _authority(folder, process) if scheme == "https" else True
            where = f"{scheme}://127.0.0.1:{own}"
            with httpx.Client(base_url=where, verify=verify, timeout=120) as client:
                proxy = Proxy(
                    client,
                    f"{scheme}://{NAME}/",
                    f"--host-resolver-rules=MAP {NAME}:{usual} 127.0.0.1:{own}",
                )
                _wait(lambda: proxy.ask("GET", "/health"), process)
                yield proxy
        except BaseException:
            print((folder / "log").read_text())
            raise
        finally:
            process.terminate()


def _wait(ready: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        assert process.poll() is None, "the proxy has ended"
        try:
            if ready():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("the proxy does not answer")


def _authority(folder: Path, process: subprocess.Popen[bytes]) -> ssl.SSLContext:
    root = folder / "pki" / "authorities" / "local" / "root.crt"
    _wait(root.is_file, process)
    return ssl.create_default_context(cafile=str(root))


def rewritten(site: str) -> str:
    """The configuration of a proxy that names the server itself as the host."""
    if "reverse_proxy" in site:
        return re.sub(
            r"(reverse_proxy \S+)", r"\1 {\n header_up Host {upstream_hostport}\n }", site
        )
    return site.replace("proxy_set_header Host $host;", "")


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[tuple[Path, int]]:
    root = indexed(tmp_path_factory.mktemp("proxied"), 12)
    with running(root / "index", "--public-name", NAME) as (where, _):
        yield root, int(where.rstrip("/").rpartition(":")[2])


@pytest.fixture(params=["nginx", "caddy", "nginx, host rewritten", "caddy, host rewritten"])
def proxy(request, served, tmp_path) -> Iterator[Proxy]:
    program, _, host = request.param.partition(",")
    edit = rewritten if host else str
    with started(program, tmp_path / program, served[1], edit) as opened:
        yield opened


def noise(side: int) -> bytes:
    dots = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(dots).save(out, "png", compress_level=0)
    return out.getvalue()


def test_search_pictures_and_uploads(proxy):
    page = proxy.ask("GET", "/")
    assert "Search pictures" in page.text
    found = proxy.ask("POST", "/search", json={"text": "a dog", "top": 3})
    assert (found.status_code, len(found.json()["results"])) == (200, 3)
    picture = proxy.ask("GET", "/picture", params={"id": names(12)[1]})  # blanks and marks in it
    assert Image.open(io.BytesIO(picture.content)).format == "JPEG"
    file = {"picture": ("x.png", content(painted(5)), "image/png")}
    found = proxy.ask("POST", "/search", files=file, data={"top": "1"})
    assert found.json()["results"][0]["id"] == names(12)[5]
    big = noise(1_780)
    assert 9_000_000 < len(big) < 10_000_000  # the largest that the server takes
    found = proxy.ask("POST", "/search", files={"picture": ("x.png", big, "image/png")})
    assert (found.status_code, len(found.json()["results"])) == (200, 12)
    larger = {"picture": ("x.png", bytes(10_400_000), "image/png")}
    refused = proxy.ask("POST", "/search", files=larger)
    assert refused.status_code == 413
    if not refused.headers["server"].startswith("nginx"):  # which refuses it itself
        assert refused.json() == {"error": "the request is too large; at most 10 MB are accepted"}
    other = {"Origin": "https://elsewhere.example.org"}
    assert proxy.ask("GET", "/search?text=a", headers=other).status_code == 403
    assert proxy.ask("GET", "/nothing").json() == {"error": "there is nothing at '/nothing'"}


def test_the_page_in_a_browser(proxy, chromium):
    opened = chromium(proxy.browser)
    page = opened.new_page(ignore_https_errors=True)
    page.asked, page.wrong = [], []
    page.on("request", lambda one: page.asked.append(one.url))
    page.on("console", lambda message: page.wrong.append(message.text))
    page.goto(proxy.page)
    search(page, "a dog")
    assert page.url == f"{proxy.page}?text=a+dog"
    until(page, "[...document.images].filter(one => one.naturalWidth).length === 12")
    drop(page, "new.png", "image/png", content(painted(5)))
    until(page, "document.querySelector('#told').textContent.includes('new.png')")
    assert page.locator("#found img").first.get_attribute("alt") == names(12)[5]
    page.locator("#found button").first.click()
    until(page, "document.querySelector('#why').open")
    page.go_back()
    until(page, "!document.querySelector('#why').open")
    clean(page, proxy.page)
    opened.close()


@pytest.mark.parametrize("program", ["nginx", "caddy"])
def test_an_index_that_changes_is_seen_through_the_proxy(program, served, tmp_path):
    root, port = served
    with started(program, tmp_path / program, port) as proxy:
        before = proxy.ask("GET", "/about").json()["images"]
        with open_index(root / "index") as index:
            index.add(more(root, 20 + before))
        for _ in range(100):
            images = proxy.ask("GET", "/about").json()["images"]
            if images > before:
                break
            time.sleep(0.1)
        assert images == before + 1
        picture = proxy.ask("GET", "/picture", params={"id": f"new {20 + before}"})
        assert picture.headers["content-type"] == "image/jpeg"


@pytest.mark.parametrize("program", ["nginx", "caddy"])
def test_without_its_public_name_the_server_says_what_is_missing(program, tmp_path):
    root = indexed(tmp_path, 2)
    with (
        running(root / "index") as (where, _),
        started(program, tmp_path / program, int(where.rstrip("/").rpartition(":")[2])) as proxy,
    ):
        refused = proxy.ask("GET", "/search?text=a")
        assert refused.status_code == 400
        assert f"'{NAME}' is not a name of this server" in refused.json()["error"]
        assert "--public-name" in refused.json()["error"]


def test_an_address_below_a_path(served, tmp_path):
    def below(site: str) -> str:
        (line,) = re.findall(r"`(location /photos/ .*?})`", DOCS.read_text())
        line = line.replace("8000", str(served[1]))
        line = line.replace("}", "proxy_set_header Host $host; }")
        return re.sub(r"location / \{.*?\}", line.replace("\\", ""), site, flags=re.DOTALL)

    with started("nginx", tmp_path / "nginx", served[1], below) as proxy:
        assert proxy.ask("GET", "/photos/page.js").status_code == 200
        found = proxy.ask("POST", "/photos/search", json={"text": "a dog", "top": 1})
        assert len(found.json()["results"]) == 1
