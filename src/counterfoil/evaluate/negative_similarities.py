"""How similar the hardest wrong counterparts are: to the query, and to each other.

NDGL (Zhou et al., AAAI 2025), Fig. 1c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.engine.sweep import MEMORY, sweep
from counterfoil.engine.tiles import Member
from counterfoil.engine.topk import TopK
from counterfoil.evaluate.embeddings import unit_vectors
from counterfoil.evaluate.margins import unit_of
from counterfoil.evaluate.recall import Direction, check_owner

TOP = 30
_AT_ONCE = 512


@final
@dataclass(frozen=True, slots=True, eq=False)
class NegativeSimilarities:
    """Similarities of the negatives of one direction; of queries that have at least one.

    Attributes:
        direction: "i2t", where negatives are texts, or "t2i", where they are images.
        hardest: (Q,) score of the hardest negative, over the score's unit.
        top: (P,) scores of all of the hardest negatives, the hardest among them.
        between: (P - Q,) cosines of each query's hardest negative with its others.
    """

    direction: Direction
    hardest: Tensor
    top: Tensor
    between: Tensor


def negative_similarities(
    members: Sequence[Member], owner: Tensor, *, top: int = TOP, memory: int = MEMORY
) -> tuple[NegativeSimilarities, NegativeSimilarities]:
    """Similarities of the `top` hardest negatives of every query in one pass over the scores.

    Args:
        members: models with what they encoded; several are an ensemble.
        owner: (T,) image of each text, -1 for none.
        top: negatives of a query; all, where there are fewer.
        memory: bytes, see `sweep`.

    Returns:
        Images asking for texts, and texts for images.

    Raises:
        ValueError: `owner` does not fit the encodings, or there is no wrong pair.
    """
    images = len(members[0].images) if members else 0
    check_owner(owner, images, len(members[0].texts) if members else 0)
    texts, pictures = TopK("image", images, top, owner), TopK("text", len(owner), top, owner)
    sweep(members, [texts, pictures], memory=memory)
    unit = unit_of(members)
    return (
        _similarities("i2t", texts, unit_vectors([m.texts for m in members]), unit),
        _similarities("t2i", pictures, unit_vectors([m.images for m in members]), unit),
    )


def share_below(values: Tensor, level: float) -> float:
    """Percent of values below a level."""
    return 100 * (values < level).double().mean().item()


def _similarities(
    direction: Direction, found: TopK, vectors: Tensor, unit: float
) -> NegativeSimilarities:
    rows, scores = found.rows.long().cpu(), found.scores.double().cpu() / unit
    there = rows >= 0
    if not bool(there.any()):
        raise ValueError(
            f"none of the {len(rows)} {direction} queries has a wrong counterpart; more than one "
            "image is needed"
        )
    parts = zip(torch.split(rows, _AT_ONCE), torch.split(there, _AT_ONCE))
    between = torch.cat([_between(vectors, part, real) for part, real in parts])
    return NegativeSimilarities(direction, scores[there[:, 0], 0], scores[there], between)


def _between(vectors: Tensor, rows: Tensor, there: Tensor) -> Tensor:
    """Cosines of the first of each row with the others that exist."""
    found = vectors[rows.clamp(min=0)]
    cosines = (found[:, 1:] @ found[:, 0].unsqueeze(2)).squeeze(2)
    return cosines[there[:, 1:]].double()
