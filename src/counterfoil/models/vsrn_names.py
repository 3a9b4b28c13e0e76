"""VSRN's tensors under our names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from counterfoil.models.authors import Checkpoint, Converted, State, gru, regions
from counterfoil.models.blocks.captioner import Captioner
from counterfoil.models.tensor_names import TensorNames
from counterfoil.models.vsrn import VSRN
from counterfoil.spec import of, part

RELATION = {"g": "value", "theta": "theta", "phi": "phi", "W.0": "out", "W.1": "norm"}
BRANCH = {
    "encoder.vid2hid.": "fc.",
    "encoder.rnn.": "reader.",
    "decoder.embedding.": "embed.",
    "decoder.attention.linear1.": "attend.",
    "decoder.attention.linear2.": "focus.",
    "decoder.rnn.": "writer.",
    "decoder.out.": "out.",
}
PREFIXES = {
    "img_enc.fc.": "image.fc.",
    "img_enc.img_rnn.": "reader.",
    "img_enc.bn.": "norm.",
    "txt_enc.embed.": "text.embed.",
    "txt_enc.rnn.": "text.rnn.",
    **{
        f"img_enc.Rs_GCN_{n + 1}.{theirs}.": f"relations.{n}.{ours}."
        for n in range(4)
        for theirs, ours in RELATION.items()
    },
    **{f"caption_model.{theirs}": f"captioner.{ours}" for theirs, ours in BRANCH.items()},
}
NAMES = TensorNames(
    system="a VSRN",
    prefixes=PREFIXES,
    needed=(
        "image.fc.weight",
        "reader.weight_ih_l0",
        *(f"relations.{n}.norm.running_mean" for n in range(4)),
        "text.embed.weight",
        "text.rnn.weight_ih_l0",
    ),
)
TOLD = ("captioner.fc.weight", "captioner.embed.weight")  # needed where there is a captioner


def convert_vsrn(state: Mapping[str, Tensor]) -> State:
    """VSRN's tensors under the names of `VSRN`, with its captioner's where they are there.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    told = any("caption_model." in name for name in state)
    names = replace(NAMES, needed=(*NAMES.needed, *TOLD)) if told else NAMES
    return {_own(name): _flat(name, value) for name, value in names.renamed(state).items()}


def _own(name: str) -> str:
    """A cell has no layers to count."""
    return name.removesuffix("_l0") if name.startswith("captioner.writer.") else name


def _flat(name: str, value: Tensor) -> Tensor:
    """Their projections of regions are convolutions of width 1."""
    return value.squeeze(-1) if name.startswith("relations.") else value


def written(state: Mapping[str, Tensor], options: Mapping[str, Any]) -> Captioner:
    """The captioner that fits these tensors, written down.

    Args:
        state: under our names.
        options: the authors', where known.
    """
    hidden, width = state["captioner.fc.weight"].shape
    words, word_width = state["captioner.embed.weight"].shape
    return part(
        Captioner,
        words=words,
        width=width,
        hidden=hidden,
        word_width=word_width,
        longest=options.get("max_len", 60),
    )


def vsrn(checkpoint: Checkpoint) -> Converted:
    """VSRN from a checkpoint alone; without its options, Flickr30K's where it has that norm.

    Raises:
        ValueError: it is not a VSRN checkpoint.
    """
    state, options = convert_vsrn(checkpoint.state), checkpoint.options
    batch_norm = "norm.weight" in state
    if "data_name" in options:
        batch_norm = batch_norm and options["data_name"].startswith("f30k")
    if not batch_norm:
        state = {name: value for name, value in state.items() if not name.startswith("norm.")}
    spec = of(
        VSRN,
        image=regions(state),
        text=gru(state),
        captioner=written(state, options) if "captioner.fc.weight" in state else None,
        region_norm="channel",
        normalise_regions=not batch_norm,
        batch_norm=batch_norm,
    )
    return Converted(spec, state)
