"""Thumbnails that were asked for lately."""

from __future__ import annotations

from collections import OrderedDict
from typing import final

MOST = 64_000_000  # bytes


@final
class Thumbnails:
    """Keeps what was used last, up to so many bytes; used from one thread.

    Args:
        most: bytes.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._size = most, 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: str) -> bytes | None:
        """What was put under a name; None where it is no longer there."""
        if name in self._kept:
            self._kept.move_to_end(name)
        return self._kept.get(name)

    def put(self, name: str, content: bytes) -> None:
        """Keep this, and let go of what was not used for longest."""
        self._size += len(content) - len(self._kept.pop(name, b""))
        self._kept[name] = content
        while self._size > self._most:
            _, gone = self._kept.popitem(last=False)
            self._size -= len(gone)
