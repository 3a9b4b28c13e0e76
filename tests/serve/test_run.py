from __future__ import annotations

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import httpx
import pytest

from benchmarks.speed.server import family
from counterfoil.serve import run
from counterfoil.serve.run import listen, url
from counterfoil.serve.settings import ServerSettings
from serve_cases import content, indexed, painted, running

LONG = 120  # seconds in which a busy machine answers


def test_a_taken_port_is_refused():
    with listen(ServerSettings(port=0)) as opened:
        opened.listen()
        port = opened.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} of 127.0.0.1 cannot be listened at"):
            listen(ServerSettings(port=port))


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host", "a" * 300, "\udcff"])
def test_foreign_address_is_refused(host):
    with pytest.raises(ValueError, match=r"--host|no address of this machine"):
        listen(ServerSettings(host=host, port=0))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_url_of_the_server(host):
    if host == "::1" and not socket.has_ipv6:
        pytest.skip("no IPv6")
    with listen(ServerSettings(host=host, port=0)) as opened:
        where = httpx.URL(url(ServerSettings(host=host), opened))
        assert where.host == host
        assert where.port == opened.getsockname()[1]


def test_answers_on_a_kept_connection_do_not_wait():
    """Nagle's algorithm would hold the end of each back for the client's delayed ACK, 40 ms."""
    uvicorn, fastapi = pytest.importorskip("uvicorn"), pytest.importorskip("fastapi")
    settings, app = ServerSettings(port=0), fastapi.FastAPI()
    app.get("/")(lambda: {})
    with listen(settings) as opened:
        opened.listen()
        server = uvicorn.Server(run.uvicorn_config(app, settings))
        thread = Thread(target=server.run, kwargs={"sockets": [opened]})
        thread.start()
        try:
            with httpx.Client(base_url=url(settings, opened), timeout=LONG) as client:
                seconds = [client.get("/").elapsed.total_seconds() for _ in range(20)]
        finally:
            server.should_exit = True
            thread.join()
    assert min(seconds[10:]) < 0.03  # the first ones are acknowledged at once


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return indexed(tmp_path_factory.mktemp("run"))


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_server(root, sign):
    """An open idle connection does not delay the end."""
    with (
        running(root / "index") as (where, process),
        httpx.Client(base_url=where, timeout=LONG) as client,
    ):
        assert client.get("/search", params={"text": "a dog"}).status_code == 200
        process.send_signal(sign)
        rest = process.stdout.read()
        assert process.wait(LONG) == 0, rest
    assert rest.strip() == "ended"
    with pytest.raises(httpx.ConnectError):
        httpx.get(where)


@pytest.mark.slow
def test_open_request_is_answered_after_sigterm(root):
    body = b'{"text": "a dog"}'
    head = (
        "POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with running(root / "index") as (where, process):
        with socket.create_connection(("127.0.0.1", httpx.URL(where).port), 20) as opened:
            opened.sendall(head.encode() + body[:5])
            health = httpx.get(f"{where}health", timeout=LONG)
            assert health.status_code == 200  # so that was read before this
            process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            opened.sendall(body[5:])
            assert opened.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert process.wait(LONG) == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_sigterm_does_not_wait_for_pictures(root):
    """Also when their decoders hang."""
    files = {"picture": ("a.png", content(painted(1)))}
    with running(root / "index") as (where, process), ThreadPoolExecutor(4) as pool:
        found = [pool.submit(httpx.post, f"{where}search", files=files) for _ in range(4)]
        assert {one.result().status_code for one in found} == {200}
        _, *decoders = family(process.pid)
        assert len(decoders) == ServerSettings().decoders
        for decoder in decoders:
            os.kill(decoder, signal.SIGSTOP)
        for _ in range(4):
            pool.submit(httpx.post, f"{where}search", files=files)
        time.sleep(0.5)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG) == 0
        assert time.monotonic() - began < run._GRACE + 10
        assert not any(Path(f"/proc/{decoder}").exists() for decoder in decoders)


@pytest.mark.slow
def test_misbehaving_clients_do_no_harm(root):
    with running("--upload", "0.1", root / "index") as (where, process):
        port = httpx.URL(where).port

        def raw(line: bytes) -> bytes:
            with socket.create_connection(("127.0.0.1", port), LONG) as opened:
                opened.sendall(line + b"\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                return opened.recv(4096)

        for path in (b"/picture/../../etc/passwd", b"/..%2f..%2fetc/passwd", b"//etc/passwd"):
            assert b" 404 " in raw(b"GET " + path + b" HTTP/1.1")
        for line in (b"GET /\x00 HTTP/1.1", b"\x16\x03\x01", b"GET / HTTP/9.9", b"A" * 100_000):
            raw(line)
        for _ in range(20):  # said to be long, and then gone
            with socket.create_connection(("127.0.0.1", port), LONG) as opened:
                opened.sendall(b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\n")
                opened.sendall(b"Content-Type: application/json\r\nContent-Length: 900\r\n\r\n{")
        huge = {"picture": ("a.png", bytes(5_000_000))}
        assert httpx.post(f"{where}search", timeout=LONG, files=huge).status_code == 413
        good = {"picture": ("a.png", content(painted(1)))}
        assert httpx.post(f"{where}search", timeout=LONG, files=good).status_code == 200
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(LONG) == 0
    assert "Traceback" not in rest
