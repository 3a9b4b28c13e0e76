"""A public BLIP for retrieval, from its folder or name alone."""

from __future__ import annotations

from counterfoil.models.authors import Converted, read_checkpoint
from counterfoil.models.blip import BLIP
from counterfoil.models.blocks.pretrained import config_of, weights_file
from counterfoil.spec import of

PARTS = ("vision_model.", "text_encoder.embeddings.", "text_encoder.encoder.", "itm_head.")
UNREAD = "position_ids"  # numbered, not learnt
HEAD = "itm_head.weight"


def public_blip(name: str, *, mask: int | None) -> Converted:
    """The BLIP of a folder or name, such as "Salesforce/blip-itm-base-coco".

    Args:
        name: folder or name of a Hugging Face model.
        mask: id of the tokenizer's token that hides a word; None where there is none.

    Raises:
        ValueError: transformers is not installed, there is no such model, or it is none that
            judges whether texts and images belong together.
    """
    config = config_of(name)
    seen, said = config.vision_config, config.text_config
    if not seen.hidden_act == said.hidden_act == "gelu":
        raise ValueError(
            f"{name} is a BLIP of another kind than the public ones: its hidden_act are "
            f"{seen.hidden_act} and {said.hidden_act}, not gelu"
        )
    given = read_checkpoint(weights_file(name)).state
    state = {
        key: value.float()
        for key, value in given.items()
        if key.startswith(PARTS) and not key.endswith(UNREAD)
    }
    if HEAD not in state:
        raise ValueError(
            f"{name} holds no BLIP that matches images and texts; give one for retrieval, as "
            "Salesforce/blip-itm-base-coco"
        )
    spec = of(
        BLIP,
        layers=said.num_hidden_layers,
        width=said.hidden_size,
        heads=said.num_attention_heads,
        inner=said.intermediate_size,
        vocabulary=said.vocab_size,
        positions=said.max_position_embeddings,
        epsilon=float(said.layer_norm_eps),
        image_layers=seen.num_hidden_layers,
        image_width=seen.hidden_size,
        image_heads=seen.num_attention_heads,
        image_inner=seen.intermediate_size,
        image_epsilon=float(seen.layer_norm_eps),
        size=seen.image_size,
        patch=seen.patch_size,
        dropout=float(said.hidden_dropout_prob),
        mask=mask,
    )
    return Converted(spec, state)
