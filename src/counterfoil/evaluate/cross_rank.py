"""Cross-retrieval rank: how a true pair fares against wrong texts and wrong images alike.

AOQ (https://arxiv.org/abs/2003.03669), section 4.3 and Fig. 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.engine.pair_ranks import PairRanks
from counterfoil.engine.ranks import Ranks
from counterfoil.engine.sweep import MEMORY, sweep
from counterfoil.engine.tiles import Member
from counterfoil.evaluate.recall import check_owner

EDGES = (1, 5, 10, 20, 50, 100, 200)  # last rank of each bin but the open one
BINS = ("1", "2–5", "6–10", "11–20", "21–50", "51–100", "101–200", "above 200")


@final
@dataclass(frozen=True, slots=True, eq=False)
class CrossRanks:
    """Ranks of all P true pairs, from 1, in the order of the texts.

    Attributes:
        texts: (P,) long, rank among the wrong texts of the pair's image, r_t.
        images: (P,) long, rank among the wrong images of the pair's text, r_i.
        ratio: texts per image, by which image ranks are scaled.
    """

    texts: Tensor
    images: Tensor
    ratio: float

    @property
    def cross(self) -> Tensor:
        """(P,) double, max(ratio * (r_i - 1) + 1, r_t).

        AOQ, section 4.3, has max(5 r_i - 4, r_t), which this is at five texts per image. Whole
        numbers stay whole where the ratio is one.
        """
        return torch.maximum(self.ratio * (self.images.double() - 1) + 1, self.texts.double())

    def shares(self) -> tuple[float, ...]:
        """Percent of the pairs in each of `BINS`; a rank between two bins falls in the upper."""
        place = torch.bucketize(self.cross, torch.tensor(EDGES, dtype=torch.double))
        return tuple((100 * torch.bincount(place, minlength=len(BINS)) / len(place)).tolist())


def cross_ranks(members: Sequence[Member], owner: Tensor, *, memory: int = MEMORY) -> CrossRanks:
    """Ranks of every true pair in one pass over the scores.

    Other true texts of the image count neither for nor against a pair; of equal scores the lower
    row comes first.

    Args:
        members: models with what they encoded; several are an ensemble.
        owner: (T,) image of each text, -1 for none.
        memory: bytes, see `sweep`.

    Raises:
        ValueError: `owner` does not fit the encodings, or no text describes an image.
    """
    images = len(members[0].images) if members else 0
    check_owner(owner, images, len(members[0].texts) if members else 0)
    paired = owner >= 0
    if not bool(paired.any()):
        raise ValueError(f"none of the {len(owner)} texts describes an image; there is no pair")
    texts, pictures = PairRanks(owner), Ranks("text", len(owner), owner)
    sweep(members, [texts, pictures], memory=memory)
    r_t, r_i = texts.ranks().cpu()[paired.cpu()], pictures.ranks().cpu()[paired.cpu()]
    return CrossRanks(r_t + 1, r_i + 1, len(r_t) / images)
