"""Authors' checkpoints by system; each has a module of its own for the names of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from counterfoil.core.literals import parse_choice
from counterfoil.models.authors import Checkpoint, Converted, read_checkpoint
from counterfoil.models.chan_names import chan
from counterfoil.models.dive_names import dive
from counterfoil.models.esa_names import esa
from counterfoil.models.gpo_names import gpo
from counterfoil.models.hrem_names import hrem
from counterfoil.models.scan_names import bfan, scan, vsepp
from counterfoil.models.uniter_names import uniter
from counterfoil.models.vsrn_names import vsrn


class ReadsBert(Protocol):
    """Converts checkpoints whose texts may be read by BERT."""

    def __call__(self, checkpoint: Checkpoint, *, bert: str) -> Converted:
        """The checkpoint, with BERT's configuration from this folder or name."""


# VSE-infinity and what grew from it; training adds a word to the vocabulary, for masked words
MODERN: Mapping[str, ReadsBert] = {
    "gpo": gpo,
    "chan": chan,
    "esa": esa,
    "hrem": hrem,
    "dive": dive,
}
# read wordpieces with embeddings of their own: there is no text model to configure
WHOLE = frozenset({"uniter"})
SYSTEMS: Mapping[str, Callable[[Checkpoint], Converted]] = {
    "vsepp": vsepp,
    "scan": scan,
    "bfan": bfan,
    "vsrn": vsrn,
    "gpo": gpo,
    "chan": chan,
    "esa": esa,
    "hrem": hrem,
    "dive": dive,
    "uniter": uniter,
}


def convert(path: Path, system: str, *, bert: str | None = None) -> Converted:
    """Read and convert an authors' checkpoint of one of `SYSTEMS`.

    Args:
        path: the file.
        system: whose it is.
        bert: folder or name of the text model that was trained, for its configuration; where None,
            the one that the authors trained.

    Raises:
        ValueError: no such system, or the file is not one of its checkpoints.
    """
    parse_choice(SYSTEMS, system, "a system whose checkpoints are read")
    if bert is None or system in WHOLE:
        return SYSTEMS[system](read_checkpoint(path))
    if system not in MODERN:
        raise ValueError(
            f"{system} never reads texts by BERT, and {bert} was given as its text model; leave "
            "that out and give a vocabulary"
        )
    return MODERN[system](read_checkpoint(path), bert=bert)
