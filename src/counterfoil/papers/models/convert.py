"""Conversion of authors' checkpoints by system; each model's conversion is in its own file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from counterfoil.core.config import parse_choice
from counterfoil.models.checkpoints import Checkpoint, ConvertedModel, read_checkpoint
from counterfoil.models.vsepp import vsepp_from_checkpoint
from counterfoil.papers.models.bfan import bfan_from_checkpoint
from counterfoil.papers.models.chan import chan_from_checkpoint
from counterfoil.papers.models.dive import dive_from_checkpoint
from counterfoil.papers.models.esa import esa_from_checkpoint
from counterfoil.papers.models.gpo import gpo_from_checkpoint
from counterfoil.papers.models.hrem import hrem_from_checkpoint
from counterfoil.papers.models.naaf import naaf_from_checkpoint
from counterfoil.papers.models.scan import scan_from_checkpoint
from counterfoil.papers.models.sgraf import sgraf_from_checkpoint
from counterfoil.papers.models.uniter import uniter_from_checkpoint
from counterfoil.papers.models.user import user_from_checkpoint
from counterfoil.papers.models.vsrn import vsrn_from_checkpoint
from counterfoil.papers.models.xdim import xdim_from_checkpoint


class BertConversion(Protocol):
    """A conversion of checkpoints whose text encoder may be BERT."""

    def __call__(self, checkpoint: Checkpoint, *, bert: str = ...) -> ConvertedModel:
        """Convert the checkpoint, with BERT's configuration from this folder or name."""


# GPO and its successors, whose training adds a mask token to the vocabulary
WITH_BERT: Mapping[str, BertConversion] = {
    "gpo": gpo_from_checkpoint,
    "chan": chan_from_checkpoint,
    "esa": esa_from_checkpoint,
    "hrem": hrem_from_checkpoint,
    "dive": dive_from_checkpoint,
    "user": user_from_checkpoint,
    "xdim": xdim_from_checkpoint,
}
# these embed wordpieces themselves, so there is no text model to configure
WITHOUT_TEXT_MODEL = frozenset({"uniter"})
SYSTEMS: Mapping[str, Callable[[Checkpoint], ConvertedModel]] = {
    "vsepp": vsepp_from_checkpoint,
    "scan": scan_from_checkpoint,
    "bfan": bfan_from_checkpoint,
    "vsrn": vsrn_from_checkpoint,
    **WITH_BERT,
    "naaf": naaf_from_checkpoint,
    "sgraf": sgraf_from_checkpoint,
    "uniter": uniter_from_checkpoint,
}


def convert_checkpoint(path: Path, system: str, *, bert: str | None = None) -> ConvertedModel:
    """Read and convert an authors' checkpoint of one of `SYSTEMS`.

    Args:
        path: the file.
        system: whose it is.
        bert: folder or name of the text model that was trained, for its configuration; where None,
            the one that the authors trained.
    """
    parse_choice(SYSTEMS, system, "a system whose checkpoints are read")
    if bert is None or system in WITHOUT_TEXT_MODEL:
        return SYSTEMS[system](read_checkpoint(path))
    if system not in WITH_BERT:
        raise ValueError(
            f"{system} never reads texts by BERT, and {bert} was given as its text model; leave "
            "that out and give a vocabulary"
        )
    return WITH_BERT[system](read_checkpoint(path), bert=bert)
