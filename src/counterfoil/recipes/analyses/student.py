"""A student beside its teachers and their ensemble (NDGL, Fig. 3a)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from counterfoil.evaluate.analysis_page import AnalysisPage, Rows
from counterfoil.evaluate.report import chance, signed
from counterfoil.evaluate.result_figures import Point, bars
from counterfoil.evaluation.bootstrap import Comparison, compare, sums
from counterfoil.recipes.analyses.noted import Tested, one_setting, tested
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.provenance import made_now

HEAD = "run", "model", "scored by", "RSum", "i2t", "t2i", "student − this", "p"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Taught:
    """A student and those who taught it, each as far as it was measured.

    Attributes:
        name: of the run, and of the student where the run has several.
        teachers: measured alone.
        ensemble: of all teachers.
        student: the one.
    """

    name: str
    teachers: tuple[Tested, ...]
    ensemble: Tested | None
    student: Tested

    @property
    def others(self) -> tuple[Tested, ...]:
        """Everybody but the student."""
        return (*self.teachers, *((self.ensemble,) if self.ensemble else ()))

    def against(self, other: Tested) -> Comparison:
        """RSum of the student minus that of another, on the same queries."""
        return compare(other.report, self.student.report)[-1]


def student(folders: Sequence[Path], out: Path) -> tuple[Taught, ...]:
    """Compare single models, their ensemble and the student that they taught, run by run.

    Args:
        folders: of finished runs, one for each host.
        out: page to write; the numbers go beside it as JSON.

    Raises:
        ValueError: the page exists, a run has measured no student or none of its teachers, or the
            runs were measured on different data.
    """
    check_out(out)
    measured = tested(folders)
    found = tuple(_taught(measured))
    for run in dict.fromkeys(test.run for test in measured):
        if not any(taught.student.run == run for taught in found):
            raise ValueError(
                f"{run} has measured no student beside a teacher of its own; name runs of recipes "
                "such as ndgl/gpo-scenes"
            )
    protocol = one_setting([test for one in found for test in (*one.others, one.student)])
    rows = [row for one in found for row in _rows(one)]
    page = AnalysisPage(
        title="Students, teachers and their ensembles",
        headline=" ".join(_headline(one) for one in found),
        protocol=protocol,
        provenance=made_now(),
        figures=(
            bars(
                [p for one in found for p in _points(one)],
                "RSum",
                "student",
                "Models alone, together, and taught.",
            ),
        ),
        tables=(Rows("Single models, ensembles and students", HEAD, tuple(rows), _NOTE),),
    )
    publish(page, {"students": [_plain(one) for one in found]}, out)
    return found


_NOTE = (
    "i2t and t2i are the two halves of RSum; their intervals are in the JSON. Student − this: with "
    "a 95 % interval, both drawn alike; p: the chance of so large a difference when the two "
    "exchange their answers image by image (sign flips)."
)


def _taught(found: Sequence[Tested]) -> Iterator[Taught]:
    """Every student of which a teacher or the ensemble was measured too."""
    for one in found:
        if not one.teachers:
            continue
        same = [test for test in found if test.run == one.run]
        alone = tuple(test for test in same if test.models in {(t,) for t in one.teachers})
        many = len(one.teachers) > 1
        together = [t for t in same if many and sorted(t.models) == sorted(one.teachers)]
        if alone or together:
            several = sum(bool(test.teachers) for test in same) > 1
            name = f"{one.run} {one.models[0]}" if several else one.run
            yield Taught(name, alone, together[0] if together else None, one)


def _points(one: Taught) -> Iterator[Point]:
    """The bars of a group."""
    for place, test in enumerate(one.teachers):
        yield _point(f"teacher {place + 1}", one.name, test)
    if one.ensemble:
        yield _point("ensemble of the teachers", one.name, one.ensemble)
    yield _point("student", one.name, one.student)


def _point(series: str, group: str, test: Tested) -> Point:
    return Point(series, test.report.rsum, sums(test.report)[0], group=group)


def _rows(one: Taught) -> Iterator[tuple[str, ...]]:
    for test in one.others:
        change = one.against(test)
        span = f"{signed(change.interval.low)} to {signed(change.interval.high)}"
        by = f"{signed(change.difference)} ({span})"
        yield (*_cells(one.name, test), by, chance(change.p))
    yield (*_cells(one.name, one.student), "", "")


def _cells(group: str, test: Tested) -> tuple[str, ...]:
    span = sums(test.report)[0]
    total = f"{test.report.rsum:.1f} ({span.low:.1f} to {span.high:.1f})"
    halves = f"{test.report.i2t.total:.1f}", f"{test.report.t2i.total:.1f}"
    return group, " + ".join(test.models), test.said(), total, *halves


def _headline(one: Taught) -> str:
    words = [f"{one.name}: the student reaches RSum {one.student.report.rsum:.1f}"]
    if one.teachers:
        mean = sum(test.report.rsum for test in one.teachers) / len(one.teachers)
        words.append(f"its teachers {mean:.1f} on average")
    if one.ensemble:
        change = one.against(one.ensemble)
        span = f"{signed(change.interval.low)} to {signed(change.interval.high)}"
        words.append(
            f"their ensemble {one.ensemble.report.rsum:.1f} (student − ensemble "
            f"{signed(change.difference)}, 95 % interval {span})"
        )
    return f"{', '.join(words)}."


def _plain(one: Taught) -> dict[str, Any]:
    return {
        "name": one.name,
        "teachers": [plain_test(test) for test in one.teachers],
        "ensemble": plain_test(one.ensemble) if one.ensemble else None,
        "student": plain_test(one.student),
        "differences": {" + ".join(test.models): one.against(test).plain() for test in one.others},
    }


def plain_test(test: Tested) -> dict[str, Any]:
    """JSON-ready form of an evaluation, with intervals of RSum and of its halves."""
    total, i2t, t2i = sums(test.report)
    return {
        "run": test.run,
        "models": list(test.models),
        "teachers": list(test.teachers),
        "seeds": list(test.seeds),
        "batch": test.batch,
        "intervals": {"rsum": total.plain(), "i2t": i2t.plain(), "t2i": t2i.plain()},
        "result": test.report.plain(),
    }
