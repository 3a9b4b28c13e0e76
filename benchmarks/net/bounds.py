"""What may differ between the two sides, and why. Whatever is not listed has to be equal."""

from __future__ import annotations

from typing import NamedTuple


class Bound(NamedTuple):
    """How far numbers of a case may lie apart, as `benchmarks.net.compare.apart` measures."""

    most: float
    reason: str


# By case. A step that changes the order of operations or of draws says so here, and the next one
# starts from its commit and takes the line out.
BOUNDS: dict[str, Bound] = {}

# Keys of JSON whose single values (never lists or objects) are left out everywhere, and why.
VOLATILE = {
    "seconds": "clock",
    "dev_seconds": "clock",
    "mined_seconds": "clock",
    "pairs_per_second": "clock",
    "memory_mb": "depends on the allocator",
    "versions": "of libraries and of the package",
    "path": "absolute, in the scratch folder of the side",
    "digest": "of settings as they are written, which a new name changes",
}

# A speed figure is worse when the lower of its two measurements is above the old side's by this
# share: on a quiet machine, figures of the same code lie up to a tenth apart.
SLOWER = 0.15
