"""Evaluations side by side, with intervals and paired differences; a cascade by its cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from counterfoil.evaluation.bootstrap import Comparison, Interval, compare, intervals, sums
from counterfoil.evaluation.cascade import ShortlistReport
from counterfoil.evaluation.metrics import (
    JOINT_METRICS,
    RECALLS,
    RSUM,
    EvaluationReport,
    common_line,
    finite_or_none,
)
from counterfoil.report.figures import ResultPoint, result_curves
from counterfoil.report.page import Figure, TableBlock, TableCell, TableRow
from counterfoil.report.tables import MISSING, terminal_text

MAP_AT_R = "t2i mAP@R"
GROUPS = (("Image to text", "i2t "), ("Text to image", "t2i "))


@final
@dataclass(frozen=True, slots=True)
class RunResult:
    """Numbers of a run."""

    name: str  # of the run
    metrics: tuple[str, ...]  # `METRICS`, and further ones
    numbers: tuple[float, ...]  # one for each of the metrics
    intervals: tuple[Interval, ...]  # one for each of the metrics
    against: tuple[Comparison, ...] = ()  # with the first run; empty for the first run itself
    fine: frozenset[str] = frozenset()  # metrics of small numbers, which need three decimals

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, with None for NaN."""
        return {
            "name": self.name,
            "metrics": list(self.metrics),
            "numbers": [finite_or_none(number) for number in self.numbers],
            "intervals": [interval.to_dict() for interval in self.intervals],
            "against": [change.to_dict() for change in self.against],
        }


def results(reports: Mapping[str, EvaluationReport]) -> tuple[RunResult, ...]:
    """Compute intervals of runs, by name, and compare each with the first.

    Raises:
        ValueError: the runs were not made on the same queries.
    """
    runs = list(reports.items())
    return tuple(
        RunResult(
            name,
            report.names,
            report.numbers,
            intervals(report),
            compare(runs[0][1], report) if place else (),
            report.fine,
        )
        for place, (name, report) in enumerate(runs)
    )


@final
@dataclass(frozen=True, eq=False, repr=False)
class EvaluationComparison:
    """Evaluations on the same queries side by side; print it to see differences from the first.

    Attributes:
        runs: numbers, intervals, and in `RunResult.against` the differences from the first run,
            with intervals and p.
        place: data set and split.
        protocol: of all runs, in one sentence.
    """

    runs: tuple[RunResult, ...]
    place: str
    protocol: str

    @classmethod
    def of(cls, reports: Mapping[str, EvaluationReport]) -> EvaluationComparison:
        """Compare runs, by name, with the first of them.

        Raises:
            ValueError: the runs were not made on the same queries, or have different metrics.
        """
        settings = [report.setting for report in reports.values()]
        return cls(results(reports), settings[0].place, common_line(settings))

    @property
    def headlines(self) -> list[str]:
        """A sentence for each run but the first."""
        return [f"On {self.place}, {headline((self.runs[0], run))}" for run in self.runs[1:]]

    @property
    def differences(self) -> dict[str, Comparison]:
        """Of the last run from the first, by metric."""
        return {change.metric: change for change in self.runs[-1].against}

    def table(self) -> TableBlock:
        """All metrics by run."""
        return result_table(self.runs)

    def to_dict(self) -> list[dict[str, Any]]:
        """JSON-ready form: each run with its differences from the first, None for NaN."""
        return [run.to_dict() for run in self.runs]

    def __repr__(self) -> str:
        return "\n".join([*self.headlines, terminal_text(self.table(), self.protocol)])


def headline(runs: Sequence[RunResult]) -> str:
    """RSum of the last run and its difference from the first, in one sentence."""
    first, last = runs[0], runs[-1]
    if not last.against:
        span = first.intervals[RSUM]
        return f"RSum {first.numbers[RSUM]:.1f} (95 % interval {span.low:.1f} to {span.high:.1f})."
    change = last.against[RSUM]
    span = change.interval
    word = "more" if change.difference >= 0 else "less"
    caveat = "" if span.low > 0 or span.high < 0 else ", which could be chance"
    return (
        f"{last.name} reaches RSum {last.numbers[RSUM]:.1f}, {abs(change.difference):.1f} {word} "
        f"than {first.name} (95 % interval of the difference {signed(span.low)} to "
        f"{signed(span.high)}{caveat})."
    )


def result_table(runs: Sequence[RunResult]) -> TableBlock:
    """Tabulate all metrics by run, with intervals and differences from the first run."""
    if not runs:
        raise ValueError("a report needs at least one evaluated run")
    head = ["Metric"]
    for run in runs:
        head += [run.name, "difference", "p"] if run.against else [run.name]
    rows: list[TableRow] = []
    for title, start in GROUPS:
        rows.append((title,))
        rows += [_row(runs, metric) for metric in runs[0].metrics if metric.startswith(start)]
    rows += [("Both",), *(_row(runs, metric.name) for metric in JOINT_METRICS)]
    differences = (
        f" Differences are from {runs[0].name}; p: two-sided, from exchanging the two runs' "
        "answers image by image, not corrected for the number of metrics."
    )
    note = (
        "Recalls in percent. Below each number: 95 % interval, bootstrapped over images with all "
        f"their captions.{differences if len(runs) > 1 else ''} For ranks, lower is better."
    )
    return TableBlock("Retrieval", tuple(head), tuple(rows), note)


def model_table(runs: Sequence[RunResult]) -> TableBlock:
    """Tabulate R@1 of both directions and RSum by model, in the fewest lines."""
    head = ("Model", "R@1, image to text", "R@1, text to image", "RSum", "difference", "p")
    rows = tuple(
        (
            run.name,
            *(_with_span(run, metric) for metric in ("i2t R@1", "t2i R@1", "RSum")),
            _change(run, "RSum"),
            chance(run.against[RSUM].p) if run.against else "",
        )
        for run in runs
    )
    note = f"Below each number: its 95 % interval. Differences of RSum are from {runs[0].name}."
    return TableBlock("Retrieval", head, rows, note)


def truths_table(runs: Sequence[RunResult], several: Sequence[RunResult]) -> TableBlock:
    """Tabulate RSum by own captions beside mAP@R by a truth of several right answers."""
    head = ("Model", "RSum, own captions", "difference", "mAP@R, all true pairs", "difference")
    rows = tuple(
        (
            own.name,
            *(_with_span(own, "RSum"), _change(own, "RSum")),
            *(_with_span(by_all, MAP_AT_R), _change(by_all, MAP_AT_R)),
        )
        for own, by_all in zip(runs, several, strict=True)
    )
    note = (
        f"Below each number: its 95 % interval. Differences are from {runs[0].name}. mAP@R: of "
        "pictures for a caption, by every pair that is true."
    )
    return TableBlock("By own captions, and by all true pairs", head, rows, note)


def _with_span(run: RunResult, metric: str) -> TableCell:
    """A number of a run above its interval."""
    place = run.metrics.index(metric)
    span = run.intervals[place]
    under = f"{figure(metric, span.low)} to {figure(metric, span.high)}"
    return TableCell(figure(metric, run.numbers[place]), under)


def _change(run: RunResult, metric: str) -> str | TableCell:
    """The difference from the first run above its interval; nothing for the first."""
    if not run.against:
        return ""
    change = run.against[run.metrics.index(metric)]
    under = f"{signed(change.interval.low)} to {signed(change.interval.high)}"
    return TableCell(signed(change.difference), under)


def _row(runs: Sequence[RunResult], metric: str) -> TableRow:
    place = runs[0].metrics.index(metric)
    numbers = [run.numbers[place] for run in runs]
    best = min(numbers) if metric.endswith("rank") else max(numbers)
    digits = 3 if all(metric in run.fine for run in runs) else 1
    differ = len({figure(metric, number, digits) for number in numbers}) > 1
    cells: list[str | TableCell] = []
    for run, number in zip(runs, numbers):
        span = run.intervals[place]
        under = f"{figure(metric, span.low, digits)} to {figure(metric, span.high, digits)}"
        shown = figure(metric, number, digits)
        cells.append(TableCell(shown, under, best=number == best and differ))
        if run.against:
            change = run.against[place]
            found = change.difference, change.interval.low, change.interval.high
            difference, low, high = (signed(value, metric, digits) for value in found)
            cells.append(TableCell(difference, f"{low} to {high}"))
            cells.append(chance(change.p))
    name = metric.removeprefix("i2t ").removeprefix("t2i ")
    # "median rank" begins with a capital; "mAP" and the name of a function stay
    return name[0].upper() + name[1:] if name.endswith(" rank") else name, *cells


def cascade_table(name: str, shortlists: ShortlistReport) -> TableBlock:
    """Tabulate recalls by the number of pairs that the re-ranking model scores for a query."""
    setting = shortlists.first.setting
    queries = setting.images + setting.texts
    rows = [("0", "0", *_recalls(shortlists.first))]
    rows += [
        (f"{point.depth:,}", f"{point.pairs / queries:,.1f}", *_recalls(point.report))
        for point in shortlists.curve
    ]
    if shortlists.full:
        pairs = setting.images * setting.texts / setting.protocol.folds
        rows.append(("all", f"{pairs / queries:,.1f}", *_recalls(shortlists.full)))
    head = ("depth", "pairs", *(f"i2t {metric.name}" for metric in RECALLS.values()))
    note = (
        "Depth: first items of a query that are scored again; 0 is the first model alone. Pairs: "
        "different pairs of both directions, divided by the number of images and captions."
    )
    return TableBlock(
        f"Recall against cost: {name}",
        (*head, *(f"t2i {metric.name}" for metric in RECALLS.values()), "RSum"),
        tuple(rows),
        note,
    )


def _recalls(report: EvaluationReport) -> tuple[str, ...]:
    sides = report.i2t, report.t2i
    return (*(f"{r:.1f}" for s in sides for r in s.recalls.values()), f"{report.rsum:.1f}")


def cascade_figure(curves: Mapping[str, ShortlistReport]) -> Figure:
    """Draw RSum against the number of pairs that are scored for a query, by name of the cascade."""
    points = []
    for name, shortlists in curves.items():
        for point in shortlists.curve:
            span = sums(point.report)[0]
            points.append(ResultPoint(name, point.report.rsum, span.low, span.high, at=point.depth))
    alone = "; ".join(f"{name} {curve.first.rsum:.1f}" for name, curve in curves.items())
    caption = f"RSum of a cascade by its depth; by the first model alone: {alone}."
    label = "pairs scored for a query"
    return result_curves(points, "RSum", label, "cascade", caption, log=True, columns=1)


def figure(metric: str, number: float, digits: int = 1) -> str:
    """Format a metric: medians as integers, all others with so many decimals."""
    if math.isnan(number):
        return MISSING
    integral = metric.endswith("median rank") and number == int(number)
    return f"{number:.0f}" if integral else f"{number:,.{digits}f}"


def signed(number: float, metric: str = "", digits: int = 1) -> str:
    """Format a difference with its sign."""
    text = figure(metric, abs(number), digits)
    if text == MISSING or not float(text.replace(",", "")):
        return text
    return f"{'+' if number > 0 else '−'}{text}"


def chance(p: float | None) -> str:
    """A p-value as it stands in tables: three digits, "–" for none."""
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
