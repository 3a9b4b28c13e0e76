"""Conversion of authors' checkpoints by system, and the key maps of VSE++, SCAN and BFAN.

These three have the same two encoders, so they share one map. Other maps stand with their models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor

from counterfoil.core.config import config, parse_choice
from counterfoil.models.bfan import BFAN
from counterfoil.models.chan import chan_from_checkpoint
from counterfoil.models.checkpoints import (
    Checkpoint,
    ConvertedModel,
    State,
    TensorNames,
    gru_config,
    read_checkpoint,
    regions_config,
)
from counterfoil.models.dive import dive_from_checkpoint
from counterfoil.models.esa import esa_from_checkpoint
from counterfoil.models.gpo import gpo_from_checkpoint
from counterfoil.models.hrem import hrem_from_checkpoint
from counterfoil.models.naaf import naaf_from_checkpoint
from counterfoil.models.scan import SCAN
from counterfoil.models.sgraf import sgraf_from_checkpoint
from counterfoil.models.uniter import uniter_from_checkpoint
from counterfoil.models.user import user_from_checkpoint
from counterfoil.models.vsepp import VSEPP
from counterfoil.models.vsrn import vsrn_from_checkpoint
from counterfoil.models.xdim import xdim_from_checkpoint

PREFIXES = {
    "img_enc.fc.": "image.fc.",
    "txt_enc.embed.": "text.embed.",
    "txt_enc.rnn.": "text.rnn.",
}
NEEDED = ("image.fc.weight", "image.fc.bias", "text.embed.weight", "text.rnn.weight_ih_l0")


def rename_gru_model(state: Mapping[str, Tensor], system: str) -> State:
    """Rename the authors' tensors of a VSE++, SCAN or BFAN.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    names = TensorNames(system=f"a {system}", prefixes=PREFIXES, needed=NEEDED)
    return names.renamed(_without_weight_norm(state))


def vsepp_from_checkpoint(checkpoint: Checkpoint) -> ConvertedModel:
    """Convert a checkpoint of VSE++.

    Raises:
        ValueError: it is not a VSE++ checkpoint on ready-made features.
    """
    state, options = rename_gru_model(checkpoint.state, "VSE++"), checkpoint.options
    spec = config(
        VSEPP,
        image=regions_config(state),
        text=gru_config(state),
        text_pool="last",
        measure=options.get("measure", "cosine"),
        absolute=bool(options.get("use_abs", False)),
        normalise_images=not options.get("no_imgnorm", False),
    )
    return ConvertedModel(spec, state)


def scan_from_checkpoint(checkpoint: Checkpoint) -> ConvertedModel:
    """Convert a checkpoint of SCAN; without its options, t2i LogSumExp as published.

    Raises:
        ValueError: it is not a SCAN checkpoint.
    """
    state, options = rename_gru_model(checkpoint.state, "SCAN"), checkpoint.options
    direction = options.get("cross_attn", "t2i")
    spec = config(
        SCAN,
        image=regions_config(state),
        text=gru_config(state),
        direction=direction,
        raw_norm=options.get("raw_feature_norm", "clipped_l2norm"),
        aggregate=options.get("agg_func", "LogSumExp"),
        lambda_softmax=float(options.get("lambda_softmax", 9 if direction == "t2i" else 4)),
        lambda_lse=float(options.get("lambda_lse", 6 if direction == "t2i" else 5)),
        normalise_images=not options.get("no_imgnorm", False),
        normalise_texts=not options.get("no_txtnorm", False),
    )
    return ConvertedModel(spec, state)


def bfan_from_checkpoint(checkpoint: Checkpoint) -> ConvertedModel:
    """Convert a checkpoint of BFAN; without its options, "equal".

    Raises:
        ValueError: it is not a BFAN checkpoint.
    """
    state, options = rename_gru_model(checkpoint.state, "BFAN"), checkpoint.options
    spec = config(
        BFAN,
        image=regions_config(state),
        text=gru_config(state),
        focus=options.get("focal_type", "equal"),
        lambda_softmax=float(options.get("lambda_softmax", 20)),
        normalise_images=not options.get("no_imgnorm", False),
        normalise_texts=not options.get("no_txtnorm", False),
    )
    return ConvertedModel(spec, state)


def _without_weight_norm(state: Mapping[str, Tensor]) -> State:
    """Multiply out weight normalisation: SCAN may save fc as direction and length."""
    new = dict(state)
    for name in [n for n in state if n.endswith("fc.weight_g")]:
        length, direction = new.pop(name), new.pop(name[:-1] + "v")
        norm = direction.norm() if length.numel() == 1 else direction.norm(dim=1, keepdim=True)
        new[name.removesuffix("_g")] = direction * (length / norm)
    return new


# All systems.


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

    Raises:
        ValueError: no such system, or the file is not one of its checkpoints.
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
