"""Figures of a report as inline SVG that takes its colours and letters from the page."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SERIES = 6
INK, FAINT = "#010101", "#020202"  # stand-ins that the page's own colours replace
MARKS = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
SIZE = (5.2, 3.1)
WIDE = (9.2, 3.1)


@final
@dataclass(frozen=True, slots=True)
class Curve:
    """How a run went, epoch by epoch.

    Attributes:
        name: of the run.
        epochs: numbers of the epochs.
        dev_rsum: RSum on the development split after each.
        train_loss: mean training loss of each.
    """

    name: str
    epochs: tuple[float, ...]
    dev_rsum: tuple[float, ...]
    train_loss: tuple[float, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Hardness:
    """How hard a source of negatives is.

    Attributes:
        name: of the source, as in "online" or "offline".
        gaps: score of each negative minus score of its positive.
    """

    name: str
    gaps: npt.NDArray[Any]


@final
@dataclass(frozen=True, slots=True)
class Figure:
    """A picture and the words for those who do not see it.

    Attributes:
        svg: the picture, ready for the page.
        alt: what it shows.
        caption: what stands under it, line by line.
    """

    svg: str
    alt: str
    caption: tuple[str, ...]


def series_colour(number: int) -> str:
    """Stand-in for the page's colour of the n-th run."""
    return f"#0a0a{number % SERIES + 10:02x}"


def learning(curves: Sequence[Curve]) -> tuple[Figure, ...]:
    """Development RSum and training loss of every run, as far as they were measured."""
    drawn = []
    rsum = [(c.name, c.epochs, c.dev_rsum) for c in curves if c.dev_rsum]
    if rsum:
        ends = "; ".join(f"{n} ends at {y[-1]:.1f}, best {max(y):.1f}" for n, _, y in rsum)
        drawn.append(
            Figure(
                _lines(rsum, "dev RSum", "rsum"),
                f"Development RSum by epoch: {ends}.",
                ("RSum on the development split after each epoch.",),
            )
        )
    loss = [(c.name, c.epochs, c.train_loss) for c in curves if c.train_loss]
    if loss:
        ends = "; ".join(f"{n} goes from {y[0]:.3g} to {y[-1]:.3g}" for n, _, y in loss)
        drawn.append(
            Figure(
                _lines(loss, "training loss", "loss"),
                f"Training loss by epoch: {ends}.",
                ("Mean training loss of each epoch; different objectives do not compare.",),
            )
        )
    return tuple(drawn)


def hardness(sources: Sequence[Hardness], margin: float | None = None) -> Figure:
    """How far negatives score below, or above, their positives."""
    from matplotlib.figure import Figure as Canvas

    everything = np.concatenate([np.asarray(s.gaps, dtype=np.float64) for s in sources])
    low, high = np.quantile(everything, [0.002, 0.998])
    bins = np.linspace(low, max(high, low + 1e-6), 49).tolist()
    canvas = Canvas(figsize=WIDE, layout="constrained")
    axes = canvas.subplots()
    for number, source in enumerate(sources):
        gaps = np.asarray(source.gaps, dtype=np.float64)
        share = np.full(len(gaps), 100 / len(gaps))
        colour = series_colour(number)
        axes.hist(gaps, bins, weights=share, histtype="stepfilled", color=colour, alpha=0.22)
        axes.hist(
            gaps, bins, weights=share, histtype="step", color=colour, linewidth=1.8,
            linestyle=MARKS[number % SERIES], label=_literal(source.name),
        )  # fmt: skip
    axes.axvline(0, color=INK, linewidth=1)
    _note(axes, 0, "as high as the positive")
    if margin:
        axes.axvline(-margin, color=INK, linewidth=1, linestyle=":")
        _note(axes, -margin, "margin")
    _dress(axes, "score of the negative − score of its positive", "share of negatives, %")
    lines = [_words(source, margin) for source in sources]
    return Figure(
        _svg(canvas, "hardness"),
        " ".join(lines),
        ("Further right is harder.", *lines),
    )


def _words(source: Hardness, margin: float | None) -> str:
    gaps = np.asarray(source.gaps, dtype=np.float64)
    inside = "" if not margin else f", {100 * np.mean(gaps > -margin):.1f} % inside the margin"
    middle = f"{np.median(gaps):+.3f}".replace("-", "−")
    return (
        f"{source.name}: {len(gaps):,} negatives, median gap {middle}{inside}, "
        f"{100 * np.mean(gaps >= 0):.1f} % at or above their positive."
    )


def _lines(
    series: Sequence[tuple[str, Sequence[float], Sequence[float]]], label: str, key: str
) -> str:
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import MaxNLocator

    canvas = Canvas(figsize=SIZE, layout="constrained")
    axes = canvas.subplots()
    for number, (name, x, y) in enumerate(series):
        axes.plot(
            x[: len(y)], y, color=series_colour(number), linewidth=2, label=_literal(name),
            linestyle=MARKS[number % SERIES], marker="o", markersize=3.2,
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _dress(axes, "epoch", label)
    return _svg(canvas, key)


def _literal(name: str) -> str:
    """A name that is neither read as a formula nor taken for one to be hidden."""
    return "\u200b" + name.replace("$", r"\$")


def _note(axes: Axes, x: float, text: str) -> None:
    axes.annotate(
        text, (x, 1), xycoords=("data", "axes fraction"), xytext=(0, 2), color=INK,
        textcoords="offset points", va="bottom", ha="center", fontsize=9,
    )  # fmt: skip


def _dress(axes: Axes, x: str, y: str) -> None:
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
        loc="lower left", bbox_to_anchor=(0, 1.07), ncols=3, columnspacing=1.6,
    )  # fmt: skip
    axes.margins(x=0.03)


def _svg(canvas: Any, key: str) -> str:
    """The drawing as an element of the page: its colours, its letters, ids of its own."""
    import matplotlib as mpl

    text = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": key}
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the page's own letters are used
        canvas.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    for side in ("width", "height"):
        svg = re.sub(rf'(<svg[^>]*?) {side}="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'\bid="', f'id="{key}-', svg)
    svg = re.sub(r"url\(#", f"url(#{key}-", svg)
    svg = re.sub(r'href="#', f'href="#{key}-', svg)
    svg = svg.replace(INK, "var(--ink-2)").replace(FAINT, "var(--line)")
    for number in range(SERIES):
        svg = svg.replace(series_colour(number), f"var(--run-{number + 1})")
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--sans)", svg)  # until 3.9
    return re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", svg)
