"""Whether captions score above what was written of them (TAGS, section 4.3 and Table 4).

The paper reports one accuracy and does not say of which pairs; its code counts ties as right. Here
ties are wrong, and each pair, the writer's hardest, and all foils of a caption at once are told
apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.evaluation.bootstrap import Counted, Share, shares


@final
@dataclass(frozen=True, slots=True, eq=False)
class Duels:
    """P pairs of a caption with a foil of it.

    Attributes:
        images: (P,) long, the picture of each pair.
        captions: (P,) long, which caption each pair is of.
        hardest: (P,) bool, foils that the writer itself thinks the hardest of their caption; None
            where it does not say.
    """

    images: Tensor
    captions: Tensor
    hardest: Tensor | None


@final
@dataclass(frozen=True, slots=True)
class Discriminated:
    """Percent of what is told apart.

    Attributes:
        pairs: the caption scores above a foil.
        hardest: above the one that the writer thinks the hardest; None where it does not say.
        every: above every foil of its own.
        chance: percent by guessing, of `every`; of the others it is 50.
    """

    pairs: Share
    hardest: Share | None
    every: Share
    chance: float

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "pairs": self.pairs.plain(),
            "hardest": self.hardest.plain() if self.hardest else None,
            "every": self.every.plain(),
            "chance": {"pairs": 50.0, "hardest": 50.0, "every": self.chance},
        }


def discriminated(
    duels: Duels, positive: Tensor, negative: Tensor, *, seed: int = 0
) -> Discriminated:
    """Accuracies with their intervals, by draws of images.

    Args:
        duels: the pairs, at least one.
        positive: (P,) scores of the captions.
        negative: (P,) scores of the foils.
        seed: of the draws.
    """
    right = positive > negative
    _, place = torch.unique(duels.captions, return_inverse=True)
    many = torch.bincount(place)
    missed = torch.zeros(len(many), dtype=torch.long).index_add(0, place, (~right).long())
    image = torch.zeros(len(many), dtype=torch.long).index_put((place,), duels.images)
    pairs = shares([Counted.where(right)], duels.images, scale=100, seed=seed)[0]
    every = shares([Counted.where(missed == 0)], image, scale=100, seed=seed)[0]
    hardest = None
    if duels.hardest is not None:
        one = Counted.where(right, duels.hardest)
        hardest = shares([one], duels.images, scale=100, seed=seed)[0]
    chance = 100 * (1 / (1 + many.double())).mean().item()
    return Discriminated(pairs, hardest, every, chance)
