"""Processes that `torchrun` starts end in order."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest
import torch

from counterfoil.cli import main
from counterfoil.core.io import write_lock

CODE = """
import atexit, os
import torch
import torch.distributed as dist
from counterfoil.core import distributed
atexit.register(lambda: os._exit(0 if not dist.is_initialized() else 7))  # runs after those of join
assert distributed.init()
known = dist.group.WORLD._get_backend(torch.device("cpu")).options
assert known._timeout.total_seconds() > 12 * 3600, "one may prepare data while others wait"
distributed.barrier()
"""


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="of groups without GPUs"),
]
RUN = ("run", "online", "--data", "scenes:images=400", "--output")


def processes(*command: object) -> list[subprocess.Popen[str]]:
    """Two processes of a group, as `torchrun` starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    return [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            text=True,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]


def test_a_joined_process_leaves_before_it_ends() -> None:
    """A gloo group that outlives the interpreter aborts the process now and then."""
    for process in processes("-c", CODE):
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_others_with_a_sentence(rank, tmp_path) -> None:
    both = processes("-m", "counterfoil.cli", *RUN, tmp_path / "run")
    while not list(tmp_path.glob("run/online/metrics.jsonl")):  # one epoch is done
        assert both[0].poll() is None, both[0].communicate()
        time.sleep(0.05)
    both[rank].kill()
    both[rank].communicate()
    _, errors = both[1 - rank].communicate(timeout=60)
    assert both[1 - rank].returncode == 3
    assert "another process of this run ended first" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    again = [*RUN, tmp_path / "run", "--smoke"]
    assert main([str(word) for word in again]) == 2  # the stopped run is still there


def test_a_lock_refuses_all_processes(tmp_path) -> None:
    folder = tmp_path / "run"
    with write_lock(folder / ".lock", folder):
        for process in processes("-m", "counterfoil.cli", *RUN, folder):
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 2
            assert f"is being written by process {os.getpid()} on" in errors.splitlines()[-1]
