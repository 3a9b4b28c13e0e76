"""Margins: how far each query's best true counterpart scores above its hardest wrong one.

NDGL (Zhou et al., AAAI 2025), Fig. 3b.
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
from counterfoil.engine.true_scores import TrueScores
from counterfoil.evaluate.recall import Direction, check_owner


@final
@dataclass(frozen=True, slots=True, eq=False)
class Margins:
    """Margins of the queries of one direction.

    Attributes:
        direction: "i2t", images ask for texts, or "t2i".
        values: (Q,) double, best true score minus hardest wrong one, over the score's unit; only of
            queries that have both.
        left_out: how many queries have not.
    """

    direction: Direction
    values: Tensor
    left_out: int = 0

    @property
    def median(self) -> float:
        """Of two in the middle, the lower one."""
        return self.values.median().item()

    @property
    def below(self) -> float:
        """Percent of the queries that score a wrong counterpart above every true one."""
        return 100 * (self.values < 0).double().mean().item()


def margins(
    members: Sequence[Member], owner: Tensor, *, memory: int = MEMORY
) -> tuple[Margins, Margins]:
    """Margins both ways in one pass over the scores.

    Args:
        members: models with what they encoded; several are an ensemble.
        owner: (T,) image of each text, -1 for none.
        memory: bytes, see `sweep`.

    Returns:
        Images asking for texts, and texts for images.

    Raises:
        ValueError: `owner` does not fit the encodings, or no query has a true counterpart and a
            wrong one.
    """
    images = len(members[0].images) if members else 0
    check_owner(owner, images, len(members[0].texts) if members else 0)
    true = TrueScores(owner)
    texts, pictures = TopK("image", images, 1, owner), TopK("text", len(owner), 1, owner)
    sweep(members, [true, texts, pictures], memory=memory)
    level, owner = true.scores.double().cpu(), owner.cpu()
    best = torch.full((images,), -torch.inf, dtype=torch.double)
    best.scatter_reduce_(0, owner[owner >= 0], level[owner >= 0], "amax")
    unit = unit_of(members)
    return (
        _margins("i2t", best, texts.scores, unit),
        _margins("t2i", level, pictures.scores, unit),
    )


def unit_of(members: Sequence[Member]) -> float:
    """Unit of the mean of the members' scores, see `Matcher.score_scale`."""
    return sum(member.matcher.score_scale for member in members) / len(members)


def _margins(direction: Direction, best: Tensor, hardest: Tensor, unit: float) -> Margins:
    values = (best - hardest[:, 0].double().cpu()) / unit
    counted = best.isfinite() & values.isfinite()
    if not bool(counted.any()):
        raise ValueError(
            f"none of the {len(values)} {direction} queries has both a true and a wrong "
            "counterpart; a margin needs one of each"
        )
    return Margins(direction, values[counted], int((~counted).sum()))
