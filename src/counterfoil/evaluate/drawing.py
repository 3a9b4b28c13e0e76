"""How a figure is drawn: inline SVG that takes its colours and letters from the page."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SERIES = 6
INK, FAINT = "#010101", "#020202"  # stand-ins that the page's own colours replace
MARKS = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
SIZE = (5.2, 3.1)
WIDE = (9.2, 3.1)
LEGEND_LINES, LINE_HEIGHT = 3, 0.2  # for which there is room, and inches of another


def series_colour(number: int) -> str:
    """Stand-in for the page's colour of the n-th run."""
    return f"#0a0a{number % SERIES + 10:02x}"


def literal(name: str) -> str:
    """A name that is neither read as a formula nor taken for one to be hidden."""
    return "\u200b" + name.replace("$", r"\$")


def note(axes: Axes, x: float, text: str) -> None:
    """Words above the frame, over a place on the x axis."""
    axes.annotate(
        text, (x, 1), xycoords=("data", "axes fraction"), xytext=(0, 2), color=INK,
        textcoords="offset points", va="bottom", ha="center", fontsize=9,
    )  # fmt: skip


def columns(names: Sequence[str], size: tuple[float, float] = SIZE) -> int:
    """How many names of a legend stand side by side, at most 3.

    >>> columns(["online", "adaptive"]), columns(["runs/a/AdapOffQuin", "runs/b/AdapOffQuin"])
    (3, 2)
    """
    longest = max((len(name) for name in names), default=0) + 7  # with the line before it
    return max(1, min(3, int(13.5 * size[0] / longest)))


def dress(axes: Axes, x: str, y: str, *, columns: int = 3) -> None:
    """Labels, grid and legend, in the page's ink."""
    axes.set_xlabel(x, color=INK, fontsize=10)
    axes.set_ylabel(y, color=INK, fontsize=10)
    axes.tick_params(colors=INK, labelsize=9, length=0, pad=6)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.legend(
        frameon=False, labelcolor=INK, fontsize=9.5, handlelength=2.6, borderaxespad=0,
        loc="lower left", bbox_to_anchor=(0, 1.07), ncols=columns, columnspacing=1.6,
    )  # fmt: skip
    axes.margins(x=0.03)
    _make_room(axes, columns)


def _make_room(axes: Axes, columns: int) -> None:
    """A figure is higher by the lines of a long legend, which stands above its axes."""
    lines = -(-len(axes.get_legend_handles_labels()[1]) // columns)
    figure = axes.get_figure(root=True)
    if figure is not None and lines > LEGEND_LINES:
        wanted = SIZE[1] + LINE_HEIGHT * (lines - LEGEND_LINES)
        figure.set_figheight(max(figure.get_figheight(), wanted))


def layers(axes: Axes, named: Sequence[tuple[str, Sequence[float]]], bins: Sequence[float]) -> None:
    """Histograms laid over each other, in percent of each one's values."""
    for number, (name, values) in enumerate(named):
        share = [100 / len(values)] * len(values)
        colour = series_colour(number)
        axes.hist(values, bins, weights=share, histtype="stepfilled", color=colour, alpha=0.22)
        axes.hist(
            values, bins, weights=share, histtype="step", color=colour, linewidth=1.8,
            linestyle=MARKS[number % SERIES], label=literal(name),
        )  # fmt: skip


def svg(canvas: Any, key: str) -> str:
    """The drawing as an element of the page: its colours, its letters, ids of its own."""
    import matplotlib as mpl

    text = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": key}
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the page's own letters are used
        canvas.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.S)
    for side in ("width", "height"):
        drawn = re.sub(rf'(<svg[^>]*?) {side}="[^"]*"', r"\1", drawn, count=1)
    drawn = re.sub(r'\bid="', f'id="{key}-', drawn)
    drawn = re.sub(r"url\(#", f"url(#{key}-", drawn)
    drawn = re.sub(r'href="#', f'href="#{key}-', drawn)
    drawn = drawn.replace(INK, "var(--ink-2)").replace(FAINT, "var(--line)")
    for number in range(SERIES):
        drawn = drawn.replace(series_colour(number), f"var(--run-{number + 1})")
    drawn = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--sans)", drawn)  # until 3.9
    return re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", drawn)
