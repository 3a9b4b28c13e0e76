"""Waiting: seconds from a command's start in a fresh process to its answer.

Starting is the work of one thread, so its CPU time is the figure: the clock of a busy machine says
how busy it is. The median of `RUNS`, after one that writes the compiled modules. Most of it is
PyTorch's import, which is measured between the runs. Models whose network comes from transformers
also import that, 2 to 3 s more.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from benchmarks.speed import Result
from benchmarks.speed.server import family, wide_index

RUNS, IMAGES = 5, 30_000
HELP, SERVE, QUERY = 0.3, 3.0, 0.3  # seconds
SEARCH = 1.3  # times the import of torch alone
_TICKS = os.sysconf("SC_CLK_TCK")
_COMMAND = (sys.executable, "-m", "counterfoil.cli")
Seconds = tuple[float, float]  # CPU and wall


def results(threads: int) -> Iterator[Result]:
    """Help, a search and a server; on one thread alone, as more change nothing."""
    if threads > 1:
        return
    with tempfile.TemporaryDirectory() as folder:
        index = str(wide_index(Path(folder), IMAGES))
        yield _result("counterfoil --help", HELP, lambda: ended(*_COMMAND, "--help"))
        search = f"counterfoil search, {IMAGES:,} images: first result"
        command = (*_COMMAND, "search", index, "a dog in the snow")
        yield _result(search, SEARCH, lambda: ended(*command), to_torch=True)
        served = [serving(index) for _ in range(RUNS + 1)][1:]
        for name, target, times in (
            ("up", SERVE, [start for start, _ in served]),
            ("first query", QUERY, [query for _, query in served]),
        ):
            yield _described(f"counterfoil serve, {IMAGES:,} images: {name}", target, times, "")


def _result(
    name: str, target: float, work: Callable[[], Seconds], *, to_torch: bool = False
) -> Result:
    work()  # writes the compiled modules
    pairs = [(work(), ended(sys.executable, "-c", "import torch")) for _ in range(RUNS)]
    torch_alone = median(cpu for _, (cpu, _) in pairs)
    target *= torch_alone if to_torch else 1
    return _described(name, target, [own for own, _ in pairs], f", import torch {torch_alone:.2f}")


def _described(name: str, target: float, times: list[Seconds], more: str) -> Result:
    cpu, wall = (median(values) for values in zip(*times, strict=True))
    return Result(name, cpu, target, note=f"seconds of CPU{more}; {wall:.2f} s wall", unit="s")


def ended(*command: str) -> Seconds:
    """Run a command to its end."""
    start, before = time.perf_counter(), os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=_environment())
    wall, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system
    return cpu - before.children_user - before.children_system, wall


def serving(index: str) -> tuple[Seconds, Seconds]:
    """Start a server, until it prints its address, and ask it once."""
    start = time.perf_counter()
    command = (*_COMMAND, "serve", index, "--port", "0")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_environment()
    ) as process:
        assert process.stdout is not None
        try:
            address = next(
                found[0]
                for line in process.stdout
                if (found := re.search(r"http://\S+/", line)) is not None
            )
            up = _used(process.pid), time.perf_counter() - start
            with urllib.request.urlopen(f"{address}search?text=a+dog+in+the+snow") as answer:
                answer.read()
            both = _used(process.pid), time.perf_counter() - start
        finally:
            process.kill()
    return up, (both[0] - up[0], both[1] - up[1])


def _used(number: int) -> float:
    """CPU seconds of a process and its children."""
    stats = (Path(f"/proc/{one}/stat").read_text() for one in family(number))
    ticks = (text.rpartition(")")[2].split()[11:13] for text in stats)  # user and system
    return sum(int(value) for pair in ticks for value in pair) / _TICKS


def _environment() -> dict[str, str]:
    compiled = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**compiled, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
