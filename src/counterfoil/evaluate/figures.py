"""Figures of a report as inline SVG that takes its colours and letters from the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from counterfoil.evaluate.drawing import (
    INK,
    MARKS,
    SERIES,
    SIZE,
    WIDE,
    columns,
    dress,
    layers,
    literal,
    note,
    series_colour,
    svg,
)


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

    def plain(self) -> dict[str, Any]:
        """JSON-ready form: how many, their median gap, percent that reach their positive."""
        gaps = np.asarray(self.gaps, dtype=np.float64)
        return {
            "name": self.name,
            "negatives": len(gaps),
            "median_gap": float(np.median(gaps)),
            "at_or_above": 100 * float(np.mean(gaps >= 0)),
        }


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
    named = [(s.name, np.asarray(s.gaps, dtype=np.float64).tolist()) for s in sources]
    layers(axes, named, bins)
    axes.axvline(0, color=INK, linewidth=1)
    note(axes, 0, "as high as the positive")
    if margin:
        axes.axvline(-margin, color=INK, linewidth=1, linestyle=":")
        note(axes, -margin, "margin")
    side_by_side = columns([name for name, _ in named], WIDE)
    label = "score of the negative − score of its positive"
    dress(axes, label, "share of negatives, %", columns=side_by_side)
    lines = [_words(source, margin) for source in sources]
    return Figure(
        svg(canvas, "hardness"),
        " ".join(lines),
        ("Further right is harder.", *lines),
    )


def _words(source: Hardness, margin: float | None) -> str:
    gaps, told = np.asarray(source.gaps, dtype=np.float64), source.plain()
    inside = "" if not margin else f", {100 * np.mean(gaps > -margin):.1f} % inside the margin"
    middle = f"{told['median_gap']:+.3f}".replace("-", "−")
    return (
        f"{source.name}: {len(gaps):,} negatives, median gap {middle}{inside}, "
        f"{told['at_or_above']:.1f} % at or above their positive."
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
            x[: len(y)], y, color=series_colour(number), linewidth=2, label=literal(name),
            linestyle=MARKS[number % SERIES], marker="o", markersize=3.2,
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    dress(axes, "epoch", label, columns=columns([name for name, *_ in series]))
    return svg(canvas, key)
