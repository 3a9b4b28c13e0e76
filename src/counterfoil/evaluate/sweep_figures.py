"""Figure of a sweep: every point a line through its values, ending at what it reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from counterfoil.report.figures import FAINT, INK, WIDE, literal, series_colour, svg
from counterfoil.report.page import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEAST, _MOST = 0.12, 0.6  # how plain a line is, among many and among few


@final
@dataclass(frozen=True, slots=True)
class Tried:
    """A point of a grid.

    Attributes:
        values: one for each axis.
        reached: its figure, higher is better.
    """

    values: tuple[str, ...]
    reached: float


def parallel(
    axes: Sequence[tuple[str, Sequence[str]]], points: Sequence[Tried], label: str, key: str
) -> Figure:
    """Parallel coordinates, the best point on top of the others.

    Args:
        axes: name and values of each, from the bottom up.
        points: at least one.
        label: of what they reached.
        key: of the figure on its page.
    """
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=WIDE, layout="constrained")
    drawn = canvas.subplots()
    best = max(points, key=lambda point: point.reached)
    low, high = min(point.reached for point in points), best.reached
    plainness = max(_LEAST, min(_MOST, 8 / len(points)))
    for point in sorted(points, key=lambda point: point is best):
        heights = [_height(values, value) for (_, values), value in zip(axes, point.values)]
        heights.append((point.reached - low) / (high - low) if high > low else 0.5)
        if point is best:
            drawn.plot(heights, color=series_colour(0), linewidth=2.6, zorder=3)
        else:
            drawn.plot(heights, color=INK, alpha=plainness, linewidth=1, zorder=2)
    for place, (_, values) in enumerate(axes):
        _scale(drawn, place, [(_height(values, value), value) for value in values])
    ends = [(0.0, f"{low:.1f}"), (1.0, f"{high:.1f}")] if high > low else [(0.5, f"{high:.1f}")]
    _scale(drawn, len(axes), ends)
    _frame(drawn, [*(name for name, _ in axes), label])
    said = ", ".join(f"{name} {value}" for (name, _), value in zip(axes, best.values))
    lines = "A line is a point of the grid.", f"The best one: {said}."
    return Figure(
        svg(canvas, key),
        f"{label} of {len(points)} points from {low:.1f} to {high:.1f}; the best has {said}.",
        lines,
    )


def _height(values: Sequence[str], value: str) -> float:
    return list(values).index(value) / (len(values) - 1) if len(values) > 1 else 0.5


def _scale(drawn: Axes, place: int, marks: Sequence[tuple[float, str]]) -> None:
    """An upright line with words beside it."""
    drawn.axvline(place, color=FAINT, linewidth=1.2, zorder=1)
    for height, text in marks:
        drawn.annotate(
            literal(text), (place, height), xytext=(5, 4), textcoords="offset points",
            va="bottom", color=INK, fontsize=9,
        )  # fmt: skip


def _frame(drawn: Axes, names: Sequence[str]) -> None:
    """Names below the upright lines, and nothing else."""
    drawn.set_xticks(range(len(names)), [literal(name) for name in names])
    drawn.tick_params(colors=INK, labelsize=9.5, length=0, pad=8)
    drawn.set_yticks([])
    drawn.set_ylim(-0.06, 1.16)
    drawn.set_xlim(-0.15, len(names) - 1 + 0.35)
    for spine in drawn.spines.values():
        spine.set_visible(False)
