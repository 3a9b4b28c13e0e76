"""How hard written captions are while training goes on (TAGS, section 4.1 and Fig. 3).

The paper draws where the score of the written caption minus that of its original lies. Its text
says that those of a static writer score higher than those of a dynamic one, and concludes that the
static one fails to be hard; what is drawn here lets one see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.evaluate.drawing import (
    INK,
    MARKS,
    SERIES,
    SIZE,
    dress,
    literal,
    series_colour,
    svg,
)
from counterfoil.evaluate.figures import Figure
from counterfoil.evaluation.bootstrap import Counted, Share, shares

ABOVE, GAP, LOSS = "written_above", "written_gap", "loss_written"
LEVELS = (10, 25, 50, 75, 90)
ENDS = 0.2  # of the logged steps, at either end


@final
@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """A training, at the N steps at which it was looked at.

    Attributes:
        name: of the training.
        steps: (N,) long.
        above: (N,) percent of the written captions that score above their original.
        gap: (N,) mean score above the original's, in units of a score.
        spread: (N, 5) its percentiles `LEVELS`.
        loss: (N,) weighted loss of the term "written"; empty where there is none of this name.
    """

    name: str
    steps: Tensor
    above: Tensor
    gap: Tensor
    spread: Tensor
    loss: Tensor

    @classmethod
    def of(cls, name: str, lines: Sequence[Mapping[str, Any]]) -> Course | None:
        """From lines of metrics; None where none of them tells of written captions.

        Raises:
            KeyError: a line tells only half of it.
        """
        told = [line for line in lines if ABOVE in line]
        if not told:
            return None
        losses = [line[LOSS] for line in told if LOSS in line]
        return cls(
            name,
            torch.tensor([line["step"] for line in told]),
            _column([line[ABOVE] for line in told]),
            _column([line[GAP] for line in told]),
            _column([[line[f"{GAP}_p{level}"] for level in LEVELS] for line in told]),
            _column(losses if len(losses) == len(told) else []),
        )

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "training": self.name,
            "steps": self.steps.tolist(),
            "percent_above": self.above.tolist(),
            "gap": self.gap.tolist(),
            "percentiles": self.spread.tolist(),
            "loss": self.loss.tolist(),
        }


@final
@dataclass(frozen=True, slots=True)
class Stretch:
    """Some steps of a training.

    Attributes:
        first: step.
        last: step.
        above: percent above the original.
        gap: mean score above it.
    """

    first: int
    last: int
    above: Share
    gap: Share


def stretches(course: Course, *, seed: int = 0) -> tuple[Stretch, Stretch]:
    """The first and the last fifth of the logged steps, at least one each.

    Intervals draw steps anew; steps near each other are alike, so they are rather too narrow.

    Args:
        course: the training.
        seed: of the draws.
    """
    many = max(1, round(ENDS * len(course.steps)))
    first, last = (_stretch(course, rows, seed) for rows in (slice(many), slice(-many, None)))
    return first, last


def fans(courses: Sequence[Course]) -> Figure:
    """Medians, middle halves and middle four fifths of the differences, by step."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=SIZE, layout="constrained")
    axes = canvas.subplots()
    for number, course in enumerate(courses):
        colour, steps = series_colour(number), course.steps.tolist()
        lowest, low, middle, high, highest = course.spread.T.tolist()
        axes.fill_between(steps, lowest, highest, color=colour, alpha=0.12, linewidth=0)
        axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(
            steps, middle, color=colour, linewidth=1.8, linestyle=MARKS[number % SERIES],
            label=literal(course.name),
        )  # fmt: skip
    axes.axhline(0, color=INK, linewidth=1, linestyle=":")
    dress(axes, "step", "score − the original's")
    words = "; ".join(
        f"{c.name}: median {c.spread[0, 2]:+.3f} at step {c.steps[0]:,}, {c.spread[-1, 2]:+.3f} at "
        f"step {c.steps[-1]:,}"
        for c in courses
    )
    caption = "Written captions against their originals; higher is harder."
    bands = "Lines: medians. Bands: middle half, middle four fifths of a step's captions."
    return Figure(svg(canvas, "fans"), f"{caption} {words}.", (caption, bands))


def lines(named: Sequence[tuple[str, Tensor, Tensor]], label: str, key: str) -> Figure:
    """A quantity by step.

    Args:
        named: name, (N,) steps and (N,) values of each training.
        label: of the vertical axis.
        key: of the figure on its page.
    """
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=SIZE, layout="constrained")
    axes = canvas.subplots()
    for number, (name, steps, values) in enumerate(named):
        axes.plot(
            steps.tolist(), values.tolist(), color=series_colour(number), linewidth=1.8,
            linestyle=MARKS[number % SERIES], label=literal(name),
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    dress(axes, "step", label)
    words = "; ".join(f"{name} from {v[0]:.3g} to {v[-1]:.3g}" for name, _, v in named)
    title = f"{label[0].upper()}{label[1:]} by step."
    return Figure(svg(canvas, key), f"{title} {words}.", (title, f"{words}."))


def _column(values: Sequence[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


def _stretch(course: Course, rows: slice, seed: int) -> Stretch:
    steps = course.steps[rows]
    columns = [Counted.mean(values[rows]) for values in (course.above, course.gap)]
    above, gap = shares(columns, torch.arange(len(steps)), seed=seed)
    return Stretch(int(steps[0]), int(steps[-1]), above, gap)
