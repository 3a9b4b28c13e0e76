"""A public ViLT, from its folder or name alone."""

from __future__ import annotations

import torch

from counterfoil.models.authors import Converted
from counterfoil.models.blocks.pretrained import config_of
from counterfoil.models.uniter_start import begun
from counterfoil.models.vilt import ViLT
from counterfoil.models.vilt_names import OUTPUTS, public_state
from counterfoil.spec import of

KIND = ("gelu", True, 3, 1e-12)


def public_vilt(name: str, *, mask: int | None) -> Converted:
    """The ViLT of a folder or name, with the heads that are in it and a rank.

    A rank that was not fine-tuned is the yes of the pre-trained match; where there is none either,
    as in "dandelin/vilt-b32-mlm", it begins as a fresh one and has to be trained.

    Args:
        name: folder or name of a Hugging Face model.
        mask: id of the tokenizer's token that hides a word, 103 in bert-base-uncased; where None
            there is one more embedding for it.

    Raises:
        ValueError: transformers is not installed, there is no such model, or it is none that `ViLT`
            can be.
    """
    config = config_of(name)
    found = (config.hidden_act, config.qkv_bias, config.num_channels, config.layer_norm_eps)
    if found != KIND:
        raise ValueError(
            f"{name} is a ViLT of another kind than the public ones: hidden_act, qkv_bias, "
            f"num_channels and layer_norm_eps are {found}, not {KIND}"
        )
    state = public_state(name, words=config.vocab_size + (mask is None))
    heads = {name.split(".")[1] for name in state if name.startswith("says.")}
    spec = of(
        ViLT,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        inner=config.intermediate_size,
        vocabulary=config.vocab_size,
        positions=config.max_position_embeddings,
        size=config.image_size,
        patch=config.patch_size,
        dropout=float(config.hidden_dropout_prob),
        mask=mask,
        outputs=tuple(name for name in OUTPUTS if name in heads | {"rank"}),
    )
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = spec.build()
    return Converted(spec, model.adopted(begun(state)))
