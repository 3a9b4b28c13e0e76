"""Decodes pictures in processes of their own, with limits of time and memory.

A picture of some kilobytes can cost a decoder minutes and gigabytes, and no thread that decodes can
be ended. `PictureDecoder` keeps a few processes (this module, run as a script) that import Pillow
and NumPy only. A process that exceeds a limit is killed, and the next picture starts another one.

A request is a line of JSON and the bytes of the picture; an answer is a line of JSON and the RGB
bytes of pictures, or a JPEG.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, TypeVar, final

from PIL import Image, UnidentifiedImageError

from counterfoil.core.rgb import rgb
from counterfoil.data.images import (
    MOST_SCANS,
    ImageTransform,
    ResizeCrop,
    ResizeKeepAspect,
    decode_picture,
    phone_format,
    read_phone_formats,
    shrink,
    too_many_scans,
)

T = TypeVar("T")

FULL = 2048  # pixels of the longer side of a picture that a person looks at
THUMBNAIL = 448  # pixels of the longer side; the page shows it at half of that or less
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_HEIC = (
    'the picture is HEIC, which this server reads with pip install "counterfoil[phone]" only; '
    "send it as JPEG"
)
PATIENCE = 3  # seconds by the clock for each CPU second, as other processes want the CPU too
_BASE, _PER_PIXEL = 512 * 2**20, 32  # bytes of a process: libraries; copies with 4 bytes a pixel
_LONGEST = 65_535  # pixels of a side, JPEG's most
_BROKEN = "the picture takes too long to decode, or breaks the decoder; save it again and retry"
_GONE = "the picture cannot be read any more"
_SECRETS = ("COUNTERFOIL_KEY",)  # not for a process that reads what strangers send


@final
class PictureError(Exception):
    """A picture is refused.

    Attributes:
        status_code: of the HTTP answer.
        detail: the reason, in one sentence.
    """

    def __init__(self, status_code: int, detail: str) -> None:
        super().__init__(detail)
        self.status_code, self.detail = status_code, detail


def decode_upload(content: bytes, pixels: int) -> Image.Image:
    """Decode an uploaded picture to RGB; its number of pixels is checked before.

    Raises:
        PictureError: it is too large, damaged, or no picture.
    """
    if not content:
        raise PictureError(400, "the uploaded file is empty; choose a picture")
    try:
        with Image.open(io.BytesIO(content), formats=_formats(content)) as image:
            if image.width * image.height > pixels:
                raise _too_many_pixels(f"has {image.width} x {image.height} pixels", pixels)
            if max(image.size) > _LONGEST:
                side = f"has a side of {max(image.size):,} pixels; at most {_LONGEST:,} are taken"
                raise PictureError(413, f"the picture {side}")
            if too_many_scans(image):
                message = f"the picture has more than {MOST_SCANS} scans; save it again and retry"
                raise PictureError(413, message)
            return rgb(image)
    except PictureError:
        raise
    except UnidentifiedImageError:
        known = ", ".join(FORMATS)
        message = f"the upload is no picture that can be read; accepted are {known}"
        raise PictureError(415, message) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many_pixels("is too large", pixels) from None
    except MemoryError:
        message = "the picture needs too much memory to decode; save it again and retry"
        raise PictureError(413, message) from None
    except Exception:  # decoders raise anything at damaged bytes
        message = "the picture is damaged or cut off; save it again and retry"
        raise PictureError(422, message) from None


def _formats(content: bytes) -> tuple[str, ...]:
    """The formats that an upload may have: HEIC of a phone only where the extra is installed."""
    if phone_format(content[:12]) != "HEIC":
        return FORMATS
    try:
        read_phone_formats(_HEIC)
    except ValueError as error:
        raise PictureError(415, str(error)) from None
    return ("HEIF",)


def _too_many_pixels(size: str, pixels: int) -> PictureError:
    return PictureError(413, f"the picture {size}; at most {pixels:,} pixels are accepted")


def thumbnail(picture: Image.Image, longest: int = THUMBNAIL) -> bytes:
    """JPEG of a picture with a longer side of at most `longest`, without its metadata."""
    picture.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    picture.save(out, "jpeg", quality=85, comment=b"")  # Pillow copies the comment otherwise
    return out.getvalue()


@final
class PictureDecoder:
    """Processes that decode pictures, and a thread that waits for each of them.

    Args:
        processes: pictures decoded at the same time; the processes start when they are needed.
        pixels: maximum of an uploaded picture; the memory of a process follows it.
        seconds: CPU time of a picture.
    """

    def __init__(self, *, processes: int, pixels: int, seconds: int) -> None:
        self._pixels, self._seconds = pixels, seconds
        self._threads = ThreadPoolExecutor(processes, "pictures")
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._lock, self._closed = threading.Lock(), False
        self._end = weakref.finalize(self, _kill, self._all)

    async def run(self, work: Callable[..., T], *values: object) -> T:
        """Run work in a thread: `upload`, `open`, `thumbnail`, or a function that calls them."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *values)

    def upload(
        self, content: bytes, transforms: Sequence[ImageTransform | None]
    ) -> list[Image.Image]:
        """Decode an uploaded picture and shrink it for each transform, see `shrink`.

        Where the transform is not known, that is the picture itself.

        Raises:
            PictureError: it is refused.
        """
        return self._pictures(content, transforms, pixels=self._pixels)

    def open(self, path: Path, transform: ImageTransform | None) -> Image.Image:
        """Decode a picture file and shrink it for a transform.

        Raises:
            PictureError: it cannot be read.
        """
        return self._pictures(b"", (transform,), path=str(path))[0]

    def thumbnail(self, path: Path, longest: int = THUMBNAIL) -> bytes:
        """A JPEG of a picture file, at most `longest` wide and high, decoded in a worker process.

        Raises:
            PictureError: the file cannot be read.
        """
        return self._send({"path": str(path), "thumbnail": longest}, b"")[1]

    def close(self) -> None:
        """Kill the processes, even those that decode."""
        with self._lock:
            self._closed = True
        self._end()
        self._threads.shutdown(cancel_futures=True)

    def _pictures(
        self, content: bytes, transforms: Sequence[ImageTransform | None], **more: object
    ) -> list[Image.Image]:
        # two models often share a transform
        distinct = list(dict.fromkeys(transforms))
        request = {
            "transforms": [transform and asdict(transform) for transform in distinct],
            **more,
        }
        answer, body = self._send(request, content)
        images, start = [], 0
        for width, height in answer["sizes"]:
            stop = start + 3 * width * height
            images.append(Image.frombytes("RGB", (width, height), body[start:stop]))
            start = stop
        return [images[distinct.index(transform)] for transform in transforms]

    def _send(self, request: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
        process = self._take()
        try:
            answer, body = process.send({**request, "bytes": len(content)}, content, self._seconds)
        except (OSError, ValueError):
            self._forget(process)
            if self._closed:
                raise PictureError(503, "the server ends; try again in a moment") from None
            raise PictureError(422, _BROKEN) from None
        self._idle.append(process)
        if "status" in answer:
            raise PictureError(answer["status"], answer["detail"])
        return answer, body

    def _forget(self, process: _Process) -> None:
        with self._lock:
            self._all.discard(process)
        process.kill()

    def _take(self) -> _Process:
        while self._idle:  # a list is safe between threads
            process = self._idle.pop()
            if process.alive:
                return process
            self._forget(process)
        with self._lock:
            if self._closed:
                raise PictureError(503, "the server ends; try again in a moment")
            process = _Process(self._seconds, _BASE + _PER_PIXEL * self._pixels)
            self._all.add(process)
        return process


@final
class _Process:
    """A process that decodes one picture after the other."""

    def __init__(self, seconds: int, memory: int) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            # -P: a module in the current folder is not Pillow
            [sys.executable, "-P", "-m", __name__, str(seconds), str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # libraries write there what the pictures say
            start_new_session=True,  # Ctrl-C ends the server, which finishes open requests
            env={
                **environment,
                "PYTHONPATH": paths,
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
        )

    @property
    def alive(self) -> bool:
        """True if it has not ended."""
        return self._process.poll() is None

    def send(
        self, request: dict[str, Any], content: bytes, seconds: int
    ) -> tuple[dict[str, Any], bytes]:
        """Answer to a request.

        Raises:
            OSError, ValueError: the process has ended, or was killed after its time.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        # it limits its CPU time; a decoder that waits for something uses none
        watch = threading.Timer(PATIENCE * seconds, process.kill)
        watch.start()
        try:
            _write(process.stdin, request, content)
            answer = json.loads(process.stdout.readline())
            body = process.stdout.read(answer["bytes"])
        finally:
            watch.cancel()
        if len(body) < answer["bytes"]:
            raise ValueError("the process has ended")
        return answer, body

    def kill(self) -> None:
        """End it now."""
        process = self._process
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not written yet
                    pipe.close()


def _kill(processes: set[_Process]) -> None:
    while processes:
        processes.pop().kill()


def _write(pipe: IO[bytes], head: dict[str, Any], body: bytes) -> None:
    pipe.write(json.dumps(head).encode() + b"\n" + body)
    pipe.flush()


# The process.


def _serve(seconds: int, memory: int) -> None:
    """Answer requests until the server closes the pipe."""
    _limit("AS", memory)
    _limit("CORE", 0)
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        content = sys.stdin.buffer.read(request["bytes"])
        # the kernel counts from the start of the process
        _limit("CPU", int(time.process_time()) + seconds + 1)
        try:
            answer, body = _answer(request, content)
        except PictureError as error:
            answer, body = {"status": error.status_code, "detail": error.detail}, b""
        except Exception:  # its message may name a path of the index
            status, detail = (404, _GONE) if "path" in request else (422, _BROKEN)
            answer, body = {"status": status, "detail": detail}, b""
        _write(sys.stdout.buffer, {**answer, "bytes": len(body)}, body)


def _limit(name: str, value: int) -> None:
    """Limit a resource of this process; the kernel kills it, or refuses memory."""
    try:
        import resource
    except ImportError:  # on Windows the clock alone limits a picture
        return
    kind = getattr(resource, f"RLIMIT_{name}")
    hard = resource.getrlimit(kind)[1]
    with suppress(OSError, ValueError):  # macOS limits no memory; another limit may be lower
        resource.setrlimit(kind, (value, hard))


def _answer(request: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    path = Path(request.get("path", ""))
    if longest := request.get("thumbnail"):
        return {}, thumbnail(decode_picture(path, path.name, longest=longest), longest)
    if "path" in request:
        picture = decode_picture(path, path.name)
    else:
        picture = decode_upload(content, request["pixels"])
    pictures = [_shrunk(picture, transform) for transform in request["transforms"]]
    body = b"".join(picture.tobytes() for picture in pictures)
    return {"sizes": [picture.size for picture in pictures]}, body


def _shrunk(picture: Image.Image, settings: dict[str, Any] | None) -> Image.Image:
    if settings is None:
        return picture
    kind = ResizeCrop if "fit" in settings else ResizeKeepAspect
    return shrink(picture, kind(**settings))


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
