"""Runs a function in several gloo processes on this machine."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp


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
        results = [out.get(timeout=60) for _ in jobs]
        for job in jobs:
            job.join(10)
            job.kill()
    for rank, _, error in results:
        assert error is None, f"process {rank}: {error}"
    return [value for _, value, _ in sorted(results, key=lambda result: result[0])]
