"""CHAN's tensors under our names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from counterfoil.models.authors import Checkpoint, Converted, State, gru, regions
from counterfoil.models.blocks.aggregate import Pooling
from counterfoil.models.blocks.bert import Bert
from counterfoil.models.blocks.selfattention import Sight
from counterfoil.models.blocks.tower import TextTower
from counterfoil.models.chan import CHAN, RegionBlock
from counterfoil.spec import of, part

BERT = "bert-base-uncased"
PREFIXES = {
    "img_enc.fc.": "image.fc.",
    "img_enc.feedforward.ln.": "block.norm.",
    "img_enc.feedforward.ln_1.": "block.norm.",
    "img_enc.feedforward.attn.": "block.attention.",
    "img_enc.feedforward.ln_2.": "block.perceptron.norm.",
    "img_enc.feedforward.mlp.c_fc.": "block.perceptron.wide.",
    "img_enc.feedforward.mlp.c_proj.": "block.perceptron.narrow.",
    "txt_enc.embed.": "text.embed.",
    "txt_enc.rnn.": "text.rnn.",
    "txt_enc.bert.": "text.body.",
    "txt_enc.linear.": "text.fc.",
}
UNUSED = ("txt_enc.fc.", "txt_enc.bert.embeddings.position_ids")


def convert_chan(state: Mapping[str, Tensor]) -> State:
    """CHAN's tensors under the names of `CHAN`.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    new: State = {}
    for name, value in state.items():
        plain = name.replace("module.", "")
        if plain.startswith(UNUSED):
            continue
        prefix = next((theirs for theirs in PREFIXES if plain.startswith(theirs)), None)
        if prefix is None:
            raise ValueError(f"{name!r} is no tensor of a CHAN checkpoint")
        new[PREFIXES[prefix] + plain.removeprefix(prefix)] = value
    reads = ("text.fc.weight",) if "text.fc.weight" in new else ("text.embed.weight",)
    if missing := [name for name in ("image.fc.weight", *reads) if name not in new]:
        raise ValueError(f"this CHAN checkpoint has no {missing[0]!r}; is it another system's?")
    return new


def chan(checkpoint: Checkpoint, *, bert: str = BERT, sees: Sight | None = None) -> Converted:
    """CHAN from a checkpoint alone; without its options, as published.

    Args:
        checkpoint: the authors'.
        bert: folder or name of the model whose shape the text encoder has, where it is BERT.
        sees: see `CHAN`; by default "batch" for a transformer, which learnt nothing else, and else
            "regions", which is what the authors compute of images without padding.

    Raises:
        ValueError: it is not a CHAN checkpoint.
    """
    state, options = convert_chan(checkpoint.state), checkpoint.options
    block = _block(state)
    text, pooling = _text(state, bert)
    spec = of(
        CHAN,
        image=regions(state),
        text=text,
        block=block,
        coding=_word(options, "coding_type", "Coding") or "VHA",
        pooling=_word(options, "pooling_type", "Pooling") or pooling,
        alpha=float(options.get("alpha") or 0.1),
        beta=float(options.get("belta") or 0.1),
        sees=sees or ("batch" if block == "transformer" else "regions"),
        normalise_images=not options.get("no_imgnorm", False),
        normalise_texts=not options.get("no_txtnorm", False),
    )
    return Converted(spec, state)


def _word(options: Mapping[str, Any], name: str, ending: str) -> Any:
    """A word of theirs without its ending, where they gave one."""
    given = options.get(name)
    return given and str(given).removesuffix(ending)


def _block(state: State) -> RegionBlock:
    if "block.perceptron.norm.weight" in state:
        return "transformer"
    return "selfattention" if "block.norm.weight" in state else "basic"


def _text(state: State, bert: str) -> tuple[TextTower, Pooling]:
    """The text tower, and what the paper pools its words with."""
    if "text.embed.weight" in state:
        return gru(state), "LSE"
    width = len(state["text.fc.weight"])
    return part(Bert, name=bert, width=width, pretrained=False), "Mean"
