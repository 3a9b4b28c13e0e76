"""A map of a query, its true counterparts and its nearest wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from counterfoil.evaluate.drawing import INK, SIZE, literal, series_colour, svg
from counterfoil.evaluate.figures import Figure

_SHAPES = ("*", "^", "o")
_SIZES = (150, 55, 16)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Marked:
    """Points of one kind.

    Attributes:
        kind: as in the legend.
        points: (N, 2).
        names: what stands beside the first of them, which are also drawn in full.
        captions: of those first ones, for the legend below.
    """

    kind: str
    points: Tensor
    names: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()


def mapped(kinds: Sequence[Marked], key: str, caption: str) -> Figure:
    """The query, what is true and what is not, as points.

    Args:
        kinds: in this order.
        key: of the figure on its page.
        caption: what it shows.
    """
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(SIZE[0], 4.2), layout="constrained")
    axes = canvas.subplots()
    for number, marked in reversed(list(enumerate(kinds))):  # the query on top
        x, y = marked.points.T.tolist()
        axes.scatter(
            x, y, s=_SIZES[number], marker=_SHAPES[number], color=series_colour(number),
            alpha=0.55 if number == 2 else 1.0, linewidths=0, label=literal(marked.kind),
        )  # fmt: skip
        for name, across, up in zip(marked.names, x, y):
            axes.annotate(
                literal(name), (across, up), xytext=(4, 3), textcoords="offset points",
                color=INK, fontsize=9,
            )  # fmt: skip
    axes.set_xticks([])
    axes.set_yticks([])
    axes.margins(0.06)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.legend(
        *(part[::-1] for part in axes.get_legend_handles_labels()), frameon=False,
        labelcolor=INK, fontsize=9.5, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0),
        borderaxespad=0, handletextpad=0.2, columnspacing=1.2,
    )  # fmt: skip
    legend = tuple(
        f"{name}: {words}"
        for marked in kinds
        for name, words in zip(marked.names, marked.captions, strict=True)
    )
    counts = ", ".join(f"{len(marked.points)} {marked.kind}" for marked in kinds[1:])
    return Figure(svg(canvas, key), f"{caption} {counts}.", (caption, *legend))
