"""Load test: no request is refused, and every answer equals the offline one."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time

import httpx
import numpy as np
import pytest

from benchmarks.speed.server import WORDS, ask_all, port_of, running, wide_index
from counterfoil.search.index import open_index

CLIENTS, EACH, IMAGES = 200, 5, 30_000
TEXTS = [" ".join(words) for words in itertools.product(WORDS, repeat=4)][: CLIENTS * EACH]


@pytest.mark.slow
def test_two_hundred_concurrent_clients(tmp_path, capsys):
    index = wide_index(tmp_path, IMAGES)
    with running(index, "--seconds", 120) as (where, process):
        began = time.perf_counter()
        found = asyncio.run(ask_all(port_of(where), [TEXTS[n::CLIENTS] for n in range(CLIENTS)]))
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
