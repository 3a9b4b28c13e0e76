"""Figures of results with their intervals: grouped bars, and curves against a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from counterfoil.evaluate.drawing import (
    INK,
    MARKS,
    SERIES,
    SIZE,
    WIDE,
    dress,
    literal,
    series_colour,
    svg,
)
from counterfoil.evaluate.figures import Figure
from counterfoil.evaluation.bootstrap import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROOM = 0.25  # under the lowest interval, of the span of all


@final
@dataclass(frozen=True, slots=True)
class Point:
    """One result.

    Attributes:
        series: whose colour it has.
        value: the result.
        interval: of the result.
        group: of bars.
        at: where it stands on the horizontal axis of a curve.
    """

    series: str
    value: float
    interval: Interval
    group: str = ""
    at: float = 0.0

    @property
    def spread(self) -> tuple[float, float]:
        """How far the interval goes below the value and above it."""
        return max(0, self.value - self.interval.low), max(0, self.interval.high - self.value)


def bars(points: Sequence[Point], label: str, key: str, caption: str) -> Figure:
    """Bars side by side in groups; where intervals are narrow the axis does not begin at 0.

    Args:
        points: at least one; groups and series in the order in which they first appear.
        label: of the vertical axis.
        key: of the figure on its page.
        caption: what it shows.
    """
    from matplotlib.figure import Figure as Canvas

    groups = list(dict.fromkeys(point.group for point in points))
    names = list(dict.fromkeys(point.series for point in points))
    canvas = Canvas(figsize=WIDE, layout="constrained")
    axes = canvas.subplots()
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        mine = [point for point in points if point.series == name]
        left = [groups.index(p.group) - 0.4 + width * (number + 0.5) for p in mine]
        axes.bar(
            left, [p.value for p in mine], width * 0.92, yerr=_spreads(mine), ecolor=INK,
            color=series_colour(number), alpha=0.6, error_kw={"elinewidth": 1.2},
            label=literal(name),
        )  # fmt: skip
    low = _bottom(points)
    axes.set_ylim(bottom=low)
    axes.set_xticks(range(len(groups)), [literal(group) for group in groups])
    dress(axes, "", label)
    words = "; ".join(
        f"{group}: " + ", ".join(f"{p.series} {p.value:.1f}" for p in points if p.group == group)
        for group in groups
    )
    begins = f"The axis begins at {low:.0f}; lines are 95 % intervals."
    return Figure(svg(canvas, key), f"{label}: {words}.", (caption, begins))


def curves(
    points: Sequence[Point],
    label: str,
    against: str,
    key: str,
    caption: str,
    *,
    log: bool,
    columns: int = 3,
) -> Figure:
    """Results against a number, a line through the means of each series.

    Args:
        points: at least one.
        label: of the vertical axis.
        against: of the horizontal axis.
        key: of the figure on its page.
        caption: what it shows.
        log: whether the horizontal axis is logarithmic.
        columns: of the legend; long names want one.
    """
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=SIZE, layout="constrained")
    axes = canvas.subplots()
    names = list(dict.fromkeys(point.series for point in points))
    ticks = sorted({point.at for point in points})
    for number, name in enumerate(names):
        mine = [point for point in points if point.series == name]
        colour = series_colour(number)
        step = 0.02 * (number - (len(names) - 1) / 2)  # so that intervals do not hide each other
        places = {at: at * 16**step if log else at + step * (ticks[-1] - ticks[0]) for at in ticks}
        here = sorted({point.at for point in mine})
        means = {at: _mean([p.value for p in mine if p.at == at]) for at in here}
        axes.plot(
            [places[at] for at in means], list(means.values()), color=colour, linewidth=1.8,
            linestyle=MARKS[number % SERIES], label=literal(name),
        )  # fmt: skip
        axes.errorbar(
            [places[p.at] for p in mine], [p.value for p in mine], yerr=_spreads(mine),
            color=colour, fmt="o", markersize=4.5, elinewidth=1.2,
        )  # fmt: skip
    if log:
        axes.set_xscale("log", base=2)
    _ticked(axes, ticks)
    dress(axes, against, label, columns=columns)
    words = "; ".join(f"{p.series} at {p.at:g}: {p.value:.1f}" for p in points)
    lines = caption, "Points with their 95 % intervals; lines go through means."
    return Figure(svg(canvas, key), f"{label} by {against}: {words}.", lines)


def _ticked(axes: Axes, ticks: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _spreads(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [p.spread[0] for p in points], [p.spread[1] for p in points]


def _bottom(points: Sequence[Point]) -> float:
    """Where the axis begins: below the lowest interval, and not below 0."""
    low = min(point.interval.low for point in points)
    high = max(point.interval.high for point in points)
    begins = low - _ROOM * (high - low)
    return float(int(begins)) if begins > high / 4 else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
