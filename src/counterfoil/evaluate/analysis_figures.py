"""Figures of the analyses: ranks by batch size, and shares of cross-retrieval ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from counterfoil.evaluate.cross_rank import BINS
from counterfoil.evaluate.drawing import (
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


@final
@dataclass(frozen=True, slots=True)
class Counted:
    """One quantity at several batch sizes, as counting has it and as it was measured.

    Attributes:
        name: of the direction.
        batches: the sizes.
        expected: by counting.
        measured: with a model.
        spread: half of the measurement's 95 % interval; empty where there is none.
    """

    name: str
    batches: tuple[int, ...]
    expected: tuple[float, ...]
    measured: tuple[float, ...]
    spread: tuple[float, ...] = ()


def by_batch(
    series: Sequence[Counted], label: str, key: str, caption: str, *, log: bool = False
) -> Figure:
    """A quantity by batch size: lines by counting, points as measured.

    Args:
        series: what to draw, at least one.
        label: of the vertical axis.
        key: of the figure on its page.
        caption: what it shows.
        log: whether the vertical axis is logarithmic, as the horizontal one is.
    """
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    canvas = Canvas(figsize=SIZE, layout="constrained")
    axes = canvas.subplots()
    for number, line in enumerate(series):
        colour = series_colour(number)
        axes.plot(
            line.batches, line.expected, color=colour, linewidth=1.8, label=literal(line.name),
            linestyle=MARKS[number % SERIES],
        )  # fmt: skip
        axes.errorbar(
            line.batches, line.measured, yerr=line.spread or None, color=colour, fmt="o",
            markersize=4.5, elinewidth=1.2,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=0)
    plain = FuncFormatter(lambda value, _: f"{value:,.6g}")
    axes.xaxis.set_major_formatter(plain)
    axes.yaxis.set_major_formatter(plain)
    axes.set_xticks(series[0].batches)
    axes.xaxis.set_minor_locator(NullLocator())
    dress(axes, "captions in a batch", label)
    words = "; ".join(
        f"{line.name}: {line.measured[0]:.3g} at {line.batches[0]:,}, "
        f"{line.measured[-1]:.3g} at {line.batches[-1]:,}"
        for line in series
    )
    alt = f"{label[0].upper()}{label[1:]} by batch size, measured: {words}."
    return Figure(svg(canvas, key), alt, (caption, "Lines: by counting. Points: measured."))


def cross_ranks(models: Sequence[tuple[str, Sequence[float]]]) -> Figure:
    """Shares of the true pairs by cross-retrieval rank, models side by side.

    Args:
        models: name, and percent of the pairs in each of `counterfoil.evaluate.cross_rank.BINS`.
    """
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=WIDE, layout="constrained")
    axes = canvas.subplots()
    width = 0.8 / len(models)
    for number, (name, shares) in enumerate(models):
        left = [place - 0.4 + width * (number + 0.5) for place in range(len(BINS))]
        axes.bar(left, shares, width * 0.92, color=series_colour(number), label=literal(name))
    axes.set_xticks(range(len(BINS)), BINS)
    dress(axes, "cross-retrieval rank", "share of true pairs, %")
    words = "; ".join(
        f"{name}: {shares[0]:.1f} % at rank 1, {shares[-1]:.1f} % {BINS[-1]}"
        for name, shares in models
    )
    caption = "Further left is better.", *(f"{part}." for part in words.split("; "))
    return Figure(svg(canvas, "cross"), f"{words}.", caption)
