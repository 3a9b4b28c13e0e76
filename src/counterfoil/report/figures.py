"""Figures as inline SVG, drawn by matplotlib, that take colours and fonts from the page.

Every function returns a `Figure` with a description in words for readers who do not see it. A
`key` is unique on its page, a `caption` describes it. Colours are drawn as stand-ins (`INK`,
`FAINT`, `series_colour`) that `svg` replaces by CSS variables, so that one drawing fits the light
and the dark page.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from counterfoil.report.page import Figure
from counterfoil.report.tables import format_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


Array: TypeAlias = "npt.NDArray[Any]"
Series: TypeAlias = "Sequence[tuple[str, Sequence[float], Sequence[float]]]"  # name, x, y

SERIES = 6  # colours of the page
INK, FAINT = "#010101", "#020202"
LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
MARKERS = ("o", "^", "s", "D", "v", "P")
SIZE = (5.2, 3.1)
WIDE = (9.2, 3.1)
BINS = 48
MAX_POINTS = 1000  # of a series of a scatter plot
_LEGEND: dict[str, Any] = {"frameon": False, "labelcolor": INK, "fontsize": 9.5}
_LEGEND_LINES, _LINE_HEIGHT = 3, 0.2  # lines of a legend that fit, inches of each more


@final
@dataclass(frozen=True, slots=True)
class LearningCurve:
    """Learning curve of a training: measures on the development split are empty if not measured."""

    name: str
    epochs: tuple[float, ...]
    dev_rsum: tuple[float, ...]
    train_loss: tuple[float, ...]  # mean of each epoch
    dev_i2t_r1: tuple[float, ...] = ()
    dev_t2i_r1: tuple[float, ...] = ()


@final
@dataclass(frozen=True, slots=True, eq=False)
class NamedSample:
    """(N,) values under a name; N >= 1."""

    name: str
    values: Array

    @property
    def floats(self) -> Array:
        """The values in double precision, in which quantiles are taken."""
        return np.asarray(self.values, dtype=np.float64)

    def gap_summary(self) -> dict[str, Any]:
        """Summarise values that are score gaps to a positive, as JSON-ready numbers."""
        return {
            "name": self.name,
            "negatives": len(self.values),
            "median_gap": float(np.median(self.floats)),
            "at_or_above": 100 * float(np.mean(self.floats >= 0)),
        }


@final
@dataclass(frozen=True, slots=True)
class ResultPoint:
    """A result with its interval; the series determines the colour."""

    series: str
    value: float
    low: float
    high: float
    group: str = ""  # of bars, or line of a dot plot
    at: float = 0.0  # position on the horizontal axis of a curve
    baseline: float | None = None  # needs no model; drawn across the line of a dot plot


@final
@dataclass(frozen=True, slots=True, eq=False)
class MapPoints:
    """(N, 2) points of one kind on a map.

    The first points may have names, whose captions are listed below the map.
    """

    kind: str
    points: Array
    names: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()


def learning_curves(curves: Sequence[LearningCurve]) -> tuple[Figure, ...]:
    """Draw development RSum and training loss by epoch, as far as they were measured."""
    figures = _dev_curves([(c.name, c.epochs, c.dev_rsum) for c in curves], "RSum", "rsum")
    loss = [(c.name, c.epochs, c.train_loss) for c in curves if c.train_loss]
    if loss:
        ends = "; ".join(f"{n} goes from {y[0]:.3g} to {y[-1]:.3g}" for n, _, y in loss)
        caption = ("Mean training loss of each epoch; different objectives do not compare.",)
        alt = f"Training loss by epoch: {ends}."
        figures.append(Figure(_by_epoch(loss, "training loss", "loss"), alt, caption))
    return tuple(figures)


def recall_curves(curves: Sequence[LearningCurve]) -> tuple[Figure, ...]:
    """Draw development R@1 by epoch, image to text and text to image, where measured."""
    i2t = [(c.name, c.epochs, c.dev_i2t_r1) for c in curves]
    t2i = [(c.name, c.epochs, c.dev_t2i_r1) for c in curves]
    return (
        *_dev_curves(i2t, "R@1 image to text, %", "i2t-r1"),
        *_dev_curves(t2i, "R@1 text to image, %", "t2i-r1"),
    )


def _dev_curves(series: Series, measure: str, key: str) -> list[Figure]:
    """The figure of a measure on the development split, or none."""
    measured = [(name, x, y) for name, x, y in series if y]
    if not measured:
        return []
    ends = "; ".join(f"{n} ends at {y[-1]:.1f}, best {max(y):.1f}" for n, _, y in measured)
    caption = (f"{measure} on the development split after each epoch.",)
    alt = f"Development {measure} by epoch: {ends}."
    return [Figure(_by_epoch(measured, f"dev {measure}", key), alt, caption)]


def _by_epoch(series: Series, label: str, key: str) -> str:
    from matplotlib.ticker import MaxNLocator

    canvas, axes = _canvas(SIZE)
    for number, (name, x, y) in enumerate(series):
        axes.plot(x[: len(y)], y, marker="o", markersize=3.2, **_line(number, name))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    _dress(axes, "epoch", label, columns=legend_columns([name for name, *_ in series]))
    return svg(canvas, key)


def step_curves(series: Series, label: str, key: str) -> Figure:
    """Draw a quantity by training step."""
    canvas, axes = _canvas(SIZE)
    for number, (name, steps, values) in enumerate(series):
        axes.plot(steps, values, **_line(number, name))
    axes.set_ylim(bottom=0)
    _dress(axes, "step", label)
    words = "; ".join(f"{name} from {v[0]:.3g} to {v[-1]:.3g}" for name, _, v in series)
    return _figure(canvas, key, f"{label[0].upper()}{label[1:]} by step.", words)


def gap_histograms(samples: Sequence[NamedSample]) -> Figure:
    """Draw scores of negatives less those of their positives."""
    canvas, axes = _canvas(WIDE)
    _histograms(axes, samples, histogram_bins(samples), (0, "as high as the positive", "-"))
    label = "score of the negative − score of its positive"
    columns = legend_columns([sample.name for sample in samples], WIDE)
    _dress(axes, label, "share of negatives, %", columns=columns)
    lines = []
    for sample in samples:
        summary = sample.gap_summary()
        lines.append(
            f"{sample.name}: {summary['negatives']:,} negatives, median gap "
            f"{format_number(summary['median_gap'])}, {summary['at_or_above']:.1f} % at "
            "or above their positive."
        )
    return Figure(svg(canvas, "hardness"), " ".join(lines), ("Further right is harder.", *lines))


def histogram_bins(samples: Sequence[NamedSample]) -> tuple[float, ...]:
    """Edges of `BINS` equal bins without the outermost 0.2 % of all values at each end."""
    values = np.concatenate([sample.floats for sample in samples])
    low, high = np.quantile(values, [0.002, 0.998], method="nearest").tolist()
    edges: list[float] = np.linspace(low, max(high, low + 1e-6), BINS + 1).tolist()
    return tuple(edges)


def histograms(
    samples: Sequence[NamedSample], bins: Sequence[float], label: str, key: str, caption: str
) -> Figure:
    """Draw samples over the same bins, given by their edges, with a line at 0."""
    canvas, axes = _canvas(SIZE)
    _histograms(axes, samples, bins, (0, "", "-") if bins[0] < 0 < bins[-1] else None)
    _dress(axes, label, "share of queries, %")
    words = "; ".join(
        f"{s.name}: median {format_number(lower_median(s.values))}, "
        f"{100 * np.mean(s.values < 0):.1f} % below 0"
        for s in samples
    )
    return _figure(canvas, key, caption, words)


def doubt_histograms(right: Array, same: Array, threshold: float) -> Figure:
    """Draw the probability that a word is right, of words that are right and that are wrong.

    A word is right where `same` is true, and doubted up to the threshold.
    """
    canvas, axes = _canvas(SIZE)
    sides = NamedSample("wrong words", right[~same]), NamedSample("right words", right[same])
    samples = [side for side in sides if len(side.values)]
    bins = np.linspace(0, 1, 26).tolist()
    _histograms(axes, samples, bins, (threshold, "doubted | trusted", ":"))
    _dress(axes, "how likely the word is right", "share of words, %")
    words = "; ".join(
        f"of {len(s.values):,} {s.name} {100 * np.mean(s.values <= threshold):.1f} % are doubted"
        for s in samples
    )
    return _figure(canvas, "doubts", "What the model thinks of each word.", words)


def _histograms(
    axes: Axes,
    samples: Sequence[NamedSample],
    bins: Sequence[float],
    mark: tuple[float, str, str] | None,
) -> None:
    """Draw histograms over each other, in percent of each sample, and mark a value."""
    for number, sample in enumerate(samples):
        share = np.full(len(sample.values), 100 / len(sample.values))
        fill: dict[str, Any] = {"weights": share, "color": series_colour(number)}
        axes.hist(sample.floats, bins, histtype="stepfilled", alpha=0.22, **fill)
        axes.hist(sample.floats, bins, weights=share, histtype="step", **_line(number, sample.name))
    if mark:
        _mark(axes, *mark)


def cumulative(
    samples: Sequence[NamedSample], level: float, label: str, key: str, caption: str
) -> Figure:
    """Draw the share of values up to each level; `level` is marked."""
    canvas, axes = _canvas(SIZE)
    shares = np.linspace(0, 1, 101)
    for number, sample in enumerate(samples):
        values = np.quantile(sample.floats, shares, method="nearest")
        axes.plot(values, shares, **_line(number, sample.name))
    _mark(axes, level, f"{level:g}", ":")
    _dress(axes, label, "P(x ≤ s)", columns=2)
    words = "; ".join(
        f"{s.name}: {100 * np.mean(s.values < level):.1f} % below {level:g}" for s in samples
    )
    return _figure(canvas, key, caption, words)


def expected_by_batch(
    batches: Sequence[int],
    series: Mapping[str, Sequence[Sequence[float]]],
    label: str,
    key: str,
    caption: str,
    *,
    log: bool = False,
) -> Figure:
    """Draw a quantity by batch size: lines as expected, points as measured.

    A series has expected values, measured ones and, if there are intervals, their half widths.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    canvas, axes = _canvas(SIZE)
    for number, (name, (expected, measured, *spread)) in enumerate(series.items()):
        axes.plot(batches, expected, **_line(number, name))
        _errorbars(axes, batches, measured, spread[0] if spread else None, number)
    axes.set_xscale("log", base=2)
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_plain_numbers())
    _ticks(axes, batches)
    _dress(axes, "captions in a batch", label)
    words = "; ".join(
        f"{name}: {measured[0]:.3g} at {batches[0]:,}, {measured[-1]:.3g} at {batches[-1]:,}"
        for name, (_, measured, *_) in series.items()
    )
    alt = f"{label[0].upper()}{label[1:]} by batch size, measured: {words}."
    return Figure(svg(canvas, key), alt, (caption, "Lines: by counting. Points: measured."))


def share_bars(
    models: Sequence[tuple[str, Sequence[float]]], bins: Sequence[str], key: str
) -> Figure:
    """Draw percent of the true pairs in bins of their rank, by name of a model, side by side."""
    canvas, axes = _canvas(WIDE)
    width = 0.8 / len(models)
    for number, (name, shares) in enumerate(models):
        left = [place - 0.4 + width * (number + 0.5) for place in range(len(bins))]
        axes.bar(left, shares, width * 0.92, color=series_colour(number), label=literal(name))
    axes.set_xticks(range(len(bins)), list(bins))
    _dress(axes, "cross-retrieval rank", "share of true pairs, %")
    words = "; ".join(
        f"{name}: {shares[0]:.1f} % at rank 1, {shares[-1]:.1f} % {bins[-1]}"
        for name, shares in models
    )
    caption = "Further left is better.", *(f"{part}." for part in words.split("; "))
    return Figure(svg(canvas, key), f"{words}.", caption)


def grouped_bars(points: Sequence[ResultPoint], label: str, key: str, caption: str) -> Figure:
    """Draw bars in groups; where intervals are narrow the axis does not begin at 0."""
    groups = list(dict.fromkeys(point.group for point in points))
    canvas, axes = _canvas(WIDE)
    series = _by_series(points)
    width = 0.8 / len(series)
    for number, (name, bars) in enumerate(series.items()):
        axes.bar(
            [groups.index(p.group) - 0.4 + width * (number + 0.5) for p in bars],
            [p.value for p in bars],
            width * 0.92,
            yerr=_spreads(bars),
            ecolor=INK,
            alpha=0.6,
            color=series_colour(number),
            error_kw={"elinewidth": 1.2},
            label=literal(name),
        )
    low, high = min(p.low for p in points), max(p.high for p in points)
    begin = low - 0.25 * (high - low)  # below the lowest interval
    begin = float(int(begin)) if begin > high / 4 else 0.0
    axes.set_ylim(bottom=begin)
    axes.set_xticks(range(len(groups)), [literal(group) for group in groups])
    _dress(axes, "", label)
    words = "; ".join(
        f"{group}: " + ", ".join(f"{p.series} {p.value:.1f}" for p in points if p.group == group)
        for group in groups
    )
    lines = caption, f"The axis begins at {begin:.0f}; lines are 95 % intervals."
    return Figure(svg(canvas, key), f"{label}: {words}.", lines)


def result_curves(
    points: Sequence[ResultPoint],
    label: str,
    against: str,
    key: str,
    caption: str,
    *,
    log: bool,
    columns: int = 3,
) -> Figure:
    """Draw results against a number, with a line through the means of each series."""
    canvas, axes = _canvas(SIZE)
    series = _by_series(points)
    ticks = sorted({point.at for point in points})
    for number, (name, some) in enumerate(series.items()):
        # Series are shifted a little so that their intervals do not hide each other.
        step = 0.02 * (number - (len(series) - 1) / 2)
        x = {at: at * 16**step if log else at + step * (ticks[-1] - ticks[0]) for at in ticks}
        values = {at: [p.value for p in some if p.at == at] for at in ticks}
        means = {x[at]: float(np.mean(each)) for at, each in values.items() if each}
        axes.plot(list(means), list(means.values()), **_line(number, name))
        _errorbars(axes, [x[p.at] for p in some], [p.value for p in some], _spreads(some), number)
    if log:
        axes.set_xscale("log", base=2)
    _ticks(axes, ticks)
    _dress(axes, against, label, columns=columns)
    words = "; ".join(f"{p.series} at {p.at:g}: {p.value:.1f}" for p in points)
    lines = caption, "Points with their 95 % intervals; lines go through means."
    return Figure(svg(canvas, key), f"{label} by {against}: {words}.", lines)


def dot_plot(
    points: Sequence[ResultPoint], label: str, key: str, caption: str, baseline: str = ""
) -> Figure:
    """Draw percentages as dots with intervals, one line per group; NaN values are left out."""
    lines = list(dict.fromkeys(point.group for point in points))
    canvas, axes = _canvas((5.8, 1.1 + 0.36 * len(lines)))
    series = _by_series(points)
    for number, (name, some) in enumerate(series.items()):
        known = [point for point in some if not np.isnan(point.value)]
        shift = 0.22 * (number - (len(series) - 1) / 2)
        at = [lines.index(point.group) + shift for point in known]
        colour = series_colour(number)
        axes.hlines(at, [p.low for p in known], [p.high for p in known], color=colour, lw=1.6)
        axes.plot(
            [p.value for p in known],
            at,
            MARKERS[number % SERIES],
            color=colour,
            markersize=5,
            label=literal(name),
        )
    bases = {point.group: point.baseline for point in points if point.baseline is not None}
    axes.plot(
        list(bases.values()),
        [lines.index(line) for line in bases],
        "|",
        color=INK,
        markersize=11,
        label=literal(baseline) if bases else None,
    )
    axes.set_yticks(range(len(lines)), [literal(line) for line in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlim(-2, 102)
    _dress(axes, label, "")
    # Names beside the axis leave the legend too little room, so it belongs to the whole drawing.
    legend = axes.get_legend()
    assert legend is not None
    legend.remove()
    canvas.legend(loc="outside upper left", ncols=2, handlelength=1.2, columnspacing=1.6, **_LEGEND)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    words = "; ".join(
        f"{p.group}, {p.series}: {p.value:.1f}" for p in points if not np.isnan(p.value)
    )
    return Figure(svg(canvas, key), f"{label}: {words}.", (caption, "Lines: 95 % intervals."))


def score_scatter(
    sources: Sequence[tuple[str, Array, Array]], level: float, key: str, caption: str
) -> Figure:
    """Draw score of the negative against score of the positive.

    Sources are (name, positive scores, negative scores); a line runs `level` below the diagonal.
    """
    canvas, axes = _canvas((4.6, 4.4))
    every = np.concatenate([np.asarray(s) for _, *both in sources for s in both]).astype(np.float64)
    low, high = float(every.min()), float(every.max())
    room = 0.03 * max(high - low, 1e-6)
    ends = low - room, high + room
    for number, (name, positive, negative) in enumerate(sources):
        axes.scatter(
            positive[:MAX_POINTS],
            negative[:MAX_POINTS],
            s=14,
            alpha=0.55,
            linewidths=0,
            marker=MARKERS[number % SERIES],
            color=series_colour(number),
            label=literal(name),
        )
    axes.plot(ends, ends, color=INK, linewidth=1, linestyle=":")
    axes.plot(ends, [end - level for end in ends], color=INK, linewidth=1)
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_aspect("equal")
    _dress(axes, "score of the positive", "score of the negative", columns=2)
    words = "; ".join(
        f"{name}: {100 * np.mean(np.asarray(negative) > np.asarray(positive)):.1f} % above the "
        "dotted line"
        for name, positive, negative in sources
    )
    outside = "" if level < high - low else ", outside the frame"
    lines = f"Dotted: as high as the positive. Solid: {level:g} below it{outside}."
    most = max(len(positive) for _, positive, _ in sources)
    note = (f"{MAX_POINTS:,} of {most:,} triples of a source are drawn.",)
    caption_lines = (caption, lines, *(note if most > MAX_POINTS else ()))
    return Figure(svg(canvas, key), f"{caption} {words}.", caption_lines)


def percentile_bands(series: Sequence[tuple[str, Sequence[float], Array]]) -> Figure:
    """Draw median, middle half and middle four fifths of score differences by training step.

    Series are (name, steps, (N, 5) percentiles 10, 25, 50, 75 and 90).
    """
    canvas, axes = _canvas(SIZE)
    for number, (name, steps, spread) in enumerate(series):
        colour = series_colour(number)
        lowest, low, middle, high, highest = np.asarray(spread).T
        axes.fill_between(steps, lowest, highest, color=colour, alpha=0.12, linewidth=0)
        axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(steps, middle, **_line(number, name))
    axes.axhline(0, color=INK, linewidth=1, linestyle=":")
    _dress(axes, "step", "score − the original's")
    words = "; ".join(
        f"{name}: median {spread[0][2]:+.3f} at step {steps[0]:,}, {spread[-1][2]:+.3f} at step "
        f"{steps[-1]:,}"
        for name, steps, spread in series
    )
    caption = "Written captions against their originals; higher is harder."
    bands = "Lines: medians. Bands: middle half, middle four fifths of a step's captions."
    return Figure(svg(canvas, "fans"), f"{caption} {words}.", (caption, bands))


def embedding_map(kinds: Sequence[MapPoints], key: str, caption: str) -> Figure:
    """Draw a query, its matches and its nearest negatives as points of the plane."""
    shapes, sizes = ("*", "^", "o"), (150, 55, 16)
    canvas, axes = _canvas((SIZE[0], 4.2))
    for number, kind in reversed(list(enumerate(kinds))):  # the query on top
        x, y = np.asarray(kind.points).T.tolist()
        axes.scatter(
            x,
            y,
            s=sizes[number],
            marker=shapes[number],
            color=series_colour(number),
            alpha=0.55 if number == 2 else 1.0,
            linewidths=0,
            label=literal(kind.kind),
        )
        for name, across, up in zip(kind.names, x, y):
            axes.annotate(
                literal(name),
                (across, up),
                xytext=(4, 3),
                textcoords="offset points",
                color=INK,
                fontsize=9,
            )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.margins(0.06)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.legend(
        *(part[::-1] for part in axes.get_legend_handles_labels()),
        ncols=3,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        borderaxespad=0,
        handletextpad=0.2,
        columnspacing=1.2,
        **_LEGEND,
    )
    legend = tuple(
        f"{name}: {words}"
        for kind in kinds
        for name, words in zip(kind.names, kind.captions, strict=True)
    )
    counts = ", ".join(f"{len(kind.points)} {kind.kind}" for kind in kinds[1:])
    return Figure(svg(canvas, key), f"{caption} {counts}.", (caption, *legend))


def lower_median(values: Array) -> float:
    """Median; of two values in the middle, the lower one."""
    return float(np.quantile(np.asarray(values, dtype=np.float64), 0.5, method="lower"))


def series_colour(number: int) -> str:
    """Stand-in for the page's colour of the n-th series."""
    return f"#0a0a{number % SERIES + 10:02x}"


def literal(name: str) -> str:
    """Escape a name so that matplotlib neither reads it as a formula nor hides it."""
    return "\u200b" + name.replace("$", r"\$")


def legend_columns(names: Sequence[str], size: tuple[float, float] = SIZE) -> int:
    """Number of names that fit side by side in a legend, at most 3.

    >>> legend_columns(["online", "adaptive"]), legend_columns(["runs/a/AdapOffQuin"] * 2)
    (3, 2)
    """
    longest = max((len(name) for name in names), default=0) + 7  # with the line before it
    return max(1, min(3, int(13.5 * size[0] / longest)))


def svg(canvas: Any, key: str) -> str:
    """Render a drawing as an element of a page, with the page's colours and unique ids."""
    import matplotlib as mpl

    text = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": key}
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the page's own fonts are used
        canvas.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    markup = text.getvalue()
    markup = markup[markup.index("<svg") :]
    markup = re.sub(r"<metadata>.*?</metadata>", "", markup, flags=re.S)
    for side in ("width", "height"):
        markup = re.sub(rf'(<svg[^>]*?) {side}="[^"]*"', r"\1", markup, count=1)
    markup = re.sub(r'\bid="', f'id="{key}-', markup)
    markup = re.sub(r"url\(#", f"url(#{key}-", markup)
    markup = re.sub(r'href="#', f'href="#{key}-', markup)
    markup = markup.replace(INK, "var(--ink-2)").replace(FAINT, "var(--line)")
    for number in range(SERIES):
        markup = markup.replace(series_colour(number), f"var(--run-{number + 1})")
    markup = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--sans)", markup)  # until 3.9
    return re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", markup)


def _figure(canvas: Canvas, key: str, caption: str, words: str) -> Figure:
    """A drawing whose numbers are said in words below it as well as in its description."""
    return Figure(svg(canvas, key), f"{caption} {words}.", (caption, f"{words}."))


def _by_series(points: Sequence[ResultPoint]) -> dict[str, list[ResultPoint]]:
    series: dict[str, list[ResultPoint]] = {}
    for point in points:
        series.setdefault(point.series, []).append(point)
    return series


def _canvas(size: tuple[float, float]) -> tuple[Canvas, Axes]:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=size, layout="constrained")
    return canvas, canvas.subplots()


def _line(number: int, name: str) -> dict[str, Any]:
    """Style of the n-th line."""
    return {
        "color": series_colour(number),
        "linewidth": 1.8,
        "linestyle": LINE_STYLES[number % SERIES],
        "label": literal(name),
    }


def _errorbars(
    axes: Axes, x: Sequence[float], y: Sequence[float], spread: Any, number: int
) -> None:
    axes.errorbar(
        x, y, yerr=spread, color=series_colour(number), fmt="o", markersize=4.5, elinewidth=1.2
    )


def _spreads(points: Sequence[ResultPoint]) -> tuple[list[float], list[float]]:
    """Distances from values down to and up to the ends of their intervals."""
    low = [max(0.0, p.value - p.low) for p in points]
    return low, [max(0.0, p.high - p.value) for p in points]


def _mark(axes: Axes, x: float, text: str, style: str) -> None:
    """Draw a vertical line in a style of matplotlib, with words above the frame."""
    axes.axvline(x, color=INK, linewidth=1, linestyle=style)
    axes.annotate(
        text,
        (x, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2),
        color=INK,
        textcoords="offset points",
        va="bottom",
        ha="center",
        fontsize=9,
    )


def _plain_numbers() -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:,.6g}")


def _ticks(axes: Axes, ticks: Sequence[float]) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(_plain_numbers())
    axes.xaxis.set_minor_locator(NullLocator())


def _dress(axes: Axes, x: str, y: str, *, columns: int = 3) -> None:
    """Set labels, grid and legend in the page's ink; a long legend makes the figure higher."""
    axes.set_xlabel(x, color=INK, fontsize=10)
    axes.set_ylabel(y, color=INK, fontsize=10)
    axes.tick_params(colors=INK, labelsize=9, length=0, pad=6)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.legend(
        handlelength=2.6,
        borderaxespad=0,
        loc="lower left",
        bbox_to_anchor=(0, 1.07),
        ncols=columns,
        columnspacing=1.6,
        **_LEGEND,
    )
    axes.margins(x=0.03)
    lines = -(-len(axes.get_legend_handles_labels()[1]) // columns)
    figure = axes.get_figure(root=True)
    if figure is not None and lines > _LEGEND_LINES:
        wanted = SIZE[1] + _LINE_HEIGHT * (lines - _LEGEND_LINES)
        figure.set_figheight(max(figure.get_figheight(), wanted))
