"""The table of experiments, made from their raw results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.evaluate.result import METRICS
from counterfoil.recipes.evidence.ledger import Entry

ONLINE = "online"
RSUM = METRICS[-1]
RECALLS = tuple(metric for metric in METRICS if "R@" in metric)
RESAMPLES, FLIPS, LEVEL = 2000, 10_000, 0.95
AT_ONCE = 250


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """How far RSum is from that of the first method, on the same host, seeds and queries.

    Attributes:
        mean: over seeds.
        low: of the interval that draws seeds, and images with all their queries, anew.
        high: of the same.
        p: two-sided, of a test that exchanges the two methods' answers image by image, for all
            seeds together; it says nothing about other seeds.
        better: in how many of how many seeds RSum was higher.
    """

    mean: float
    low: float
    high: float
    p: float
    better: tuple[int, int]


@final
@dataclass(frozen=True, slots=True)
class Line:
    """One method on one host, over its seeds.

    Attributes:
        host: the matcher.
        method: how it was trained.
        lists: whose scores mined its negatives.
        seeds: in order.
        means: of every metric, by name.
        deviation: of RSum between seeds (n - 1); None for a single one.
        against: the first method, or None for itself.
    """

    host: str
    method: str
    lists: str
    seeds: tuple[int, ...]
    means: dict[str, float]
    deviation: float | None
    against: Difference | None


def lines(entries: Sequence[Entry], first: str = ONLINE) -> tuple[Line, ...]:
    """A line for each host and method, in the order in which they were first met.

    Args:
        entries: of one table and budget.
        first: method that the others are compared with.

    Raises:
        ValueError: nothing, or results of different protocols or data.
    """
    _check_same(entries)
    rows: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        rows.setdefault((entry.host, entry.method, entry.lists), []).append(entry)
    base = {(entry.host, entry.seed): entry for entry in entries if entry.method == first}
    hosts = list(dict.fromkeys(entry.host for entry in entries))
    order = sorted(rows, key=lambda row: (hosts.index(row[0]), row[1] != first))
    return tuple(_line(sorted(rows[row], key=lambda e: e.seed), base, first) for row in order)


def setting(protocol: str) -> str:
    """A protocol without how many models there are and their seed: what rows may differ in."""
    own = ("single model", "ensemble of ", "seed ", "seeds ")
    return "; ".join(part for part in protocol.split("; ") if not part.startswith(own))


def _check_same(entries: Sequence[Entry]) -> None:
    if not entries:
        raise ValueError("there is no result yet; run the table first")
    for what, given in (
        ("tables", {(e.table, e.budget) for e in entries}),
        ("protocols", {setting(e.protocol) for e in entries}),
        ("data sets", {e.data for e in entries}),
    ):
        if len(given) > 1:
            told = "; ".join(sorted(str(one) for one in given))
            raise ValueError(f"results of different {what} cannot stand in one table: {told}")


def _line(runs: Sequence[Entry], base: dict[tuple[str, int], Entry], first: str) -> Line:
    rsums = torch.tensor([run.numbers[RSUM] for run in runs], dtype=torch.float64)
    pairs = [(base[run.host, run.seed], run) for run in runs if (run.host, run.seed) in base]
    compared = runs[0].method != first and pairs
    return Line(
        host=runs[0].host,
        method=runs[0].method,
        lists=runs[0].lists,
        seeds=tuple(run.seed for run in runs),
        means={m: sum(run.numbers[m] for run in runs) / len(runs) for m in METRICS},
        deviation=float(rsums.std()) if len(runs) > 1 else None,
        against=_difference(pairs) if compared else None,
    )


def _difference(pairs: Sequence[tuple[Entry, Entry]]) -> Difference:
    """Of the second of each pair from the first."""
    changes = torch.stack([second.shares() - first.shares() for first, second in pairs])
    rng = torch.Generator().manual_seed(0)
    drawn = torch.cat(
        [_drawn(changes, min(AT_ONCE, RESAMPLES - n), rng) for n in range(0, RESAMPLES, AT_ONCE)]
    )
    edge = (1 - LEVEL) / 2
    low, high = drawn.quantile(torch.tensor([edge, 1 - edge], dtype=torch.float64)).tolist()
    each = changes.sum(1)
    return Difference(
        mean=float(each.mean()),
        low=low,
        high=high,
        p=_chance(changes.mean(0), rng),
        better=(int((each > 0).sum()), len(each)),
    )


def _drawn(changes: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """(count,) mean changes of RSum, seeds and images drawn with replacement."""
    seeds, images = changes.shape
    picked = changes[torch.randint(seeds, (count, seeds), generator=rng)].mean(1)
    return picked.gather(1, torch.randint(images, (count, images), generator=rng)).sum(1)


def _chance(changes: Tensor, rng: torch.Generator) -> float:
    """Share of random sign flips whose sum is at least as far from 0 as the real one."""
    real, changes = changes.sum().abs() - 1e-9, changes[changes != 0]
    extreme = 0
    for start in range(0, FLIPS, AT_ONCE):
        shape = (min(AT_ONCE, FLIPS - start), len(changes))
        signs = torch.randint(2, shape, generator=rng).double() * 2 - 1
        extreme += int(((signs @ changes).abs() >= real).sum())
    return (extreme + 1) / (FLIPS + 1)
