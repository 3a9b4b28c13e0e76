"""Checksums of files, block by block: quick to compare when a large file is opened.

A file of up to 16 MiB is compared whole, a larger one in 16 blocks spread evenly over it, both ends
among them; `every` reads all.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Self, final

from pydantic import BaseModel, ConfigDict, Field

BLOCK = 1 << 20  # bytes under one checksum
SAMPLED = 16  # blocks that are compared of a large file
_DIGITS = 8  # of a checksum, in hex


@final
class FileSums(BaseModel):
    """Size of a file, and the CRC-32 of each of its blocks.

    Attributes:
        size: in bytes.
        sums: eight hex digits for each block.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    size: int = Field(default=0, ge=0)
    sums: str = Field(default="", pattern=r"^([0-9a-f]{8})*$")

    @classmethod
    def of(cls, path: Path) -> Self:
        """The size and checksums of a file as it is."""
        return cls(size=path.stat().st_size, sums="".join(map(_hex, _block_sums(path))))

    def extended(self, data: bytes) -> FileSums:
        """Those of the file after more bytes have been appended; the last block goes on."""
        sums, filled = self.sums, self.size % BLOCK
        first = data[: BLOCK - filled] if filled else b""
        if first:
            last = int(sums[-_DIGITS:], 16)
            sums = sums[:-_DIGITS] + _hex(zlib.crc32(first, last))
        rest = range(len(first), len(data), BLOCK)
        sums += "".join(_hex(zlib.crc32(data[start : start + BLOCK])) for start in rest)
        return FileSums(size=self.size + len(data), sums=sums)

    def fit(self, path: Path, *, every: bool = False) -> bool:
        """Return True if a file has this size and these checksums; `every` reads it whole."""
        blocks = -(-self.size // BLOCK)
        if path.stat().st_size != self.size or len(self.sums) != _DIGITS * blocks:
            return False
        places: Sequence[int] = range(blocks)
        if not every and blocks > SAMPLED:
            places = [place * (blocks - 1) // (SAMPLED - 1) for place in range(SAMPLED)]
        known = (self.sums[_DIGITS * place : _DIGITS * (place + 1)] for place in places)
        return all(one == _hex(other) for one, other in zip(known, _block_sums(path, places)))


def _hex(number: int) -> str:
    return f"{number:0{_DIGITS}x}"


def _block_sums(path: Path, blocks: Sequence[int] | None = None) -> Iterator[int]:
    """CRC-32 of the blocks of a file; all of them, or those at the given places."""
    with path.open("rb") as file:
        for place in count() if blocks is None else blocks:
            file.seek(place * BLOCK)
            block = file.read(BLOCK)
            if not block and blocks is None:
                return
            yield zlib.crc32(block)
