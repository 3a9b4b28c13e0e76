"""The report of an experiment: one HTML file that needs nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from counterfoil import files
from counterfoil.evaluate import figures
from counterfoil.evaluate.figures import Curve, Figure, Hardness
from counterfoil.evaluate.gallery import Gallery
from counterfoil.evaluate.result import METRICS, Report
from counterfoil.evaluation.bootstrap import Comparison, Interval, compare, intervals

if TYPE_CHECKING:
    from jinja2 import Template

    from counterfoil.evaluate.analysis_page import Cards, Rows

GROUPS = (
    ("Image to text", METRICS[:5]),
    ("Text to image", METRICS[5:10]),
    ("Both", METRICS[10:]),
)


@final
@dataclass(frozen=True, slots=True)
class RunResult:
    """A run as it stands in the tables.

    Attributes:
        name: of the run.
        numbers: one for each of `METRICS`.
        intervals: one for each of `METRICS`.
        against: the first run, compared with this one; empty for the first run itself.
    """

    name: str
    numbers: tuple[float, ...]
    intervals: tuple[Interval, ...]
    against: tuple[Comparison, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the numbers come from, and how to have them again.

    Attributes:
        command: that made the report.
        seed: of the run.
        recipe: its name.
        digest: of the recipe's content.
        versions: of what computed, as (name, version).
        reproduce: commands that give the same numbers, line by line.
    """

    command: str
    seed: int | None = None
    recipe: str = ""
    digest: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    reproduce: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class ReportPage:
    """All that stands on the page.

    Attributes:
        title: of the page.
        protocol: in one sentence, see `counterfoil.evaluate.result.Setting.line`.
        runs: at least one; the others are compared with the first.
        curves: learning curves, one per run.
        hardness: sources of negatives, to be laid over each other.
        galleries: retrievals with pictures.
        provenance: for the foot of the page.
        margin: of the triplet loss, in units of the score, to be marked among the negatives.
        courses: of the negatives that were written while the runs were trained.
        tables: of what else was measured.
        sections: of queries on which runs differ.
    """

    title: str
    protocol: str
    runs: tuple[RunResult, ...]
    curves: tuple[Curve, ...]
    hardness: tuple[Hardness, ...]
    galleries: tuple[Gallery, ...]
    provenance: Provenance
    margin: float | None = None
    courses: tuple[Figure, ...] = ()
    tables: tuple[Rows, ...] = ()
    sections: tuple[Cards, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """A number and its surroundings.

    Attributes:
        value: the number.
        under: its interval.
        best: whether it is the best of its row.
        p: chance of a difference; None where the cell is no difference.
    """

    value: str
    under: str
    best: bool = False
    p: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Row:
    """A metric and its cells: the first run, then value and difference of every other run."""

    metric: str
    cells: tuple[Cell, ...]


def results(reports: dict[str, Report], *, seed: int = 0) -> tuple[RunResult, ...]:
    """Runs with intervals, each after the first compared with the first.

    Args:
        reports: evaluations on the same queries, by the name of the run.
        seed: of the resampling.

    Raises:
        ValueError: the runs were not made on the same queries.
    """
    runs = list(reports.items())
    return tuple(
        RunResult(
            name,
            report.numbers,
            intervals(report, seed=seed),
            compare(runs[0][1], report, seed=seed) if place else (),
        )
        for place, (name, report) in enumerate(runs)
    )


def render(page: ReportPage) -> str:
    """The page as HTML; everything that comes from data or users is escaped.

    Raises:
        ValueError: there is no run to show.
    """
    if not page.runs:
        raise ValueError("a report needs at least one evaluated run")
    return template("report.html.j2").render(
        page=page,
        headline=headline(page.runs),
        groups=[(title, [row(page.runs, metric) for metric in names]) for title, names in GROUPS],
        learning=figures.learning(page.curves) if page.curves else (),
        hardness=_hardness(page),
    )


def write(page: ReportPage, path: Path) -> None:
    """Write the page, whole or not at all."""
    files.write_text(path, render(page))


def write_gallery(gallery: Gallery, path: Path) -> None:
    """Write a page of retrievals alone, as of a search; whole or not at all."""
    files.write_text(path, template("gallery.html.j2").render(gallery=gallery))


def headline(runs: tuple[RunResult, ...]) -> str:
    """The result in one sentence."""
    first, last = runs[0], runs[-1]
    if not last.against:
        span = first.intervals[-1]
        return f"RSum {first.numbers[-1]:.1f} (95 % interval {span.low:.1f} to {span.high:.1f})."
    change = last.against[-1]
    span = change.interval
    word = "more" if change.difference >= 0 else "less"
    sure = "" if span.low > 0 or span.high < 0 else ", which could be chance"
    return (
        f"{last.name} reaches RSum {last.numbers[-1]:.1f}, {abs(change.difference):.1f} {word} "
        f"than {first.name} (95 % interval of the difference {signed(span.low)} to "
        f"{signed(span.high)}{sure})."
    )


def row(runs: tuple[RunResult, ...], metric: str) -> Row:
    """One metric of every run."""
    place = METRICS.index(metric)
    shown = [figure(metric, run.numbers[place]) for run in runs]
    low_is_good = metric.endswith("rank")
    numbers = [run.numbers[place] for run in runs]
    top = min(numbers) if low_is_good else max(numbers)
    cells: list[Cell] = []
    for run, number, text in zip(runs, numbers, shown):
        span = run.intervals[place]
        under = f"{figure(metric, span.low)} to {figure(metric, span.high)}"
        cells.append(Cell(text, under, best=number == top and len(set(shown)) > 1))
        if run.against:
            cells.append(_difference(run.against[place]))
    name = metric.removeprefix("i2t ").removeprefix("t2i ")
    return Row(name[0].upper() + name[1:], tuple(cells))


def figure(metric: str, number: float) -> str:
    """A number with as many places as mean something."""
    whole = metric.endswith("median rank") and number == int(number)
    return f"{number:.0f}" if whole else f"{number:,.1f}"


def signed(number: float, metric: str = "") -> str:
    """A difference with its sign."""
    text = figure(metric, abs(number))
    if not float(text.replace(",", "")):
        return text
    return f"{'+' if number > 0 else '−'}{text}"


def chance(p: float | None) -> str:
    """A p-value in words."""
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def template(name: str) -> Template:
    """A template of the pages; what is put into it is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("counterfoil.evaluate"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _difference(change: Comparison) -> Cell:
    span = change.interval
    name = change.metric
    under = f"{signed(span.low, name)} to {signed(span.high, name)}"
    return Cell(signed(change.difference, name), under, p=chance(change.p))


def _hardness(page: ReportPage) -> Figure | None:
    return figures.hardness(page.hardness, page.margin) if page.hardness else None
