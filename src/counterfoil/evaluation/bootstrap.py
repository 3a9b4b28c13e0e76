"""Bootstrap over images: confidence intervals and paired tests of every measure.

The ranks of one image's captions are correlated, so images are the sampling units, each with all
its queries or items (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 13
and 15). A resample is a row of counts, the number of times that each image occurs in it: a
resampled sum is then one matrix product of counts and sums per image. Folds are strata, resampled
within themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.evaluation.metrics import (
    DIRECTION_METRICS,
    JOINT_METRICS,
    METRICS,
    RSUM,
    EvaluationReport,
    Metric,
    RankedQueries,
    finite_or_none,
)
from counterfoil.report.figures import ResultPoint
from counterfoil.report.tables import MISSING, format_interval

CELLS = 2**22  # numbers in memory at once
RESAMPLES = 1000
_SHOWN = tuple(DIRECTION_METRICS.values())
_OF_BOTH = [*_SHOWN, *_SHOWN]  # the metric behind each of `METRICS` but the joint ones
MEDIANS = tuple(name for name, metric in zip(METRICS, _OF_BOTH) if not metric.is_mean)
_MEANS = {key: metric for key, metric in DIRECTION_METRICS.items() if metric.is_mean}
EDGES = (0.025, 0.975)  # of a 95 % interval


@final
@dataclass(frozen=True, slots=True)
class Interval:
    """Percentile bootstrap interval of a measure; NaN where nothing was measured."""

    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        """The interval as plain values for JSON, with None for NaN."""
        return {"low": finite_or_none(self.low), "high": finite_or_none(self.high)}


def image_draws(
    strata: Sequence[Tensor], images: int, *, resamples: int, seed: int, width: int
) -> Iterator[Tensor]:
    """Resample images: (b, I) double counts of each image, some resamples at a time.

    Strata are image rows, each resampled within itself. `width` is the number of values that the
    caller computes for each resample, which bounds b.

    Raises:
        ValueError: no resample.
    """
    if resamples < 1:
        raise ValueError(f"intervals need at least 1 resample, not {resamples}")
    rng = torch.Generator().manual_seed(seed)
    at_once = max(1, CELLS // max(1, width))
    for start in range(0, resamples, at_once):
        counts = torch.zeros(min(at_once, resamples - start), images, dtype=torch.double)
        for rows in strata:
            if len(rows):
                sample = rows[torch.randint(len(rows), (len(counts), len(rows)), generator=rng)]
                counts.scatter_add_(1, sample, torch.ones_like(sample, dtype=torch.double))
        yield counts


def percentile_interval(values: Tensor) -> Interval:
    """95 % of (R,) resampled values; resamples without a value (NaN) do not count."""
    low, high = values.nanquantile(torch.tensor(EDGES, dtype=torch.double)).tolist()
    return Interval(low, high)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """Points of N items and the most points possible, in one column or in several.

    Attributes:
        gained: (N,) or (N, C) double, points.
        possible: the same shape, most points; all ones for a mean over items.
    """

    gained: Tensor
    possible: Tensor

    @classmethod
    def where(cls, right: Tensor, among: Tensor | None = None) -> Counted:
        """Share of items that are right.

        Args:
            right: (N,) bool.
            among: (N,) bool, items that count; None for all.
        """
        counted = torch.ones_like(right) if among is None else among
        return cls((right & counted).double(), counted.double())

    @classmethod
    def mean(cls, values: Tensor) -> Counted:
        """Mean of (N,) values."""
        return cls(values.double(), torch.ones_like(values, dtype=torch.double))


@final
@dataclass(frozen=True, slots=True)
class Share:
    """Points as a share of the possible ones, with its percentile bootstrap interval of 95 %.

    Attributes:
        value: mean over the columns; NaN where nothing is possible.
        interval: of the value.
        count: possible points of all columns.
    """

    value: float
    interval: Interval
    count: int

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, with None for NaN."""
        if not self.count:
            return {"value": None, "interval": None, "count": 0}
        return asdict(self)

    def text(self, form: str = ".1f") -> str:
        """The value with its interval, as in a table; a dash if nothing was counted."""
        if not self.count:
            return MISSING
        return format_interval(self.value, self.interval.low, self.interval.high, form)

    def point(
        self, series: str, *, group: str = "", at: float = 0.0, baseline: float | None = None
    ) -> ResultPoint:
        """A point of a figure; NaN if nothing was counted."""
        value = self.value if self.count else float("nan")
        span = self.interval
        return ResultPoint(series, value, span.low, span.high, group, at, baseline)


def shares(
    counted: Sequence[Counted],
    images: Tensor,
    *,
    scale: float = 1.0,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> tuple[Share, ...]:
    """Share of each quantity, all under the same resamples of images.

    Args:
        counted: quantities of the same N items.
        images: (N,) long, the image of each item.
        scale: 100 for percent.
        seed: of the resampling.
        resamples: number of resamples.
    """
    unique, rows = images.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    totals = [_by_image(quantity, rows, len(unique)) for quantity in counted]
    once = torch.ones(1, len(unique), dtype=torch.double)
    spread: list[list[Tensor]] = [[] for _ in counted]
    for counts in image_draws(
        [torch.arange(len(unique))],
        len(unique),
        resamples=resamples,
        seed=seed,
        width=len(unique),
    ):
        for values, (gained, possible) in zip(spread, totals, strict=True):
            values.append(_share_of(counts, gained, possible))
    return tuple(
        Share(
            scale * _share_of(once, gained, possible).item(),
            percentile_interval(scale * torch.cat(values)),
            int(possible.sum()),
        )
        for (gained, possible), values in zip(totals, spread, strict=True)
    )


def _share_of(counts: Tensor, gained: Tensor, possible: Tensor) -> Tensor:
    """(R,) share of the possible points in each resample, the mean over columns that have any."""
    return ((counts @ gained) / (counts @ possible)).nanmean(1)


def _by_image(one: Counted, rows: Tensor, images: int) -> tuple[Tensor, Tensor]:
    """(I, C) points of the items of each image, and the possible points."""
    empty = torch.zeros(images, 1 if one.gained.dim() == 1 else one.gained.shape[1]).double()
    gained, possible = (
        empty.index_add(0, rows, part.double().view(len(rows), empty.shape[1]))
        for part in (one.gained, one.possible)
    )
    return gained, possible


@final
@dataclass(frozen=True, slots=True)
class Comparison:
    """Difference of a metric between two runs on the same queries.

    Attributes:
        metric: one of `EvaluationReport.names`.
        difference: second run minus first.
        interval: percentile bootstrap interval of the difference, both runs resampled alike.
        p: two-sided, of a test that exchanges the runs' answers image by image (sign flips); None
            for median ranks. Not corrected for the number of metrics.
    """

    metric: str
    difference: float
    interval: Interval
    p: float | None

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain values for JSON, with None for NaN."""
        return {
            "metric": self.metric,
            "difference": finite_or_none(self.difference),
            "interval": self.interval.to_dict(),
            "p": self.p,
        }


def intervals(
    report: EvaluationReport, *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Interval, ...]:
    """Percentile bootstrap intervals of all numbers, over images with all their queries.

    Args:
        report: an evaluation.
        resamples: number of resamples.
        seed: of the resampling.
    """
    return tuple(map(percentile_interval, _resampled(report, resamples, seed).T))


def sums(
    report: EvaluationReport, *, resamples: int = RESAMPLES
) -> tuple[Interval, Interval, Interval]:
    """Intervals of RSum and of its two halves, with the resamples of `intervals`."""
    values = _resampled(report, resamples, seed=0)
    summed = _summed(_OF_BOTH)
    half = len(summed) // 2
    i2t, t2i = (values[:, places].sum(1) for places in (summed[:half], summed[half:]))
    total, i2t_span, t2i_span = map(percentile_interval, (values[:, RSUM], i2t, t2i))
    return total, i2t_span, t2i_span


def compare(
    first: EvaluationReport,
    second: EvaluationReport,
    *,
    resamples: int = RESAMPLES,
    flips: int = 10_000,
    seed: int = 0,
) -> tuple[Comparison, ...]:
    """Difference of all numbers between two runs on the same queries, with tests.

    Args:
        first: evaluation of one run.
        second: evaluation of another on the same images, texts and folds.
        resamples: number of resamples for the intervals.
        flips: number of random exchanges for the tests; the smallest p is 1 / (flips + 1).
        seed: of the resampling.

    Raises:
        ValueError: the runs have different queries or metrics.
    """
    for one, other in zip(first.ranked, second.ranked):
        _check_same(one, other)
    if first.names != second.names:
        raise ValueError(
            f"the two runs have different metrics, {', '.join(first.names)} and "
            f"{', '.join(second.names)}; measure both alike"
        )
    changes = _resampled(second, resamples, seed) - _resampled(first, resamples, seed)
    spans = map(percentile_interval, changes.T)
    chances = iter(_flipped(_shares(second) - _shares(first), flips, seed).tolist())
    return tuple(
        Comparison(name, after - before, span, next(chances) if tested else None)
        for name, tested, before, after, span in zip(
            first.names, _tested(first), first.numbers, second.numbers, spans, strict=True
        )
    )


def _tested(report: EvaluationReport) -> list[bool]:
    """Whether each of a report's numbers is a sum of shares of images, see `_shares`."""
    joint = [metric.is_sum for metric in JOINT_METRICS]
    of_sides = (metric.is_mean for metric in _OF_BOTH)
    return [*of_sides, *joint, *(metric.is_mean for metric in report.further * 2)]


def _check_same(one: RankedQueries, other: RankedQueries) -> None:
    same = len(one) == len(other) and bool(
        (one.images == other.images).all() and (one.folds == other.folds).all()
    )
    if not same or not bool((one.counted == other.counted).all()):
        raise ValueError(
            f"the two runs answered different queries ({len(one)} and {len(other)} {one.direction} "
            "queries); a paired test needs the same split and protocol on both sides"
        )


def _draws(report: EvaluationReport, resamples: int, seed: int) -> Iterator[Tensor]:
    folds = report.ranked[0].folds
    strata = [(folds == fold).nonzero().flatten() for fold in range(int(folds.max()) + 1)]
    width = max(len(report.ranked[0]), len(report.ranked[1]))
    return image_draws(strata, len(folds), resamples=resamples, seed=seed, width=width)


def _resampled(report: EvaluationReport, resamples: int, seed: int) -> Tensor:
    """(R, M) the numbers of each resample, as `EvaluationReport.numbers` has them."""
    return torch.cat([_metrics(report, counts) for counts in _draws(report, resamples, seed)])


def _metrics(report: EvaluationReport, counts: Tensor) -> Tensor:
    """(b, M) the numbers of some resamples."""
    shown = _of_both(report, counts, _SHOWN)
    i2t, t2i = (dict(zip(DIRECTION_METRICS, side.T, strict=True)) for side in shown.chunk(2, 1))
    joint = [metric.of(i2t, t2i).unsqueeze(1) for metric in JOINT_METRICS]
    return torch.cat([shown, *joint, _of_both(report, counts, report.further)], 1)


def _of_both(report: EvaluationReport, counts: Tensor, metrics: Sequence[Metric]) -> Tensor:
    """(b, 2D) metrics of both directions in some resamples, means over folds."""
    each = [
        torch.cat([_within(ranked, counts, fold, metrics) for ranked in report.ranked], 1)
        for fold in range(len(report.folds))
    ]
    return torch.stack(each).mean(0)


def _summed(metrics: Sequence[Metric]) -> list[int]:
    """Places of the metrics that RSum adds up."""
    return [place for place, metric in enumerate(metrics) if metric.in_rsum]


def _within(ranked: RankedQueries, counts: Tensor, fold: int, metrics: Sequence[Metric]) -> Tensor:
    """(b, D) metrics of one direction in one fold; NaN where a resample has no query."""
    if not metrics:
        return torch.zeros(len(counts), 0, dtype=torch.float64)
    in_fold = (ranked.counted & (ranked.folds == fold)).nonzero().squeeze(1)
    order = in_fold[ranked.ranks[in_fold].argsort(stable=True)]
    ranks, images = ranked.ranks[order], ranked.images[order]
    values = _values(ranked, [metric for metric in metrics if metric.is_mean])[order]
    table = torch.zeros(counts.shape[1], 2 * values.shape[1], dtype=torch.float64)
    table.index_add_(0, images, torch.cat([values.nan_to_num(0), values.isfinite().double()], 1))
    gained, possible = (counts @ table).chunk(2, 1)
    columns = iter((gained / possible).unbind(1))
    times = counts[:, images].long()
    return torch.stack(
        [next(columns) if m.is_mean else _of_resamples(m, ranks, times) for m in metrics], 1
    )


def _values(ranked: RankedQueries, means: Sequence[Metric]) -> Tensor:
    """(Q, C) contribution of each query to every metric that is a mean; NaN for none."""
    values = [metric.values(ranked) for metric in means]
    return torch.stack(values, 1) if values else torch.zeros(len(ranked), 0, dtype=torch.float64)


def _of_resamples(metric: Metric, ranks: Tensor, times: Tensor) -> Tensor:
    """(b,) a metric of sorted ranks, each repeated (b, Q) times; NaN of no rank at all."""
    if metric.of_resamples is not None and len(ranks):
        values = torch.full((len(times),), torch.nan, dtype=torch.float64)
        some = times.any(1)
        values[some] = metric.scale * metric.of_resamples(ranks.double() + 1, times[some])
        return values
    drawn = (ranks.double().repeat_interleave(one) for one in times)
    numbers = [metric.from_ranks(one) if len(one) else torch.nan for one in drawn]
    return torch.tensor(numbers, dtype=torch.float64)


def _shares(report: EvaluationReport) -> Tensor:
    """(I, M) share of each image in every number that is tested; their sums are the numbers."""
    further = [metric for metric in report.further if metric.is_mean]
    shown = [_query_shares(ranked, [*_MEANS.values()]) for ranked in report.ranked]
    i2t, t2i = (dict(zip(_MEANS, side.T, strict=True)) for side in shown)
    joint = [metric.of(i2t, t2i).unsqueeze(1) for metric in JOINT_METRICS if metric.is_sum]
    more = [_query_shares(ranked, further) for ranked in report.ranked]
    return torch.cat([*shown, *joint, *more], 1)


def _query_shares(ranked: RankedQueries, means: Sequence[Metric]) -> Tensor:
    """(I, C) contribution of each image to every metric that is a mean."""
    counted = ranked.counted
    folds, values = ranked.folds[counted], _values(ranked, means)[counted]
    known = values.isfinite().double()
    queries = torch.zeros(int(folds.max()) + 1, values.shape[1], dtype=torch.float64)
    queries.index_add_(0, folds, known)
    weights = 1 / queries[folds].clamp(min=1) / (queries > 0).sum(0).clamp(min=1)
    table = torch.zeros(int(ranked.images.max()) + 1, values.shape[1], dtype=torch.float64)
    return table.index_add_(0, ranked.images[counted], values.nan_to_num(0) * weights)


def _flipped(changes: Tensor, flips: int, seed: int) -> Tensor:
    """(M,) share of random sign flips whose sum is at least as far from 0 as the actual one."""
    rng = torch.Generator().manual_seed(seed + 1)
    actual = changes.sum(0).abs() - 1e-9
    changes = changes[changes.any(1)]
    extreme = torch.zeros_like(actual)
    at_once = max(1, CELLS // max(1, len(changes)))
    for start in range(0, flips, at_once):
        shape = (min(at_once, flips - start), len(changes))
        signs = torch.randint(2, shape, generator=rng).double().mul_(2).sub_(1)
        extreme += ((signs @ changes).abs() >= actual).sum(0)
    return (extreme + 1) / (flips + 1)
