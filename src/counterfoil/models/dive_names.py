"""DivE's tensors under our names."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from counterfoil.models.authors import Checkpoint, Converted, gru
from counterfoil.models.blocks.bert import Bert
from counterfoil.models.blocks.mlp import MLPRegions
from counterfoil.models.blocks.parts import PartsTower, PooledParts, WordsAndStates
from counterfoil.models.blocks.pool import Pool
from counterfoil.models.dive import DivE
from counterfoil.spec import of, part

HEADS = 4  # of the attention, in the authors' code a constant
LAYER = {
    "0.fn.to_q": "query",
    "0.fn.to_k": "key",
    "0.fn.to_v": "value",
    "0.fn.to_out.0": "out",
    "0.norm": "slot_norm",
    "0.norm_context": "part_norm",
    "2.fn.net.0": "enter",
    "2.fn.net.3": "leave",
    "2.norm": "inner_norm",
}
BLOCK = {
    "residual_norm.": "norm.",
    "agg_block.latents": "slots.latents",
    "agg_block.last_layer.0.": "slots.last_norm.",
    **{f"agg_block.layers.0.{theirs}.": f"slots.{ours}." for theirs, ours in LAYER.items()},
}
SIDES = {"img_enc": "image", "txt_enc": "text"}
PREFIXES = {
    "img_enc.fc.": "image.tower.fc.",
    "img_enc.mlp.fc1.": "image.tower.enter.",
    "img_enc.mlp.fc2.": "image.tower.leave.",
    "img_enc.mlp.bn.bn.": "image.tower.norm.",
    "txt_enc.embed.": "text.gru.embed.",
    "txt_enc.rnn.": "text.gru.rnn.",
    "txt_enc.bert.": "text.tower.body.",
    "txt_enc.linear.": "text.tower.fc.",
    "txt_enc.linear2.": "whole.",
    **{f"{theirs}.spm.residual_norm.": f"{ours}_norm." for theirs, ours in SIDES.items()},
    **{
        f"{theirs}.spm.agg_block.latents": f"{ours}_slots.latents" for theirs, ours in SIDES.items()
    },
    **{
        f"{theirs}.spm.agg_block.last_layer.0.": f"{ours}_slots.last_norm."
        for theirs, ours in SIDES.items()
    },
    **{
        f"{theirs}.spm.agg_block.layers.0.{layer}.": f"{ours}_slots.{name}."
        for theirs, ours in SIDES.items()
        for layer, name in LAYER.items()
    },
}
NEEDED = ("image.tower.fc.weight", "image_slots.latents", "text_slots.latents")


def convert_dive(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """DivE's tensors under the names of `DivE`; of the shared layers those of the first round.

    Raises:
        ValueError: a tensor is missing or unknown, or the rounds do not share their layers.
    """
    new: dict[str, Tensor] = {}
    for name, value in state.items():
        plain = name.replace("module.", "")
        first = _of_the_first_round(plain)
        if first != plain:
            if not torch.equal(value, state[name.replace(plain, first)]):
                raise ValueError(
                    f"{name!r} differs from that of the first round; only rounds that share their "
                    "layers are read"
                )
            continue
        if not plain.endswith("position_ids"):  # of older versions of BERT
            new[renamed(plain)] = value
    if missing := [name for name in NEEDED if name not in new]:
        raise ValueError(f"this DivE checkpoint has no {missing[0]!r}; is it another system's?")
    return _side_by_side(new)


def renamed(name: str) -> str:
    """Our name of an authors' tensor.

    Raises:
        ValueError: there is none.
    """
    prefix = next((theirs for theirs in PREFIXES if name.startswith(theirs)), None)
    if prefix is None:
        raise ValueError(f"{name!r} is no tensor of a DivE checkpoint on features")
    return PREFIXES[prefix] + name.removeprefix(prefix)


def dive(checkpoint: Checkpoint, *, bert: str = "bert-base-uncased") -> Converted:
    """DivE from a checkpoint alone, with the padding that its weights have learnt with.

    Args:
        checkpoint: as the authors saved it.
        bert: folder or name of the text model that was trained, for its configuration.

    Raises:
        ValueError: it is not a DivE checkpoint.
    """
    options, state = checkpoint.options, convert_dive(checkpoint.state)
    rounds = {name.split(".layers.")[1][0] for name in checkpoint.state if ".layers." in name}
    width, features = state["image.tower.fc.weight"].shape
    image = part(
        MLPRegions,
        features=features,
        width=width,
        inner=len(state["image.tower.enter.bias"]),
        stacked=True,
        dropout=options.get("img_1x1_dropout", 0.1),
    )
    spec = of(
        DivE,
        image=part(PooledParts, tower=image, pool=options.get("img_res_pool", "max")),
        text=_text(state, options.get("txt_pooling", "max"), bert),
        slots=len(state["image_slots.latents"]),
        heads=HEADS,
        head_width=len(state["image_slots.query.weight"]) // HEADS,
        rounds=len(rounds),
        dropout=options.get("dropout", 0.1),
        alpha=float(options.get("temperature", 16.0)),
        released_padding=True,
    )
    return Converted(spec, state)


def _text(state: Mapping[str, Tensor], pooling: str, bert: str) -> PartsTower:
    """The text tower that fits these tensors, written down."""
    if "text.gru.embed.weight" in state:
        plain = {name.replace("text.gru.", "text."): value for name, value in state.items()}
        return part(WordsAndStates, gru=gru(plain))
    apart = state["text.tower.fc.weight"].shape[0] > state["text_norm.weight"].shape[0]
    pool: Pool = "first" if pooling == "cls" else "max"
    tower = part(Bert, name=bert, width=len(state["text.tower.fc.weight"]), pretrained=False)
    return part(PooledParts, tower=tower, pool=pool, apart=apart)


def _of_the_first_round(name: str) -> str:
    head, layers, tail = name.partition(".agg_block.layers.")
    return f"{head}{layers}0.{tail.partition('.')[2]}" if layers else name


def _side_by_side(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """With the layer for the whole below that for the parts, where BERT has two."""
    for kind in ("weight", "bias"):
        below = state.pop(f"whole.{kind}", None)
        if below is not None:
            name = f"text.tower.fc.{kind}"
            state[name] = torch.cat([state[name], below])
    return state
