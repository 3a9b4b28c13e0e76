"""Figures of distributions: histograms laid over each other, and shares up to a level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.evaluate.drawing import (
    INK,
    MARKS,
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

BINS = 48
_POINTS = 101  # of a curve


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Values under one name.

    Attributes:
        name: of the series.
        values: (N,) at least one.
    """

    name: str
    values: Tensor


def minus(value: float, form: str = "+.3f") -> str:
    """A number with a minus sign that is as wide as its plus."""
    return format(value, form).replace("-", "−")


def bins_of(samples: Sequence[Sample]) -> tuple[float, ...]:
    """Edges of `BINS` equal bins that leave out the outermost 0.2 % of all values at each end."""
    everything = torch.cat([sample.values.double() for sample in samples]).sort().values
    last = len(everything) - 1
    low, high = (everything[round(last * share)].item() for share in (0.002, 0.998))
    return tuple(torch.linspace(low, max(high, low + 1e-6), BINS + 1).double().tolist())


def histograms(
    samples: Sequence[Sample], bins: Sequence[float], label: str, key: str, caption: str
) -> Figure:
    """Samples over the same bins, with a line at 0.

    Args:
        samples: at least one.
        bins: edges.
        label: of the horizontal axis.
        key: of the figure on its page.
        caption: what it shows.
    """
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=SIZE, layout="constrained")
    axes = canvas.subplots()
    layers(axes, [(sample.name, sample.values.tolist()) for sample in samples], bins)
    if bins[0] < 0 < bins[-1]:
        axes.axvline(0, color=INK, linewidth=1)
    dress(axes, label, "share of queries, %")
    words = "; ".join(
        f"{s.name}: median {minus(s.values.median().item())}, "
        f"{100 * (s.values < 0).double().mean():.1f} % below 0"
        for s in samples
    )
    return Figure(svg(canvas, key), f"{caption} {words}.", (caption, f"{words}."))


def cumulative(
    samples: Sequence[Sample], level: float, label: str, key: str, caption: str
) -> Figure:
    """Share of values up to each level.

    Args:
        samples: at least one.
        level: to be marked.
        label: of the horizontal axis.
        key: of the figure on its page.
        caption: what it shows.
    """
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=SIZE, layout="constrained")
    axes = canvas.subplots()
    shares = torch.linspace(0, 1, _POINTS, dtype=torch.double)
    for number, sample in enumerate(samples):
        ordered = sample.values.double().sort().values
        places = (shares * (len(ordered) - 1)).round().long()
        axes.plot(
            ordered[places].tolist(), shares.tolist(), color=series_colour(number), linewidth=1.8,
            linestyle=MARKS[number % SERIES], label=literal(sample.name),
        )  # fmt: skip
    axes.axvline(level, color=INK, linewidth=1, linestyle=":")
    note(axes, level, f"{level:g}")
    dress(axes, label, "P(x ≤ s)", columns=2)
    words = "; ".join(
        f"{s.name}: {100 * (s.values < level).double().mean():.1f} % below {level:g}"
        for s in samples
    )
    return Figure(svg(canvas, key), f"{caption} {words}.", (caption, f"{words}."))
