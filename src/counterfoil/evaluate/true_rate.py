"""How well filters tell true captions from false ones, where it is known which is which.

Written negatives ought to be false. A filter leaves some out: of what it keeps, more should be
false than before, and few false ones should be lost. Pictures are drawn anew for the intervals,
each with all its captions; all filters see the same draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.evaluation.bootstrap import (
    RESAMPLES,
    Counted,
    Share,
    image_draws,
    percentile_interval,
    shares,
)
from counterfoil.evaluation.foils.measures import roc_area

RATES = "share", "false_rate", "caught", "lost"


@final
@dataclass(frozen=True, slots=True)
class Sifted:
    """What a filter keeps; all rates in percent.

    Attributes:
        name: of the filter.
        kept: captions.
        true: how many of these are true.
        share: of all captions that is kept.
        false_rate: of the kept ones that is false, the true-negative rate.
        caught: of the true ones that is left out.
        lost: of the false ones that is left out.
    """

    name: str
    kept: int
    true: int
    share: Share
    false_rate: Share
    caught: Share
    lost: Share

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        rates = {name: getattr(self, name).plain() for name in RATES}
        return {"name": self.name, "kept": self.kept, "true": self.true, **rates}


def sifted(
    true: Tensor, image: Tensor, kept: Mapping[str, Tensor], *, seed: int = 0
) -> tuple[Sifted, ...]:
    """What each of some filters keeps.

    Args:
        true: (N,) bool, whether each caption is true.
        image: (N,) long, of which image.
        kept: (N,) bool, what each filter keeps, by its name.
        seed: of the draws for intervals.

    Raises:
        ValueError: there is no caption.
    """
    if not len(true):
        raise ValueError("no caption is known to be true or false, so no filter can be judged")
    wanted = [
        counted
        for keeps in kept.values()
        for counted in (
            Counted.where(keeps),
            Counted.where(~true, keeps),
            Counted.where(~keeps, true),
            Counted.where(~keeps, ~true),
        )
    ]
    found = iter(shares(wanted, image, scale=100, seed=seed, resamples=RESAMPLES))
    return tuple(
        Sifted(name, int(keeps.sum()), int((keeps & true).sum()), *(next(found) for _ in RATES))
        for name, keeps in kept.items()
    )


def lowest(scores: Tensor, share: float) -> Tensor:
    """(N,) bool, all but the highest scores; of equal ones the later is left out first.

    Args:
        scores: (N,).
        share: of all captions that is left out, rounded.
    """
    out = torch.ones(len(scores), dtype=torch.bool)
    out[scores.argsort(stable=True)[len(scores) - round(share * len(scores)) :]] = False
    return out


def told_apart(scores: Tensor, true: Tensor, image: Tensor, *, seed: int = 0) -> Share:
    """Percent of the pairs of a true and a false caption in which the true one scores higher.

    Args:
        scores: (N,).
        true: (N,) bool.
        image: (N,) long, of which image.
        seed: of the draws for the interval.
    """
    scores, pairs = scores.double(), int(true.sum()) * int((~true).sum())
    there, place = image.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    draws = image_draws(
        [torch.arange(len(there))],
        len(there),
        resamples=RESAMPLES,
        seed=seed,
        width=len(true),
    )
    spread = [roc_area(scores, true, counts[:, place]) for counts in draws]
    value = roc_area(scores, true, torch.ones(1, len(true), dtype=torch.double)).item()
    drawn = torch.cat(spread)
    drawn += value - drawn.nanmean()  # copies of a picture in a draw tie with each other
    return Share(100 * value, percentile_interval(100 * drawn.clamp(0, 1)), pairs)
