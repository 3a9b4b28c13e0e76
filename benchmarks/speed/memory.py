"""Peak memory of a piece of work, above what the process held before it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def _bytes(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def give_back() -> None:
    """Return what the allocator holds on to, which would hide the next peak."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def peak(work: Callable[[], object]) -> int | None:
    """Bytes that `work` needed at most; None where the kernel does not tell (not Linux)."""
    give_back()
    try:
        _CLEAR.write_text("5")  # the high-water mark starts again from what is held now
        before = _bytes("VmRSS")
    except OSError:
        work()
        return None
    work()
    return max(0, _bytes("VmHWM") - before)


def words(size: int | None) -> str:
    """A size to read."""
    return "peak unknown" if size is None else f"peak +{size / 2**20:,.0f} MiB"
