"""Results against the number of teachers (NDGL, Table 3) or the size of a batch (Fig. 4)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from counterfoil.core.literals import parse_literal
from counterfoil.evaluate.analysis_page import AnalysisPage, Rows
from counterfoil.evaluate.figures import Figure
from counterfoil.evaluate.result_figures import Point, curves
from counterfoil.evaluation.bootstrap import sums
from counterfoil.recipes.analyses.noted import Tested, one_setting, tested
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.student import plain_test
from counterfoil.recipes.provenance import made_now

Quantity = Literal["teachers", "batch"]
_LABELS: dict[str, str] = {"teachers": "models", "batch": "batch size"}
_TITLES = {"teachers": "The number of teachers", "batch": "The size of a batch"}
_NEEDED = {
    "teachers": ("number of teachers", "ndgl/teachers/…"),
    "batch": ("batch size", "ndgl/batches/…"),
}
_NUMBERED = re.compile(r"(-of)?-\d+$")
_SUMS = ("RSum", "Both ways."), ("i2t", "Image to text."), ("t2i", "Text to image.")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """An evaluation and where it stands.

    Attributes:
        series: of evaluations that differ in the quantity.
        at: the quantity.
        test: the evaluation.
    """

    series: str
    at: int
    test: Tested


def against(quantity: str, folders: Sequence[Path], out: Path) -> tuple[Placed, ...]:
    """Draw what runs have measured against a number that their trainings differ in.

    A series is all models whose stages have the same name but for a number at its end, as
    ``student-of-1`` and ``student-of-2``.

    Args:
        quantity: "teachers", how many taught a student or are averaged in an ensemble, or "batch".
        folders: of finished runs.
        out: page to write; the numbers go beside it as JSON.

    Raises:
        ValueError: the page exists, no such quantity, the runs do not differ in it, or they were
            measured on different data.
    """
    parse_literal(Quantity, quantity, "a number to draw against")
    check_out(out)
    place = _by_teachers if quantity == "teachers" else _by_batch
    found = sorted(place(tested(folders), several=len(folders) > 1), key=lambda p: (p.series, p.at))
    if len({placed.at for placed in found}) < 2:
        name, recipe = _NEEDED[quantity]
        seen = f"only the {name} {found[0].at}" if found else f"no {name}"
        raise ValueError(
            f"what {', '.join(map(str, folders))} measured has {seen}, and a curve needs at least "
            f"two; name runs of recipes such as {recipe}"
        )
    page = AnalysisPage(
        title=_TITLES[quantity],
        headline=_headline(found, _LABELS[quantity]),
        protocol=one_setting([placed.test for placed in found]),
        provenance=made_now(),
        figures=_figures(found, quantity),
        tables=(_rows(found, _LABELS[quantity]),),
    )
    lines = [{"series": p.series, "at": p.at, **plain_test(p.test)} for p in found]
    publish(page, {"against": quantity, "lines": lines}, out)
    return tuple(found)


def _by_teachers(found: Sequence[Tested], *, several: bool) -> Iterator[Placed]:
    """Students by their teachers; those teachers' ensembles, where one model is one of 1."""
    for test in found:
        if test.teachers:
            yield Placed(_series(test, test.models[0], several), len(test.teachers), test)
            continue
        taught = [set(t.teachers) for t in found if t.run == test.run]
        if any(set(test.models) <= teachers for teachers in taught):
            yield Placed(_series(test, "ensemble", several), len(test.models), test)


def _by_batch(found: Sequence[Tested], *, several: bool) -> Iterator[Placed]:
    for test in found:
        if len(test.models) == 1 and test.batch is not None:
            yield Placed(_series(test, test.models[0], several), test.batch, test)


def _series(test: Tested, model: str, several: bool) -> str:
    name = _NUMBERED.sub("", model) or model
    return f"{test.run} {name}" if several else name


def _figures(found: Sequence[Placed], quantity: str) -> tuple[Figure, ...]:
    log = quantity == "batch"
    figures = []
    for place, (label, caption) in enumerate(_SUMS):
        points = [
            Point(p.series, _values(p.test)[place], sums(p.test.report)[place], at=p.at)
            for p in found
        ]
        whole = label if label == "RSum" else f"sum of recalls, {label}"
        figures.append(curves(points, whole, _LABELS[quantity], label.lower(), caption, log=log))
    return tuple(figures)


def _values(test: Tested) -> tuple[float, float, float]:
    report = test.report
    return report.rsum, report.i2t.total, report.t2i.total


def _rows(found: Sequence[Placed], label: str) -> Rows:
    head = label, "series", "model", "scored by", "RSum", "i2t", "t2i"
    cells = []
    for p in found:
        total, i2t, t2i = _values(p.test)
        span = sums(p.test.report)[0]
        shown = f"{total:.1f} ({span.low:.1f} to {span.high:.1f})", f"{i2t:.1f}", f"{t2i:.1f}"
        cells.append((f"{p.at:,}", p.series, " + ".join(p.test.models), p.test.said(), *shown))
    note = "i2t and t2i are the two halves of RSum; their intervals are in the JSON."
    return Rows("Results", head, tuple(cells), note)


def _headline(found: Sequence[Placed], label: str) -> str:
    words = []
    for name in dict.fromkeys(placed.series for placed in found):
        mine = [placed for placed in found if placed.series == name]
        ends = [f"{p.test.report.rsum:.1f} at {p.at:,}" for p in (mine[0], mine[-1])]
        words.append(f"{name} {' and '.join(dict.fromkeys(ends))}")
    return f"RSum by {label}: {'; '.join(words)}."
