"""DivE's tensors under our names."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from counterfoil.models.authors import Checkpoint, Converted, State, gru
from counterfoil.models.blocks.bert import Bert
from counterfoil.models.blocks.mlp import MLPRegions
from counterfoil.models.blocks.parts import PartsTower, PooledParts, WordsAndStates
from counterfoil.models.blocks.pool import Pool
from counterfoil.models.dive import DivE
from counterfoil.models.tensor_names import POSITIONS, TensorNames
from counterfoil.spec import of, part

HEADS = 4  # of the attention, in the authors' code a constant
LAYERS = ".agg_block.layers."
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
    "residual_norm.": "_norm.",
    "agg_block.latents": "_slots.latents",
    "agg_block.last_layer.0.": "_slots.last_norm.",
    **{f"agg_block.layers.0.{theirs}.": f"_slots.{ours}." for theirs, ours in LAYER.items()},
}
SIDES = {"img_enc.spm.": "image", "txt_enc.spm.": "text"}
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
    **{
        side + theirs: name + ours for side, name in SIDES.items() for theirs, ours in BLOCK.items()
    },
}
NAMES = TensorNames(
    system="a DivE",
    prefixes=PREFIXES,
    unused=(POSITIONS,),
    needed=("image.tower.fc.weight", "image_slots.latents", "text_slots.latents"),
)


def convert_dive(state: Mapping[str, Tensor]) -> State:
    """DivE's tensors under the names of `DivE`; of the shared layers those of the first round.

    Raises:
        ValueError: a tensor is missing or unknown, or the rounds do not share their layers.
    """
    once: State = {}
    for name, value in state.items():
        first = _of_the_first_round(name)
        if first == name:
            once[name] = value
        elif first not in state or not torch.equal(value, state[first]):
            raise ValueError(
                f"{name!r} differs from that of the first round; only rounds that share their "
                "layers are read"
            )
    return _side_by_side(NAMES.renamed(once))


def dive(checkpoint: Checkpoint, *, bert: str = "bert-base-uncased") -> Converted:
    """DivE from a checkpoint alone, with the padding that its weights have learnt with.

    Args:
        checkpoint: as the authors saved it.
        bert: folder or name of the text model that was trained, for its configuration.

    Raises:
        ValueError: it is not a DivE checkpoint.
    """
    options, state = checkpoint.options, convert_dive(checkpoint.state)
    rounds = {_round(name) for name in checkpoint.state if LAYERS in name}
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


def _text(state: State, pooling: str, bert: str) -> PartsTower:
    """The text tower that fits these tensors, written down."""
    if "text.gru.embed.weight" in state:
        plain = {name.replace("text.gru.", "text."): value for name, value in state.items()}
        return part(WordsAndStates, gru=gru(plain))
    apart = state["text.tower.fc.weight"].shape[0] > state["text_norm.weight"].shape[0]
    pool: Pool = "first" if pooling == "cls" else "max"
    tower = part(Bert, name=bert, width=len(state["text.tower.fc.weight"]), pretrained=False)
    return part(PooledParts, tower=tower, pool=pool, apart=apart)


def _of_the_first_round(name: str) -> str:
    return name.replace(f"{LAYERS}{_round(name)}.", f"{LAYERS}0.") if LAYERS in name else name


def _round(name: str) -> str:
    """Number of the round that a tensor of the slots belongs to."""
    return name.partition(LAYERS)[2].partition(".")[0]


def _side_by_side(state: State) -> State:
    """With the layer for the whole below that for the parts, where BERT has two."""
    for kind in ("weight", "bias"):
        below = state.pop(f"whole.{kind}", None)
        if below is not None:
            name = f"text.tower.fc.{kind}"
            state[name] = torch.cat([state[name], below])
    return state
