"""The server under load: its slowest answers, and its memory after many requests of all kinds.

Clients and server share the machine. The clients speak by bare sockets: on few cores a client
library takes longer than the server. ``python -m benchmarks.speed.server`` sends every query of the
load once, however long that takes.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch
from PIL import Image

from benchmarks.speed import Result
from counterfoil.core.config import config, lazy
from counterfoil.data.processor import PixelProcessor, Processor
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import SPECIAL, WordTokenizer
from counterfoil.model import load_model
from counterfoil.models.layers.towers import GRU, PatchTower
from counterfoil.models.vsepp import VSEPP
from counterfoil.saved import save_model
from counterfoil.search.index import build_index
from counterfoil.search.vector_index import IndexEntry, IndexState, NewVectors, VectorIndex

WORDS = ("dog", "snow", "red", "circle", "picture", "in", "of", "the")
IMAGES, WIDTH = 30_000, 256
CLIENTS, EACH, LIMIT = 200, 1_000, 90.0  # queries of a client, and seconds of all
REQUESTS, WARM, FEW = (
    20_000,
    2_000,
    8,
)  # requests of all kinds, those before memory is read, clients
GROWTH = 1.1
Answer = tuple[str, float, list[tuple[str, float]]]  # text, seconds, ids with scores


def results(threads: int) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder:
        yield _load(Path(folder), threads, LIMIT)
        if threads == 1:
            yield _soak(Path(folder))


def _load(folder: Path, threads: int, limit: float) -> Result:
    index = wide_index(folder, IMAGES)
    vectors, queries = torch.randn(IMAGES, WIDTH), torch.randn(CLIENTS, WIDTH)
    start = time.perf_counter()
    for _ in range(10):
        torch.mm(queries, vectors.T)
    product = (time.perf_counter() - start) / 10
    texts = itertools.cycle(" ".join(words) for words in itertools.product(WORDS, repeat=4))
    each = [list(itertools.islice(texts, EACH)) for _ in range(CLIENTS)]
    with running(index, threads=threads) as (where, _):
        start = time.perf_counter()
        found = asyncio.run(ask_all(port_of(where), each, limit))
        wall = time.perf_counter() - start
    times = [seconds for _, seconds, _ in found]
    p50, p99 = np.quantile(times, [0.5, 0.99]).tolist()
    return Result(
        f"server, {CLIENTS} clients, {IMAGES:,} x {WIDTH}: 99 % of answers within",
        p99 / product,
        note=f"wall time; {len(found):,} queries in {wall:.0f} s without an error, "
        f"{len(found) / wall:.0f}/s, median {p50:.3f} s, "
        f"99 % {p99:.3f} s; product of {CLIENTS} queries {product:.4f} s",
    )


def _soak(folder: Path) -> Result:
    dataset = load_dataset("scenes:images=60")
    build_index(load_model(folder / "model"), dataset, folder / "scenes").close()
    kinds = _kinds(dataset.image_ids)
    with running(folder / "scenes") as (where, process):
        port, start = port_of(where), time.perf_counter()
        asyncio.run(_mix(port, kinds, WARM))
        before = family_bytes(process.pid)
        asyncio.run(_mix(port, kinds, REQUESTS - WARM))
        after = family_bytes(process.pid)
        wall = time.perf_counter() - start
    return Result(
        f"server, memory after {REQUESTS:,} mixed requests over that after {WARM:,}",
        after / before,
        GROWTH,
        note=f"{before / 1e6:.0f} MB, {after / 1e6:.0f} MB, all processes; {REQUESTS / wall:.0f}/s",
    )


def _kinds(ids: Sequence[str]) -> list[list[tuple[int, bytes]]]:
    """Requests of each kind, with the status of their answer."""
    out = io.BytesIO()
    Image.linear_gradient("L").save(out, "png")
    picture = out.getvalue()
    huge = io.BytesIO()
    Image.new("1", (4000, 4000)).save(huge, "png")
    texts = [" ".join(words) for words in itertools.product(WORDS, repeat=2)]
    return [
        [(200, post("/search", {"text": text})) for text in texts],
        [(200, get(f"/search?text={quote(text)}&top=3")) for text in texts],
        [(200, post("/similar", {"id": name})) for name in ids],
        [(200, get(f"/picture?id={quote(name, safe='')}")) for name in ids],
        [(200, post("/explain", {"id": name, "caption": "a red circle"})) for name in ids],
        [(200, upload(picture))] * 19 + [(200, upload(huge.getvalue()))],
        [(422, upload(picture[:200])), (415, upload(b"hello")), (400, upload(b""))],
        [(400, post("/search", {"text": ""})), (400, post("/search", {"texts": "a"}))],
        [(404, get(f"/{name}")) for name in range(1_000)],
        [(200, get("/metrics")), (200, get("/about")), (200, get("/")), (200, get("/page.js"))],
    ]


async def _mix(port: int, kinds: Sequence[Sequence[tuple[int, bytes]]], count: int) -> None:
    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for turn in range(number, count, FEW):
            kind = kinds[(turn // FEW + number) % len(kinds)]
            want, request = kind[turn // len(kinds) % len(kind)]
            status, body = await exchange(reader, writer, request)
            if status != want:
                raise RuntimeError(
                    f"{request[:60]!r} got {status} instead of {want}: {body[:200]!r}"
                )
        writer.close()

    await asyncio.gather(*map(one, range(FEW)))


async def ask_all(
    port: int, texts: Sequence[Sequence[str]], limit: float = float("inf")
) -> list[Answer]:
    """Answers to all texts, those of each client one after the other, until the time is over."""
    end = time.perf_counter() + limit

    async def one(own: Sequence[str]) -> list[Answer]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        found = []
        for text in own:
            start = time.perf_counter()
            if start > end:
                break
            status, body = await exchange(
                reader, writer, post("/search", {"text": text, "top": 10})
            )
            seconds = time.perf_counter() - start
            if status != 200:
                raise RuntimeError(f"{text!r} got {status}: {body[:200]!r}")
            hits = [(hit["id"], hit["score"]) for hit in json.loads(body)["results"]]
            found.append((text, seconds, hits))
        writer.close()
        return found

    return list(itertools.chain(*await asyncio.gather(*map(one, texts))))


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bytes]:
    """Status and body of the answer to a request."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split()[0])
    return int(head.split()[1]), await reader.readexactly(length)


def get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def post(route: str, body: object) -> bytes:
    return _post(route, "application/json", json.dumps(body).encode())


def upload(picture: bytes) -> bytes:
    head = b'--x\r\nContent-Disposition: form-data; name="picture"; filename="a.png"\r\n\r\n'
    return _post("/search", "multipart/form-data; boundary=x", head + picture + b"\r\n--x--\r\n")


def _post(route: str, kind: str, body: bytes) -> bytes:
    head = f"POST {route} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def port_of(where: str) -> int:
    return int(where.rstrip("/").rpartition(":")[2])


def family(number: int) -> list[int]:
    """A process and its children."""
    files = Path(f"/proc/{number}/task").glob("*/children")
    return [number, *(int(child) for file in files for child in file.read_text().split())]


def bytes_of(number: int, field: str) -> int:
    """A size in the status of a process, such as VmRSS."""
    text = Path(f"/proc/{number}/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    assert found is not None
    return 1024 * int(found[1])


def family_bytes(number: int) -> int:
    return sum(bytes_of(one, "VmRSS") for one in family(number))


def wide_index(root: Path, count: int) -> Path:
    """An index of many vectors without pictures, beside its model."""
    torch.manual_seed(0)
    words = [*SPECIAL, "a", *WORDS]
    text = lazy(GRU, words=len(words), width=WIDTH, word_width=64)
    image = lazy(PatchTower, size=16, patch=8, width=WIDTH, channels=4)
    spec = config(VSEPP, image=image, text=text)
    processor = Processor(PixelProcessor(16), WordTokenizer(words))
    save_model(root / "model", spec=spec, model=spec.build(), processor=processor)
    model = load_model(root / "model")
    vectors = torch.nn.functional.normalize(torch.randn(count, WIDTH), dim=1)
    state = IndexState(identity=model.identity(), model=str(root / "model"), width=WIDTH)
    index = VectorIndex.create(root / "index", state)
    index.change(images=NewVectors([IndexEntry(f"{row:06d}") for row in range(count)], vectors))
    index.close()
    return root / "index"


@contextmanager
def running(*words: object, threads: int = 1) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address and the process of ``counterfoil serve`` on a free port of this machine."""
    patient = ("--seconds", "120", *map(str, words), "--port", "0")  # on a busy machine, too
    command = [sys.executable, "-m", "counterfoil.cli", "serve", *patient]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        told = []
        try:
            for line in process.stdout:
                told.append(line)
                if found := re.search(r"http://\S+/", line):
                    break
            else:
                raise AssertionError("".join(told))
            yield found[0], process
        finally:
            process.kill()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        whole = _load(Path(place), 1, float("inf"))
    print(f"{whole.name}: {whole.ratio:.1f} x the plain product; {whole.note}")
