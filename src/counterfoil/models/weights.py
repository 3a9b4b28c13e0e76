"""Authors' checkpoints by system; each has a module of its own for the names of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from counterfoil.models.authors import Checkpoint, Converted, read_checkpoint
from counterfoil.models.chan_names import chan
from counterfoil.models.esa_names import esa
from counterfoil.models.gpo_names import gpo
from counterfoil.models.hrem_names import hrem
from counterfoil.models.scan_names import bfan, scan, vsepp
from counterfoil.models.vsrn_names import vsrn
from counterfoil.spec import unknown

SYSTEMS: Mapping[str, Callable[[Checkpoint], Converted]] = {
    "vsepp": vsepp,
    "scan": scan,
    "bfan": bfan,
    "vsrn": vsrn,
    "gpo": gpo,
    "esa": esa,
    "hrem": hrem,
    "chan": chan,
}


def convert(path: Path, system: str) -> Converted:
    """Read and convert an authors' checkpoint of one of `SYSTEMS`.

    Raises:
        ValueError: no such system, or the file is not one of its checkpoints.
    """
    if system not in SYSTEMS:
        raise ValueError(unknown(system, list(SYSTEMS), "a system whose checkpoints are read"))
    return SYSTEMS[system](read_checkpoint(path))
