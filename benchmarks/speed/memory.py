"""Peak memory of a piece of work, above what the process held before it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, final

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


@final
class AnonymousPeak:
    """Bytes that a block held at most beside mapped files, above what was held before (Linux).

    >>> with AnonymousPeak() as peak:
    ...     held = bytes(10)
    >>> peak.bytes >= 0
    True
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        give_back()
        self._before = _bytes("RssAnon") if _STATUS.exists() else 0
        self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        time.sleep(0.06)
        self._done.set()
        self._watcher.join()

    def _watch(self) -> None:
        while _STATUS.exists() and not self._done.wait(0.05):
            self.bytes = max(self.bytes, _bytes("RssAnon") - self._before)


def words(size: int | None) -> str:
    """A size to read."""
    return "peak unknown" if size is None else f"peak +{size / 2**20:,.0f} MiB"
