"""ESA's tensors under our names."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from counterfoil.models.authors import Checkpoint, Converted, State, image_tower, text_tower
from counterfoil.models.esa import ESA
from counterfoil.models.tensor_names import REGIONS, TEXTS, UNUSED, TensorNames
from counterfoil.spec import of

PREFIXES = {
    **REGIONS,
    "img_enc.linear1.": "image_pool.fc.",
    **TEXTS,
    "txt_enc.linear1.": "text_pool.fc.",
}
NAMES = TensorNames(
    system="an ESA",
    prefixes=PREFIXES,
    unused=UNUSED,
    needed=("image.fc.weight", "image_pool.fc.weight", "text_pool.fc.weight"),
    either=("text.fc.weight", "text.embed.weight"),
)


def convert_esa(state: Mapping[str, Tensor]) -> State:
    """ESA's tensors under the names of `ESA`.

    Raises:
        ValueError: a tensor is missing or unknown.
    """
    return NAMES.renamed(state)


def esa(checkpoint: Checkpoint, *, bert: str = "bert-base-uncased") -> Converted:
    """ESA on features from a checkpoint alone, on regions or on grid cells, with BiGRU or BERT.

    Args:
        checkpoint: as the authors saved it.
        bert: folder or name of the text model that was trained, for its configuration.

    Raises:
        ValueError: it is not an ESA checkpoint on features.
    """
    state, options = convert_esa(checkpoint.state), checkpoint.options
    spec = of(
        ESA,
        image=image_tower(state),
        text=text_tower(state, bert),
        normalise_images=not options.get("no_imgnorm", False),
        normalise_texts=not options.get("no_txtnorm", False),
    )
    return Converted(spec, state)
