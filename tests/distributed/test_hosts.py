"""Two machines, each with an address of its own, mine what one does.

The machines are network namespaces of this one, which only root may make; they share its disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import recipes_cases

DATA = "scenes:images=80"
PORT = 29517
FILES = ("texts.npy", "images.npy", "text_scores.npy", "image_scores.npy")
NAMES = (f"counterfoil-{os.getpid()}-0", f"counterfoil-{os.getpid()}-1")
CABLE = (f"cf{os.getpid()}a", f"cf{os.getpid()}b")
ADDRESSES = ("10.213.77.1", "10.213.77.2")

pytestmark = pytest.mark.slow


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[str, str]]:
    """Two namespaces with a cable between them."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("two hosts are made of network namespaces: `ip` and root are needed")
    try:
        ip("netns", "add", NAMES[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine makes no network namespace: {error.stderr.strip()}")
    try:
        ip("netns", "add", NAMES[1])
        ip("link", "add", CABLE[0], "type", "veth", "peer", "name", CABLE[1])
        for name, cable, address in zip(NAMES, CABLE, ADDRESSES, strict=True):
            ip("link", "set", cable, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield NAMES
    finally:
        for name in NAMES:  # takes the cable along
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def started(host: int, *words: object) -> subprocess.Popen[str]:
    """A command on one of the hosts, by torchrun."""
    torchrun = (
        *("torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"),
        *("--rdzv-id=mining", f"--rdzv-endpoint={ADDRESSES[0]}:{PORT}"),
        f"--local-addr={ADDRESSES[host]}",
        f"--rdzv-conf=is_host={int(host == 0)}",  # a namespace cannot tell by its name
    )
    inside = ("ip", "netns", "exec", NAMES[host])
    return subprocess.Popen(
        [*inside, sys.executable, "-m", *torchrun, "-m", "counterfoil.cli", *map(str, words)],
        env=os.environ | {"GLOO_SOCKET_IFNAME": CABLE[host], "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def both(*words: object) -> list[int]:
    """Exit codes of the same command on both hosts."""
    jobs = [started(host, *words) for host in (0, 1)]
    try:
        said = [job.communicate(timeout=240)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    codes = [job.returncode for job in jobs]
    assert not any(codes), "\n".join(said)
    return codes


def mine(model: Path, out: Path) -> tuple[object, ...]:
    lists = ("--texts-per-image", "20", "--images-per-text", "5", "--resume")
    return "mine", model, "--data", DATA, "--output", out, *lists


def content(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


def test_two_hosts_mine_what_one_does(hosts, tmp_path):
    model = recipes_cases.pixel_model(tmp_path / "model")
    assert recipes_cases.run(*mine(model, tmp_path / "alone")) == 0
    both(*mine(model, tmp_path / "together"))
    assert content(tmp_path / "together") == content(tmp_path / "alone")
    assert not list(tmp_path.glob("*.partial"))


def test_two_hosts_have_addresses_of_their_own(hosts):
    for host, name in enumerate(hosts):
        shown = subprocess.run(
            ["ip", "-n", name, "-brief", "addr"], check=True, capture_output=True, text=True
        ).stdout
        assert ADDRESSES[host] in shown
        assert ADDRESSES[1 - host] not in shown
