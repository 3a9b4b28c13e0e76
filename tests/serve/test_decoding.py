"""Pictures are decoded in processes, which are killed when they take too long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from PIL import Image

from counterfoil.data.images import ResizeCrop, ResizeKeepAspect, open_picture, shrink
from counterfoil.serve import decoding
from counterfoil.serve.decoding import PictureDecoder, PictureError
from serve_cases import content, painted

TRANSFORMS = (
    ResizeCrop(16),
    ResizeCrop(16, "center"),
    ResizeCrop(16, "shortest", "bilinear"),
    ResizeCrop(16, "shortest-floor", "lanczos"),
    ResizeCrop(16, "shortest-floor", resized=21),
    ResizeCrop(16, "squash", resized=21),
    ResizeCrop(16, "longest"),
    ResizeKeepAspect(32, 8),
)


@pytest.fixture
def decoder() -> Iterator[PictureDecoder]:
    made = PictureDecoder(processes=1, pixels=1_000_000, seconds=20)
    yield made
    made.close()


def photo(width: int, height: int) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(noise)


@pytest.mark.parametrize("size", [(50, 30), (30, 50), (300, 20), (7, 5), (16, 16), (333, 200)])
@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_a_shrunk_picture_is_the_same_to_its_model(transform, size):
    picture = photo(*size)
    small = shrink(picture, transform)
    assert np.array_equal(transform(small), transform(picture))


def test_an_upload_is_what_offline_code_reads(decoder, tmp_path):
    path = tmp_path / "x.jpg"
    photo(333, 200).save(path, quality=90)
    found = decoder.upload(path.read_bytes(), (None, *TRANSFORMS, TRANSFORMS[0]))
    offline = open_picture(path)
    assert found[0].tobytes() == offline.tobytes()
    for transform, picture in zip((*TRANSFORMS, TRANSFORMS[0]), found[1:], strict=True):
        assert picture.width <= 64
        assert np.array_equal(transform(picture), transform(offline))
        again = decoder.open(path, transform)
        assert np.array_equal(transform(again), transform(offline))


def test_thumbnails_of_large_jpegs_are_scaled_while_they_are_decoded(decoder, tmp_path):
    path = tmp_path / "x.jpg"
    painted(1, 2400).save(path, quality=95)
    small = Image.open(decoding.io.BytesIO(decoder.thumbnail(path)))
    assert small.size == (448, 448)
    want = painted(1, 2400).resize((448, 448), Image.Resampling.LANCZOS)
    assert np.abs(np.asarray(small, int) - np.asarray(want, int)).mean() < 1
    large = Image.open(decoding.io.BytesIO(decoder.thumbnail(path, decoding.FULL)))
    assert large.size == (2048, 2048)


def test_the_processes_load_no_torch_and_know_no_key(monkeypatch):
    lines = "import sys, counterfoil.serve.decoding; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", lines], text=True) == "False\n"
    monkeypatch.setenv("COUNTERFOIL_KEY", "secret")
    seen = {}
    monkeypatch.setattr(decoding.subprocess, "Popen", lambda *_, **how: seen.update(how))
    decoding._Process(1, 1)
    assert "secret" not in seen["env"].values()


def test_errors_of_a_picture_leave_the_process(decoder, tmp_path):
    with pytest.raises(PictureError, match="no picture that can be read") as error:
        decoder.upload(b"hello", (None,))
    assert error.value.status_code == 415
    for path in (tmp_path / "none.jpg", tmp_path):
        with pytest.raises(PictureError, match="cannot be read any more") as error:
            decoder.thumbnail(path)
        assert error.value.status_code == 404
    (first,) = decoder._all
    assert decoder.upload(content(painted(1)), (None,))[0].tobytes() == painted(1).tobytes()
    assert decoder._all == {first}


def test_a_process_that_hangs_is_killed_and_replaced(monkeypatch):
    monkeypatch.setattr(decoding, "PATIENCE", 0.3)
    decoder = PictureDecoder(processes=1, pixels=1_000_000, seconds=1)
    picture = content(painted(1))
    process = decoder._take()
    decoder._idle.append(process)
    os.kill(process._process.pid, signal.SIGSTOP)
    with pytest.raises(PictureError, match="takes too long to decode") as error:
        decoder.upload(picture, (None,))
    assert error.value.status_code == 422
    monkeypatch.setattr(decoding, "PATIENCE", 60)
    assert decoder.upload(picture, (None,))[0].tobytes() == painted(1).tobytes()
    decoder.close()


def test_a_process_that_was_killed_meanwhile_is_replaced(decoder):
    decoder.upload(content(painted(1)), (None,))
    (first,) = decoder._all
    os.kill(first._process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, first._process.pid, os.WEXITED | os.WNOWAIT)
    assert decoder.upload(content(painted(2)), (None,))[0].tobytes() == painted(2).tobytes()


def test_close_does_not_wait_for_a_picture(decoder):
    process = decoder._take()
    decoder._idle.append(process)
    os.kill(process._process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(decoder.upload, content(painted(1)), (None,))
        while decoder._idle:
            time.sleep(0.01)
        began = time.monotonic()
        decoder.close()
        assert time.monotonic() - began < 10
        with pytest.raises(PictureError, match="the server ends"):
            waiting.result(10)
    with pytest.raises(PictureError, match="the server ends"):
        decoder.upload(content(painted(1)), (None,))


def slow_jpeg(scans: int, side: int = 7000) -> bytes:
    """A progressive JPEG of as many scans as are let through, each over all pixels."""
    out = decoding.io.BytesIO()
    Image.new("RGB", (side, side)).save(out, "jpeg", progressive=True)
    plain = out.getvalue()
    last = plain.rindex(b"\xff\xda")
    return plain[:-2] + plain[last:-2] * scans + plain[-2:]


@pytest.mark.slow
def test_cpu_time_of_a_picture_is_limited():
    """Also without the server, which may have been killed."""
    picture, process = slow_jpeg(85), decoding._Process(0, 2**32)
    request = {"bytes": len(picture), "pixels": 60_000_000, "transforms": []}
    with pytest.raises((OSError, ValueError)):
        process.send(request, picture, 1000)
    assert process._process.wait() == -signal.SIGXCPU
    process.kill()


def test_memory_of_a_process_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "_BASE", 200 * 2**20)
    decoder = PictureDecoder(processes=1, pixels=25_000_000, seconds=20)
    monkeypatch.setattr(decoding, "_PER_PIXEL", 0)
    with pytest.raises(PictureError, match="needs too much memory") as error:
        decoder.upload(content(Image.new("1", (5000, 5000))), (None,))
    assert error.value.status_code == 413
    assert decoder.upload(content(painted(1)), (None,))[0].tobytes() == painted(1).tobytes()
    decoder.close()


def test_threads_of_many_requests_share_the_processes(tmp_path):
    decoder = PictureDecoder(processes=2, pixels=1_000_000, seconds=20)
    pictures = [painted(row) for row in range(12)]
    found: dict[int, bytes] = {}
    with ThreadPoolExecutor(2) as pool:
        for row in range(12):
            work = pool.submit(decoder.upload, content(pictures[row]), (None,))
            work.add_done_callback(
                lambda one, row=row: found.update({row: one.result()[0].tobytes()})
            )
    assert found == {row: picture.tobytes() for row, picture in enumerate(pictures)}
    assert len(decoder._all) <= 2
    decoder.close()
    assert not [thread for thread in decoder._threads._threads if thread.is_alive()]


def test_a_process_ends_with_the_server():
    """A server that is killed closes nothing, but its pipes are closed."""
    process = decoding._Process(20, 2**31)
    process._process.stdin.close()
    assert process._process.wait(60) == 0
    process.kill()


HEIC = b"\0\0\0\x18ftypheic" + bytes(1000)
READS_HEIC = """
from PIL import Image

def register_heif_opener():
    red = lambda file, name: Image.new("RGB", (int(file.read()[-1]), 10), "red")
    Image.register_open("HEIF", red, lambda head: head[4:12] == b"ftypheic")
"""


def test_heic_is_read_by_the_extra_within_the_same_limits(tmp_path, monkeypatch):
    (tmp_path / "pillow_heif.py").write_text(READS_HEIC)  # in the place of the extra
    monkeypatch.syspath_prepend(tmp_path)
    with closing(PictureDecoder(processes=1, pixels=1_000, seconds=20)) as decoder:
        (found,) = decoder.upload(HEIC + b"\x20", [None])
        assert (found.size, found.getpixel((0, 0))) == ((32, 10), (255, 0, 0))
        with pytest.raises(PictureError, match="200 x 10 pixels; at most 1,000 pixels"):
            decoder.upload(HEIC + b"\xc8", [None])


def test_heic_without_the_extra_names_it(tmp_path, monkeypatch):
    (tmp_path / "pillow_heif.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    needs = (
        r'HEIC, which this server reads with pip install "counterfoil\[phone\]" only; send it as'
    )
    with closing(PictureDecoder(processes=1, pixels=1_000, seconds=20)) as decoder:
        with pytest.raises(PictureError, match=needs) as error:
            decoder.upload(HEIC, [None])
        assert error.value.status_code == 415
