"""Runs functions in processes of their own: gloo groups, and such as are stopped or killed."""

from __future__ import annotations

import os
import queue
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp

PATIENCE = 600  # seconds until what never comes is given up; a busy machine takes its time


def _one(
    worker: Callable[..., Any], rank: int, size: int, folder: str, args: Any, out: Any
) -> None:
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size
        )
        out.put((rank, worker(*args), None))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        out.put((rank, None, traceback.format_exc()))


def run(worker: Callable[..., Any], size: int, *args: Any) -> list[Any]:
    """What `worker(*args)` returned on each of `size` processes; plain values or NumPy arrays."""
    context = mp.get_context("fork")
    out = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            context.Process(target=_one, args=(worker, rank, size, folder, args, out))
            for rank in range(size)
        ]
        for job in jobs:
            job.start()
        try:
            results = [_next(out, jobs) for _ in jobs]
        finally:
            for job in jobs:
                job.join(10)
                job.kill()
    for rank, _, error in results:
        assert error is None, f"process {rank}: {error}"
    return [value for _, value, _ in sorted(results, key=lambda result: result[0])]


def _next(out: Any, jobs: list[Any]) -> Any:
    """What the next process says, unless one has died without a word."""
    until = time.monotonic() + PATIENCE
    while True:
        dead = [job.exitcode for job in jobs if job.exitcode]
        try:
            return out.get(timeout=1)
        except queue.Empty:
            assert not dead, f"processes ended with {dead}"
            assert time.monotonic() < until, "the processes never came to an end"


def forked(act: Callable[[], object]) -> int:
    """Do something in a process of its own, in silence; its number.

    It exits with what the function returns, and with 1 for an exception.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        code = int(act() or 0)
    finally:
        os._exit(code)


def wait_for(there: Callable[[], object], child: int) -> None:
    """Until something is there that a process makes."""
    until = time.monotonic() + PATIENCE
    while not there():
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            assert there(), "the process ended before what it makes was there"
            return
        assert time.monotonic() < until, "what the process makes never came"
        time.sleep(0.002)


def wait_for_another(path: Path, job: Any) -> None:
    """Until a file is another one than now, or a job, which is begun if it was not, has ended."""
    now = path.stat().st_ino if path.exists() else 0
    if job.pid is None:
        job.start()
    while job.is_alive() and (not path.exists() or path.stat().st_ino == now):
        time.sleep(0.0005)


def ended(child: int) -> int:
    """The exit code of a process at its end; of one that was killed, the signal below zero."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed(child: int) -> bool:
    """Kill a process; whether it had not yet come to its end, which must be a good one."""
    os.kill(child, signal.SIGKILL)
    code = ended(child)
    assert code in (0, -signal.SIGKILL)
    return code != 0


def cut(begun: Callable[[Path], int], root: Path, *moments: str) -> Path:
    """A folder whose process was killed as soon as it held a file, and begun again for the next.

    On a busy machine some get away; then another folder is tried.

    Args:
        begun: begins a process, or goes on, in a folder; its number.
        root: of the folders.
        moments: patterns of the files, in the order they come.
    """
    for attempt in range(10):
        folder = root / f"cut-{attempt}"
        if all(_cut_at(begun, folder, moment) for moment in moments):
            return folder
    raise AssertionError(f"ten came to their end before they were killed at {moments}")


def _cut_at(begun: Callable[[Path], int], folder: Path, moment: str) -> bool:
    child = begun(folder)
    wait_for(lambda: any(folder.glob(moment)), child)
    return killed(child)
