"""Pictures that harm decoders, through data sets, indexes and the server.

None ends in a traceback, takes more than some seconds or more than half a gigabyte.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.speed.server import bytes_of, family
from counterfoil.cli import main
from counterfoil.serve.settings import ServerSettings
from picture_cases import HOSTILE, saved
from processes import forked
from serve_cases import indexed, running

PLACES = ("a-pipe.jpg", "a-folder.jpg", "a-link-to-itself.jpg", "zeros-without-end.jpg")
SECONDS, MEMORY = 5, 500_000_000  # CPU time and bytes for one picture
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads sizes in /proc"),
]


def place(name: str, folder: Path) -> None:
    """Write a hostile picture, or what is no file."""
    path = folder / name
    match name:
        case "a-pipe.jpg":
            os.mkfifo(path)
        case "a-folder.jpg":
            path.mkdir()
        case "a-link-to-itself.jpg":
            path.symlink_to(path)
        case "zeros-without-end.jpg":
            path.symlink_to("/dev/zero")
        case _:
            path.write_bytes(HOSTILE[name]())


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return indexed(tmp_path_factory.mktemp("hostile"), 6)


def cost(child: int) -> tuple[int, float, int]:
    """Exit code, CPU seconds and bytes of a process; one that hangs is killed."""
    watch = threading.Timer(60, os.kill, (child, signal.SIGKILL))
    watch.start()
    _, status, usage = os.wait4(child, 0)
    watch.cancel()
    code = os.waitstatus_to_exitcode(status)
    return code, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss


def checked(folder: Path, model: Path, output: Path) -> dict[str, tuple[int, float, int]]:
    """Cost of ``data check`` and ``index`` on a folder."""
    check = ["data", "check", str(folder)]
    index = ["index", str(model), str(folder), "--output", str(output)]
    return {words[0]: cost(forked(lambda words=words: main(words))) for words in (check, index)}


@pytest.fixture(scope="module")
def ordinary(root, tmp_path_factory) -> dict[str, tuple[int, float, int]]:
    """Cost of a folder with a good picture."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "good.png").write_bytes(saved("png"))
    found = checked(folder, root / "model", folder.with_suffix(".index"))
    assert found["index"][0] == 0
    return found


@pytest.mark.parametrize("name", [*HOSTILE, *PLACES])
def test_data_check_and_index(root, ordinary, tmp_path, monkeypatch, name):
    """Errors are found and said, and the other pictures are indexed."""
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "good.png").write_bytes(saved("png"))
    place(name, folder)
    found = checked(folder, root / "model", tmp_path / "index")
    for verb, (code, seconds, size) in found.items():
        _, plain, least = ordinary[verb]
        assert code in ((0, 2) if verb == "data" else (0,)), verb
        assert seconds < plain + SECONDS, verb
        assert size < least + MEMORY, verb


@pytest.fixture(scope="module")
def server(root) -> Iterator[tuple[str, int]]:
    """Address and process id of a server, which ends well and says nothing."""
    with running(root / "index") as (where, process):
        yield where, process.pid
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(60) == 0
    assert "Traceback" not in rest


def peak(number: int) -> int:
    """Most memory that a process has had."""
    return bytes_of(number, "VmHWM")


@pytest.mark.parametrize("name", HOSTILE)
def test_upload(server, name):
    """The server answers, and its next answer is as quick as ever."""
    where, number = server
    before = peak(number)
    for route, more in (("search", {}), ("explain", {"data": {"caption": "a dog"}})):
        files = {"picture": (name, HOSTILE[name]())}
        began = time.monotonic()
        answer = httpx.post(f"{where}{route}", files=files, timeout=120, **more)
        assert time.monotonic() - began < 3 * ServerSettings().decoding + SECONDS
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
        assert answer.status_code == 200 or "\n" not in answer.json()["error"]
    assert httpx.get(f"{where}health", timeout=120).status_code == 200
    assert peak(number) < before + 100_000_000
    assert max(map(peak, family(number)[1:])) < MEMORY


def test_eight_large_uploads_at_once(server, root):
    """Text search does not wait for them, and the memory of all processes stays below 1.5 GB."""
    where, number = server
    files = {"picture": ("a.png", HOSTILE["25-megapixels-1-bit.png"]())}
    found: list[int] = []

    def upload() -> None:
        found.append(httpx.post(f"{where}search", files=files, timeout=120).status_code)

    threads = [threading.Thread(target=upload) for _ in range(8)]
    for thread in threads:
        thread.start()
    waits = []
    while any(thread.is_alive() for thread in threads):
        began = time.monotonic()
        answer = httpx.get(f"{where}search", params={"text": "a dog"}, timeout=120)
        waits.append(time.monotonic() - began)
        assert answer.status_code == 200
    for thread in threads:
        thread.join()
    assert found == [200] * 8
    assert max(waits) < SECONDS
    assert sum(map(peak, family(number))) < 1_500_000_000
