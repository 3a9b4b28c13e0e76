"""``counterfoil report``: any number of finished runs side by side, on one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from counterfoil.core.console import output
from counterfoil.evaluate.analysis_page import Cards
from counterfoil.evaluate.course import Course, fans, lines
from counterfoil.evaluate.figures import Figure, Hardness
from counterfoil.evaluate.report import ReportPage, RunResult, headline, results
from counterfoil.evaluate.report import write as write_page
from counterfoil.evaluate.table import plain, table
from counterfoil.files import write_json
from counterfoil.recipes.analyses.noted import METRICS, Tested, tested
from counterfoil.recipes.analyses.results import check_out
from counterfoil.recipes.analyses.scorers import short_names
from counterfoil.recipes.analyses.side_by_side import differing
from counterfoil.recipes.comparison import HARDNESS, curve, hardness_at
from counterfoil.recipes.measured import NUMBERS, Measured
from counterfoil.recipes.notes import notes_in
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.reporting_tables import apart, cost, costs, foil_accuracies, foil_rows
from counterfoil.recipes.run import Source
from counterfoil.recipes.show import console
from counterfoil.train.log import read_metrics

Named = list[tuple[str, Tested]]
SHOWN = 3  # queries of each kind on which two runs differ


@final
@dataclass(frozen=True, slots=True)
class ReportPlan:
    """What stands on the page besides what the runs' folders hold.

    Attributes:
        source: the data, so that queries are shown on which runs differ; None for none.
        foils: files that ``counterfoil foils --json`` wrote.
    """

    source: Source | None = None
    foils: tuple[Path, ...] = ()


def report_with(folders: Sequence[Path], plan: ReportPlan, out: Path) -> tuple[RunResult, ...]:
    """Compare the evaluations of runs with the first of them; write a page, and its numbers beside.

    Args:
        folders: of runs, all of whose finished evaluations are meant, or of single evaluations.
        plan: what else to show.
        out: the page.

    Returns:
        What is compared.

    Raises:
        ValueError: the page exists, a folder holds no finished evaluation, or the data are not
            those that were measured on.
    """
    check_out(out)
    found = _named(folders)
    same = [(name, test) for name, test in found if _alike(test, found[0][1])]
    others = [(name, test) for name, test in found if not _alike(test, found[0][1])]
    places = list(dict.fromkeys(place for _, test in found for place in test.trained))
    trained = dict(zip(_short(places), places, strict=True))
    spent = [cost(name, place) for name, place in trained.items()]
    foils, courses = foil_accuracies(plan.foils), _courses(trained)
    sections, queries = _differing(plan.source, same) if plan.source else ((), ())
    page = ReportPage(
        title=_title([name for name, _ in same]),
        protocol=_protocol(same),
        runs=results({name: test.report for name, test in same}),
        curves=tuple(curve(name, place / METRICS) for name, place in trained.items()),
        hardness=_hardness(found),
        galleries=(),
        provenance=made_now(),
        courses=tuple(_figures(courses)),
        tables=(
            *([costs(spent)] if spent else []),
            *([foil_rows(foils)] if foils else []),
            *([apart(others)] if others else []),
        ),
        sections=sections,
    )
    more = {
        "cost": [one.plain() for one in spent],
        "foils": [asdict(one) for one in foils],
        "written": [one.plain() for one in courses],
        "queries": queries,
    }
    _publish(page, others, more, out)
    return page.runs


def _named(folders: Sequence[Path]) -> Named:
    """Evaluations by short names: those of runs, and those that were named themselves."""
    twice = next((folder for folder in folders if list(folders).count(folder) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice; name each run once")
    alone = {folder for folder in folders if (folder / NUMBERS).is_file()}
    runs = list(dict.fromkeys(one.parent if one in alone else one for one in folders))
    tests = {run: _in_order(run, tested([run])) for run in runs}
    once = {
        test.folder: test
        for folder in folders
        for test in tests[folder.parent if folder in alone else folder]
        if folder not in alone or test.folder == folder
    }
    found = list(once.values())  # an evaluation may be named beside its run
    names = dict(zip(runs, short_names([str(run) for run in runs]), strict=True))
    before = {run: "" if len(runs) == 1 else f"{name}/" for run, name in names.items()}
    told = [before[test.folder.parent] + test.name for test in found]
    return [
        (name if told.count(name) == 1 else f"{name} ({test.folder.name})", test)
        for name, test in zip(told, found, strict=True)
    ]


def _in_order(run: Path, found: Sequence[Tested]) -> list[Tested]:
    """Evaluations as the run's own report has them, others behind them."""
    told = [name for note in notes_in(run).values() for name in note["stage"].get("results", ())]
    return sorted(found, key=lambda test: (test.folder.name not in told, _place(test, told)))


def _place(test: Tested, told: Sequence[str]) -> int:
    return told.index(test.folder.name) if test.folder.name in told else 0


def _protocol(same: Named) -> str:
    """In one sentence; the seed where all have one."""
    setting = same[0][1].report.setting
    seeds = {test.report.setting.seed for _, test in same}
    return (setting if len(seeds) == 1 else replace(setting, seed=None)).line()


def _short(places: Sequence[Path]) -> tuple[str, ...]:
    return short_names([str(place) for place in places]) if places else ()


def _alike(one: Tested, other: Tested) -> bool:
    """Whether figures compare: the same queries, under the same protocol."""
    a, b = one.report.setting, other.report.setting
    keys = [(s.protocol, s.split, s.images, s.texts, s.tie) for s in (a, b)]
    return keys[0] == keys[1] and one.corpus == other.corpus


def _title(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    few = ", ".join(names[:-1]) if len(names) < 5 else f"{names[0]}, {len(names) - 2} more"
    return f"{few} and {names[-1]}"


def _hardness(found: Named) -> tuple[Hardness, ...]:
    """What was kept of the lists of each run."""
    runs = list(dict.fromkeys(test.folder.parent for _, test in found))
    places = [path.parent for run in runs for path in sorted(run.glob(f"*/{HARDNESS}"))]
    return tuple(
        replace(one, name=f"{name}, {one.name.partition(':')[0]}")
        for name, place in zip(_short(places), places, strict=True)
        for one in hardness_at(place, name)
    )


def _courses(trained: dict[str, Path]) -> list[Course]:
    """Of the captions that were written while models were trained; none where none were."""
    try:
        logs = {name: read_metrics(place / METRICS) for name, place in trained.items()}
        return [one for name, log in logs.items() if (one := Course.of(name, log)) is not None]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"a log tells only a part of how hard written captions are: {error}"
        ) from error


def _figures(courses: Sequence[Course]) -> list[Figure]:
    if not courses:
        return []
    above = [(one.name, one.steps, one.above) for one in courses]
    return [fans(courses), lines(above, "above the original, %", "above")]


def _differing(
    source: Source, same: Named
) -> tuple[tuple[Cards, ...], Sequence[dict[str, object]]]:
    """Queries on which the first and the last run differ most, as cards and as JSON."""
    if len(same) < 2:
        return (), ()
    (first, one), (last, other) = same[0], same[-1]
    corpus = source.split(one.report.setting.split)
    if corpus.fingerprint != one.corpus:
        raise ValueError(
            f"{first} was measured on other data than {corpus.name} {corpus.part} as they are now; "
            "name the data of the run with --data, and its --decisions where it had some, or leave "
            "them out for a report without pictures"
        )
    both = {first: Measured.open(one.folder), last: Measured.open(other.folder)}
    return differing(corpus, both, SHOWN)


def _publish(page: ReportPage, others: Named, more: dict[str, Any], out: Path) -> None:
    console.print(table(page.runs, page.protocol))
    for one in page.tables:
        console.print(plain(one))
    write_page(page, out)
    write_json(out.with_suffix(".json"), {**_numbers(page, others), **more})
    output(headline(page.runs))
    if others:
        told = ", ".join(name for name, _ in others)
        output(f"set apart, for they were measured on other data or otherwise: {told}")
    output(f"{out}, {out.with_suffix('.json')}")


def _numbers(page: ReportPage, others: Named) -> dict[str, Any]:
    return {
        "protocol": page.protocol,
        "runs": [asdict(run) for run in page.runs],
        "curves": [asdict(one) for one in page.curves],
        "hardness": [one.plain() for one in page.hardness],
        "apart": {name: test.report.plain() for name, test in others},
        "provenance": asdict(page.provenance),
    }
