"""Processes that `torchrun` starts end in order."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.slow

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


@pytest.mark.skipif(torch.cuda.is_available(), reason="of groups without GPUs")
def test_a_joined_process_leaves_before_it_ends() -> None:
    """A gloo group that outlives the interpreter aborts the process now and then."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen([sys.executable, "-c", CODE], env={**shared, "RANK": str(rank)})
        for rank in range(2)
    ]
    assert [one.wait(60) for one in started] == [0, 0]
