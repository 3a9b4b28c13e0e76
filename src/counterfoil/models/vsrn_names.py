"""VSRN's tensors under our names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from counterfoil.models.authors import Checkpoint, Converted, gru, regions
from counterfoil.models.blocks.captioner import Captioner
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
NEEDED = (
    "image.fc.weight",
    "reader.weight_ih_l0",
    *(f"relations.{n}.norm.running_mean" for n in range(4)),
    "text.embed.weight",
    "text.rnn.weight_ih_l0",
)
TOLD = ("captioner.fc.weight", "captioner.embed.weight")  # needed where there is a captioner


def convert_vsrn(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """VSRN's tensors under the names of `VSRN`, with its captioner's where they are there.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    new: dict[str, Tensor] = {}
    for name, value in state.items():
        plain = name.replace("module.", "")
        prefix = next((theirs for theirs in PREFIXES if plain.startswith(theirs)), None)
        if prefix is None:
            raise ValueError(f"{name!r} is no tensor of a VSRN checkpoint on features")
        ours = PREFIXES[prefix] + plain.removeprefix(prefix)
        if ours.startswith("captioner.writer."):
            ours = ours.removesuffix("_l0")
        # their projections are convolutions of width 1
        new[ours] = value.squeeze(-1) if ours.startswith("relations.") else value
    told = TOLD if any(name.startswith("captioner.") for name in new) else ()
    if missing := [name for name in (*NEEDED, *told) if name not in new]:
        raise ValueError(f"this VSRN checkpoint has no {missing[0]!r}; is it another system's?")
    return new


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
