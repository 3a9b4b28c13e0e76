"""GPO's tensors under our names."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from counterfoil.models.authors import Checkpoint, Converted, State, image_tower, text_tower
from counterfoil.models.gpo import GPO
from counterfoil.models.tensor_names import REGIONS, TEXTS, UNUSED, TensorNames
from counterfoil.spec import of

PREFIXES = {
    **REGIONS,
    "img_enc.gpool.gru.": "image_pool.rnn.",
    "img_enc.gpool.linear.": "image_pool.score.",
    **TEXTS,
    "txt_enc.gpool.gru.": "text_pool.rnn.",
    "txt_enc.gpool.linear.": "text_pool.score.",
}
NAMES = TensorNames(
    system="a GPO",
    prefixes=PREFIXES,
    unused=UNUSED,
    needed=("image.fc.weight", "image_pool.score.weight", "text_pool.score.weight"),
    either=("text.fc.weight", "text.embed.weight"),
)


def convert_gpo(state: Mapping[str, Tensor]) -> State:
    """GPO's tensors under the names of `GPO`.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    return NAMES.renamed(state)


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
