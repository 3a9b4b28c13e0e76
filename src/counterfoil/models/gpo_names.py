"""GPO's tensors under our names."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from counterfoil.models.authors import Checkpoint, Converted, State, gru, regions
from counterfoil.models.blocks.bert import Bert
from counterfoil.models.blocks.mlp import MLPRegions
from counterfoil.models.blocks.tower import ImageTower, TextTower
from counterfoil.models.gpo import GPO
from counterfoil.spec import of, part

PREFIXES = {
    "img_enc.fc.": "image.fc.",
    "img_enc.mlp.layers.0.": "image.enter.",
    "img_enc.mlp.layers.1.": "image.leave.",
    "img_enc.mlp.bns.0.": "image.norm.",
    "img_enc.gpool.gru.": "image_pool.rnn.",
    "img_enc.gpool.linear.": "image_pool.score.",
    "txt_enc.embed.": "text.embed.",
    "txt_enc.rnn.": "text.rnn.",
    "txt_enc.bert.": "text.body.",
    "txt_enc.linear.": "text.fc.",
    "txt_enc.gpool.gru.": "text_pool.rnn.",
    "txt_enc.gpool.linear.": "text_pool.score.",
}
UNUSED = ("img_enc.mlp.bns.1.", "txt_enc.bert.embeddings.position_ids")
NEEDED = ("image.fc.weight", "image_pool.score.weight", "text_pool.score.weight")
PIXELS = ("img_enc.backbone.", "img_enc.image_encoder.")


def convert_gpo(state: Mapping[str, Tensor]) -> State:
    """GPO's tensors under the names of `GPO`.

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
            pixels = "; it was trained on pixels: extract features with its network first"
            hint = pixels if plain.startswith(PIXELS) else ""
            raise ValueError(f"{name!r} is no tensor of a GPO checkpoint on features{hint}")
        new[PREFIXES[prefix] + plain.removeprefix(prefix)] = value
    text = "text.fc.weight" if "text.fc.weight" in new else "text.embed.weight"
    if missing := [name for name in (*NEEDED, text) if name not in new]:
        raise ValueError(f"this GPO checkpoint has no {missing[0]!r}; is it another system's?")
    return new


def gpo(checkpoint: Checkpoint, *, bert: str = "bert-base-uncased") -> Converted:
    """GPO on features from a checkpoint alone, on regions or on grid cells, with BiGRU or BERT.

    Args:
        checkpoint: as the authors saved it.
        bert: folder or name of the text model that was trained, for its configuration.

    Raises:
        ValueError: it is not a GPO checkpoint on features.
    """
    state, options = convert_gpo(checkpoint.state), checkpoint.options
    hidden, positions = state["image_pool.rnn.weight_ih_l0"].shape
    spec = of(
        GPO,
        image=image_tower(state),
        text=text_tower(state, bert),
        positions=positions,
        hidden=hidden // 3,
        normalise_images=not options.get("no_imgnorm", False),
        normalise_texts=not options.get("no_txtnorm", False),
    )
    return Converted(spec, state)


def image_tower(state: State) -> ImageTower:
    """The image tower that fits these tensors under our names, written down."""
    if "image.enter.weight" not in state:
        return regions(state)
    width, features = state["image.fc.weight"].shape
    return part(MLPRegions, features=features, width=width, inner=len(state["image.enter.weight"]))


def text_tower(state: State, bert: str) -> TextTower:
    """The text tower that fits these tensors under our names, written down."""
    if "text.fc.weight" not in state:
        return gru(state)
    return part(Bert, name=bert, width=len(state["text.fc.weight"]), pretrained=False)
