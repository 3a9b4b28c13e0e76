"""CHAN's tensors under our names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from counterfoil.models.authors import Checkpoint, Converted, State, image_tower, text_tower
from counterfoil.models.blocks.aggregate import Pooling
from counterfoil.models.blocks.selfattention import Sight
from counterfoil.models.chan import CHAN, RegionBlock
from counterfoil.models.tensor_names import POSITIONS, TEXTS, TensorNames
from counterfoil.spec import of

PREFIXES = {
    "img_enc.fc.": "image.fc.",
    "img_enc.feedforward.ln.": "block.norm.",
    "img_enc.feedforward.ln_1.": "block.norm.",
    "img_enc.feedforward.attn.": "block.attention.",
    "img_enc.feedforward.ln_2.": "block.perceptron.norm.",
    "img_enc.feedforward.mlp.c_fc.": "block.perceptron.wide.",
    "img_enc.feedforward.mlp.c_proj.": "block.perceptron.narrow.",
    **TEXTS,
}
NAMES = TensorNames(
    system="a CHAN",
    prefixes=PREFIXES,
    unused=("txt_enc.fc.", POSITIONS),
    needed=("image.fc.weight",),
    either=("text.fc.weight", "text.embed.weight"),
)


def convert_chan(state: Mapping[str, Tensor]) -> State:
    """CHAN's tensors under the names of `CHAN`.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    return NAMES.renamed(state)


def chan(
    checkpoint: Checkpoint, *, bert: str = "bert-base-uncased", sees: Sight | None = None
) -> Converted:
    """CHAN from a checkpoint alone; without its options, as published.

    Args:
        checkpoint: the authors'.
        bert: folder or name of the text model that was trained, for its configuration.
        sees: see `CHAN`; by default "batch" for a transformer, which learnt nothing else, and else
            "regions", which is what the authors compute of images without padding.

    Raises:
        ValueError: it is not a CHAN checkpoint.
    """
    state, options = convert_chan(checkpoint.state), checkpoint.options
    block = _block(state)
    published: Pooling = "LSE" if "text.embed.weight" in state else "Mean"
    spec = of(
        CHAN,
        image=image_tower(state),
        text=text_tower(state, bert),
        block=block,
        coding=_word(options, "coding_type", "Coding") or "VHA",
        pooling=_word(options, "pooling_type", "Pooling") or published,
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
