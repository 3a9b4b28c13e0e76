"""How far judges agree, and how sure a share of their answers is.

Answers are categories, 0, 1, ...; -1 where a judge gave none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.evaluation.bootstrap import (
    RESAMPLES,
    Counted,
    Interval,
    Share,
    image_draws,
    percentile_interval,
    shares,
)

Z = 1.959963984540054  # of a 95 % interval


@final
@dataclass(frozen=True, slots=True)
class Agreement:
    """How far some judges agree; intervals draw the items anew.

    Attributes:
        judges: places of the judges.
        items: that at least two of them answered.
        raw: percent of pairs of answers to one item that are the same.
        kappa: Cohen's, of two judges; not a number where neither could disagree by chance.
        alpha: Krippendorff's for nominal data, likewise, of three judges or more.
    """

    judges: tuple[int, ...]
    items: int
    raw: Share
    kappa: Share | None
    alpha: Share | None

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "judges": list(self.judges),
            "items": self.items,
            "raw": self.raw.plain(),
            "kappa": _plain(self.kappa),
            "alpha": _plain(self.alpha),
        }


def agreements(answers: Tensor, *, seed: int = 0) -> tuple[Agreement, ...]:
    """Of each two judges, and of all of them where they are more.

    Args:
        answers: (J, N) long.
        seed: of the draws for intervals.
    """
    judges = range(len(answers))
    groups = [*combinations(judges, 2), *([tuple(judges)] if len(answers) > 2 else [])]
    return tuple(_agreement(answers, group, seed) for group in groups)


def _agreement(answers: Tensor, judges: tuple[int, ...], seed: int) -> Agreement:
    some = answers[list(judges)]
    same, pairs = _pairs(some)
    rows = torch.arange(answers.shape[1])
    raw = shares([Counted(same, pairs)], rows, scale=100, seed=seed)[0]
    items = int((pairs > 0).sum())
    draws = image_draws([rows], len(rows), resamples=RESAMPLES, seed=seed, width=len(rows))
    weights = torch.cat([torch.ones(1, len(rows), dtype=torch.double), *draws])
    two = len(judges) == 2
    found = _share(kappa(some[0], some[1], weights) if two else alpha(some, weights), items)
    return Agreement(judges, items, raw, found if two else None, None if two else found)


def kappa(first: Tensor, second: Tensor, weights: Tensor | None = None) -> Tensor:
    """(R,) Cohen's kappa of two judges; NaN where both always give the same one answer.

    Cohen, "A coefficient of agreement for nominal scales", 1960. Items that one of them did not
    answer are left out.

    Args:
        first: (N,) long.
        second: (N,) long.
        weights: (R, N) double, how often each item counts; None for once.
    """
    kinds = max(1, int(torch.stack([first, second]).max()) + 1)
    there = ((first >= 0) & (second >= 0)).double()
    cell = first.clamp(min=0) * kinds + second.clamp(min=0)
    each = torch.nn.functional.one_hot(cell, kinds * kinds).double() * there[:, None]
    weights = torch.ones(1, len(first), dtype=torch.double) if weights is None else weights
    joint = (weights @ each).view(-1, kinds, kinds)
    joint = joint / joint.sum((1, 2), keepdim=True)
    by_chance = (joint.sum(1) * joint.sum(2)).sum(1)
    seen = joint.diagonal(dim1=1, dim2=2).sum(1)
    return _defined(seen - by_chance, 1 - by_chance)


def alpha(answers: Tensor, weights: Tensor | None = None) -> Tensor:
    """(R,) Krippendorff's alpha for nominal data; NaN where only one answer is ever given.

    Krippendorff, "Content Analysis", 2004, chapter 11. Items with fewer than two answers are left
    out.

    Args:
        answers: (J, N) long.
        weights: (R, N) double, how often each item counts; None for once.
    """
    kinds = max(1, int(answers.max()) + 1)
    counts = torch.nn.functional.one_hot(answers.clamp(min=0), kinds) * (answers >= 0)[..., None]
    given = counts.sum(0).double()  # (N, C)
    many = given.sum(1)
    ordered = given[:, :, None] * given[:, None, :] - torch.diag_embed(given)
    each = ordered / (many - 1).clamp(min=1)[:, None, None] * (many > 1)[:, None, None]
    weights = torch.ones(1, len(many), dtype=torch.double) if weights is None else weights
    together = (weights @ each.flatten(1)).view(-1, kinds, kinds)
    totals = together.sum(2)
    whole = totals.sum(1)
    unlike = 1 - together.diagonal(dim1=1, dim2=2).sum(1) / whole
    by_chance = 1 - (totals * (totals - 1)).sum(1) / (whole * (whole - 1))
    return 1 - _defined(unlike, by_chance)


def wilson(share: float, count: int) -> Interval:
    """Wilson's 95 % interval of a share, both in percent.

    Wilson, "Probable inference", 1927; it means something also where the share is 0 or 100.

    Args:
        share: percent.
        count: of independent trials, at least one.
    """
    p, z = share / 100, Z * Z / count
    middle = (p + z / 2) / (1 + z)
    half = Z / (1 + z) * math.sqrt(p * (1 - p) / count + z / (4 * count))
    return Interval(100 * max(0.0, middle - half), 100 * min(1.0, middle + half))


def _pairs(answers: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) double, pairs of equal answers to each item, and pairs of answers."""
    same = torch.zeros(answers.shape[1], dtype=torch.double)
    pairs = same.clone()
    for one, other in combinations(answers, 2):
        both = (one >= 0) & (other >= 0)
        pairs += both
        same += both & (one == other)
    return same, pairs


def _defined(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below > 1e-12, above / below, torch.nan)


def _share(values: Tensor, items: int) -> Share:
    """The first value, with the interval that the others spread over."""
    return Share(values[0].item(), percentile_interval(values[1:]), items)


def _plain(share: Share | None) -> dict[str, Any] | None:
    return None if share is None or math.isnan(share.value) else share.plain()
