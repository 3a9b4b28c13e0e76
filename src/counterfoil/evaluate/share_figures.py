"""Figures of triples, of shares with their intervals, and of doubts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from counterfoil.evaluate.drawing import (
    FAINT,
    INK,
    SERIES,
    SIZE,
    dress,
    layers,
    literal,
    note,
    series_colour,
    svg,
)
from counterfoil.evaluate.figures import Figure
from counterfoil.evaluate.triples import Triples
from counterfoil.evaluation.bootstrap import Share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

SIGNS = ("o", "^", "s", "D", "v", "P")
DRAWN = 1000  # triples of a source, at most
SQUARE = (4.6, 4.4)
ROOMY = 5.8  # inches, with words beside the axis
BINS = 25


@final
@dataclass(frozen=True, slots=True)
class Dot:
    """A share in percent.

    Attributes:
        line: it stands in.
        series: whose colour it has.
        share: where it stands, with its interval.
        idle: what needs no model, or None.
    """

    line: str
    series: str
    share: Share
    idle: float | None = None


def scatter(sources: Sequence[Triples], level: float, key: str, caption: str) -> Figure:
    """Score of the negative against score of the positive, a point a triple.

    Args:
        sources: triples of one model, at least one.
        level: how far below the diagonal a second line runs.
        key: of the figure on its page.
        caption: what it shows.
    """
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=SQUARE, layout="constrained")
    axes = canvas.subplots()
    every = torch.cat([t for one in sources for t in (one.positive, one.negative)]).double()
    low, high = every.min().item(), every.max().item()
    room = 0.03 * max(high - low, 1e-6)
    ends = low - room, high + room
    for number, one in enumerate(sources):
        axes.scatter(
            one.positive[:DRAWN].tolist(), one.negative[:DRAWN].tolist(), s=14, alpha=0.55,
            marker=SIGNS[number % SERIES], color=series_colour(number), linewidths=0,
            label=literal(one.source),
        )  # fmt: skip
    axes.plot(ends, ends, color=INK, linewidth=1, linestyle=":")
    axes.plot(ends, [end - level for end in ends], color=INK, linewidth=1)
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_aspect("equal")
    dress(axes, "score of the positive", "score of the negative", columns=2)
    words = "; ".join(
        f"{one.source}: {100 * (one.gaps > 0).double().mean():.1f} % above the dotted line"
        for one in sources
    )
    where = "" if level < high - low else ", outside the frame"
    lines = f"Dotted: as high as the positive. Solid: {level:g} below it{where}."
    most = max(len(one.positive) for one in sources)
    some = (f"{DRAWN:,} of {most:,} triples of a source are drawn.",) if most > DRAWN else ()
    return Figure(svg(canvas, key), f"{caption} {words}.", (caption, lines, *some))


def dots(found: Sequence[Dot], label: str, key: str, caption: str, idle: str = "") -> Figure:
    """Shares as points with their intervals, one line under the other.

    Args:
        found: at least one; lines and series in the order in which they first appear.
        label: of the horizontal axis.
        key: of the figure on its page.
        caption: what it shows.
        idle: what the bars across the lines are, where there are any.
    """
    from matplotlib.figure import Figure as Canvas

    lines = list(dict.fromkeys(dot.line for dot in found))
    names = list(dict.fromkeys(dot.series for dot in found))
    canvas = Canvas(figsize=(ROOMY, 1.1 + 0.36 * len(lines)), layout="constrained")
    axes = canvas.subplots()
    for number, name in enumerate(names):
        mine = [dot for dot in found if dot.series == name and dot.share.count]
        down = 0.22 * (number - (len(names) - 1) / 2)
        at = [lines.index(dot.line) + down for dot in mine]
        values = [dot.share.value for dot in mine]
        ends = [(dot.share.interval.low, dot.share.interval.high) for dot in mine]
        axes.hlines(
            at, [low for low, _ in ends], [high for _, high in ends], color=series_colour(number),
            linewidth=1.6,
        )  # fmt: skip
        axes.plot(
            values, at, SIGNS[number % SERIES], color=series_colour(number), markersize=5,
            label=literal(name),
        )  # fmt: skip
    known = {dot.line: dot.idle for dot in found if dot.idle is not None}
    axes.plot(
        list(known.values()), [lines.index(line) for line in known], "|", color=INK, markersize=11,
        label=literal(idle) if known else None,
    )  # fmt: skip
    axes.set_yticks(range(len(lines)), [literal(line) for line in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlim(-2, 102)
    dress(axes, label, "")
    _above(canvas, axes)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    words = "; ".join(
        f"{dot.line}, {dot.series}: {dot.share.value:.1f}" for dot in found if dot.share.count
    )
    return Figure(svg(canvas, key), f"{label}: {words}.", (caption, "Lines: 95 % intervals."))


def _above(canvas: Canvas, axes: Axes) -> None:
    """The legend over the whole drawing: names beside the axis leave it too little room."""
    legend = axes.get_legend()
    assert legend is not None
    legend.remove()
    canvas.legend(
        loc="outside upper left", frameon=False, labelcolor=INK, fontsize=9.5, ncols=2,
        handlelength=1.2, columnspacing=1.6,
    )  # fmt: skip


def doubts(right: Tensor, same: Tensor, threshold: float) -> Figure:
    """How likely a model takes right and wrong words for right.

    Args:
        right: (N,) how likely each is right.
        same: (N,) bool, which are.
        threshold: from which on the model takes one for right.
    """
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=SIZE, layout="constrained")
    axes = canvas.subplots()
    sides = ("wrong words", right[~same]), ("right words", right[same])
    named = [(name, values.tolist()) for name, values in sides if len(values)]
    layers(axes, named, torch.linspace(0, 1, BINS + 1).tolist())
    axes.axvline(threshold, color=INK, linewidth=1, linestyle=":")
    note(axes, threshold, "doubted | trusted")
    dress(axes, "how likely the word is right", "share of words, %")
    words = "; ".join(
        f"of {len(values):,} {name} {100 * sum(v <= threshold for v in values) / len(values):.1f} "
        "% are doubted"
        for name, values in named
    )
    caption = "What the model thinks of each word."
    return Figure(svg(canvas, "doubts"), f"{caption} {words}.", (caption, f"{words}."))
