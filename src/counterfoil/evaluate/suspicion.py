"""How badly captions fit their own images, beside all others: who may be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.engine.pair_ranks import PairRanks
from counterfoil.engine.ranks import Ranks
from counterfoil.engine.sweep import sweep
from counterfoil.engine.tiles import Member
from counterfoil.engine.true_scores import TrueScores

LEAST = 0.05  # share of the others, both ways, that makes a caption suspicious


@final
@dataclass(frozen=True, slots=True, eq=False)
class Suspicion:
    """What one pass over all pairs says of T captions and the images they belong to.

    Attributes:
        scores: (T,) of each caption with its image, -inf for a text of none.
        images: (T,) long, wrong images that fit the caption better; -1 for a text of none.
        texts: (T,) long, wrong texts that fit its image better; -1 for a text of none.
        shares: (T,) double, the lower of both counts as a share of all that could be counted, in
            0..1; -1 for a text of none. A caption that says little fits its image worse than many
            others do, but is not beaten both ways.
    """

    scores: Tensor
    images: Tensor
    texts: Tensor
    shares: Tensor

    def worst(self) -> list[int]:
        """Rows of the captions of which both shares are at least `LEAST`, the worst first."""
        order = self.shares.argsort(descending=True, stable=True).tolist()
        return list(order[: int((self.shares >= LEAST).sum())])


def suspicion(members: Sequence[Member], owner: Tensor) -> Suspicion:
    """Rank every true pair among the wrong ones of its caption and of its image.

    Args:
        members: matchers with what they encoded; several are an ensemble.
        owner: (T,) image of each text, -1 for none.
    """
    many = len(members[0].images)
    images, texts, scores = Ranks("text", len(owner), owner), PairRanks(owner), TrueScores(owner)
    sweep(members, [images, texts, scores])
    before, above = images.ranks().cpu(), texts.ranks().cpu()
    own = torch.bincount(owner[owner >= 0], minlength=many)
    others = len(owner) - own[owner.clamp(min=0)]
    lower = torch.minimum(
        before.double() / max(many - 1, 1), above.double() / others.clamp(min=1).double()
    )
    return Suspicion(scores.scores.cpu(), before, above, lower.masked_fill(owner < 0, -1.0))
