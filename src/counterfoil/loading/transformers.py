"""A CLIP or SigLIP of transformers."""

from __future__ import annotations

from typing import Any

from counterfoil.loading import refuse_large
from counterfoil.loading.pairs import PretrainedPair, processor_of
from counterfoil.models.clip import DualEncoder, is_siglip2, max_text_length, vector_width
from counterfoil.models.layers.positions import stretched_length
from counterfoil.models.layers.pretrained import config_of, picture_format


def load_pair(name: str, **options: Any) -> PretrainedPair:
    """The pair of a name or folder.

    Raises:
        ValueError: there is none, or an option is not for it.
    """
    refuse_large(name, options)
    form, longest, width = picture_format(name), max_text_length(name), vector_width(name)
    positions = stretched_length(longest) if options.get("long_captions") else 0
    processor = processor_of(form, name, positions or longest, siglip2=is_siglip2(config_of(name)))
    return PretrainedPair(DualEncoder, name, processor, width, positions=positions)
