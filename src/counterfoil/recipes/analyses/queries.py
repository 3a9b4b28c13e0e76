"""Queries that a user names: a caption, or the id of an image."""

from __future__ import annotations

import difflib

from counterfoil.corpus.corpus import Corpus
from counterfoil.evaluate.recall import Direction


def asked_row(query: str, corpus: Corpus) -> tuple[Direction, int]:
    """Direction and row of a caption or an image id.

    Raises:
        ValueError: it is neither; the nearest one is told.
    """
    if query in corpus.image_ids:
        return "i2t", list(corpus.image_ids).index(query)
    if query in corpus.texts:
        return "t2i", list(corpus.texts).index(query)
    near = difflib.get_close_matches(query, [*corpus.image_ids, *corpus.texts], 1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}" if near else "leave --query out to have some chosen"
    raise ValueError(
        f"{query!r} is neither a caption nor an image id of {corpus.name} {corpus.part}; {hint}"
    )
