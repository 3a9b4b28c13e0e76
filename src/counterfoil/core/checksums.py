"""Checksums of files, block by block: quick to compare when a large file is opened.

A file of up to 16 MiB is compared whole, a larger one in 16 blocks spread evenly over it, both ends
among them; `every` reads all.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from counterfoil.core.io import read_json, write_json

BLOCK = 1 << 20  # bytes under one checksum
SAMPLED = 16  # blocks that are compared of a large file
SUMS = ".sums.json"  # ends the name of the file with the checksums of one


def checksums(path: Path, blocks: Sequence[int] | None = None) -> Iterator[int]:
    """CRC-32 of the blocks of a file; all of them, or those at the given places."""
    with path.open("rb") as file:
        for place in count() if blocks is None else blocks:
            file.seek(place * BLOCK)
            block = file.read(BLOCK)
            if not block and blocks is None:
                return
            yield zlib.crc32(block)


def fits(path: Path, sums: object, *, every: bool = False) -> bool:
    """Return True if a file has these checksums, a list of all its blocks."""
    blocks = -(-path.stat().st_size // BLOCK)
    if not isinstance(sums, list) or len(sums) != blocks:
        return False
    places: Sequence[int] = range(blocks)
    if not every and blocks > SAMPLED:
        places = [place * (blocks - 1) // (SAMPLED - 1) for place in range(SAMPLED)]
    return all(sums[place] == sum_ for place, sum_ in zip(places, checksums(path, places)))


def write_sums(path: Path) -> None:
    """Write the checksums of a file beside it."""
    write_json(path.with_name(path.name + SUMS), [*checksums(path)])


def fits_sums(path: Path) -> bool:
    """Return True if a file fits the checksums beside it; False where there are none."""
    try:
        return fits(path, read_json(path.with_name(path.name + SUMS), "checksums"))
    except ValueError:
        return False
