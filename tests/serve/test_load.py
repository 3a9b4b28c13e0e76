"""Load test: no request is refused, and every answer equals the offline one."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import time

import httpx
import numpy as np
import pytest

from counterfoil.search.index import open_index
from serve_cases import running, wide_index

CLIENTS, EACH, IMAGES = 200, 5, 30_000
WORDS = ("dog", "snow", "red", "circle", "picture", "in", "of", "the")
HEAD = (
    b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)
TEXTS = [" ".join(words) for words in itertools.product(WORDS, repeat=4)][: CLIENTS * EACH]


async def asked(port: int) -> list[tuple[str, float, list[tuple[str, float]]]]:
    """Every text with its seconds and results, sent by concurrent clients.

    They speak by bare sockets: on few cores a client library takes longer than the server.
    """

    async def one(number: int):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        found = []
        for text in TEXTS[number::CLIENTS]:
            body = json.dumps({"text": text, "top": 10}).encode()
            began = time.perf_counter()
            writer.write(HEAD % len(body) + body)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split()[0])
            answer = await reader.readexactly(length)
            seconds = time.perf_counter() - began
            assert head.startswith(b"HTTP/1.1 200 "), answer
            hits = [(hit["id"], hit["score"]) for hit in json.loads(answer)["results"]]
            found.append((text, seconds, hits))
        writer.close()
        return found

    return list(itertools.chain(*await asyncio.gather(*map(one, range(CLIENTS)))))


@pytest.mark.slow
def test_two_hundred_concurrent_clients(tmp_path, capsys):
    index = wide_index(tmp_path, IMAGES)
    with running(index, "--seconds", 120) as (where, process):
        began = time.perf_counter()
        found = asyncio.run(asked(httpx.URL(where).port))
        wall = time.perf_counter() - began
        told = httpx.get(f"{where}metrics", timeout=120).text
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    assert len(found) == CLIENTS * EACH
    assert f'counterfoil_requests_total{{route="/search",status="200"}} {CLIENTS * EACH}' in told
    (batches,) = [
        float(line.split()[1])
        for line in told.splitlines()
        if line.startswith("counterfoil_batches_total ")
    ]
    assert batches < len(found) / 2
    with open_index(index) as offline:
        for text, _, hits in found:
            assert hits == [(hit.id, hit.score) for hit in offline.search(text, 10)]
    times = [seconds for _, seconds, _ in found]
    with capsys.disabled():
        print(
            f"\n{len(found)} queries, {CLIENTS} at once, of {IMAGES:,} images x 256: p50 "
            f"{np.quantile(times, 0.5):.3f} s, p99 {np.quantile(times, 0.99):.3f} s, "
            f"{len(found) / wall:.0f} a second, {batches:.0f} batches"
        )
