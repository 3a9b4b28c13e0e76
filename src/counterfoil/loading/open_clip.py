"""A pair of open_clip: ``open_clip:`` and a name that it knows, or a folder."""

from __future__ import annotations

from typing import Any

from counterfoil.loading import refuse_large
from counterfoil.loading.pairs import PretrainedPair, processor_of
from counterfoil.models import open_clip
from counterfoil.models.layers.positions import stretched_length


def load_pair(name: str, **options: Any) -> PretrainedPair:
    """The pair of a name or folder.

    Raises:
        ValueError: there is none, or an option is not for it.
    """
    refuse_large(name, options)
    place, config = open_clip.open_clip_place(name), open_clip.open_clip_config(name)
    longest = open_clip.open_clip_text_length(config)
    positions = stretched_length(longest) if options.get("long_captions") else 0
    return PretrainedPair(
        open_clip.OpenClipModel,
        name,
        processor_of(
            open_clip.open_clip_picture_format(name, config),
            f"{open_clip.PREFIX}{place.model}",
            positions or longest,
        ),
        open_clip.open_clip_width(config),
        config,
        place.fresh,
        positions,
    )
