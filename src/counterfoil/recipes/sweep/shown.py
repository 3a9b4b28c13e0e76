"""How a sweep is shown: its points beforehand; afterwards a table, a page, and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from counterfoil.analysis.base import Analysis
from counterfoil.evaluate.result import METRICS
from counterfoil.evaluate.sweep_figures import Tried, parallel
from counterfoil.recipes.evidence.summary import setting
from counterfoil.recipes.show import console, say
from counterfoil.recipes.sweep.grid import Sweep, labels, points
from counterfoil.recipes.sweep.jobs import Job, jobs
from counterfoil.recipes.sweep.results import Scored, Swept
from counterfoil.recipes.sweep.shelf import POINTS
from counterfoil.report.page import TableBlock
from counterfoil.report.tables import terminal_table

RESULTS, PAGE = "sweep.json", "sweep.html"
NONE = "–"
NOTE = "The best of many points looks better on dev than it is; only test tells how good it is."


def listed(sweeps: Iterable[Sweep]) -> None:
    """All sweeps, a line each."""
    rows = tuple(
        (one.name, f"{one.size:,}", str(one.draw or one.size), one.about) for one in sweeps
    )
    console.print(terminal_table(TableBlock("", ("sweep", "grid", "points", "about"), rows)))


def planned(sweep: Sweep) -> None:
    """The points of a sweep, and how many stages they come to.

    Raises:
        ValueError: a key or value that the recipe does not take, or points that train the same.
    """
    found = points(sweep)
    todo = jobs(sweep, found, "")
    rows = tuple((str(n), *point.values) for n, point in enumerate(found, 1))
    head = ("point", *labels(sweep.axes))
    console.print(terminal_table(TableBlock(sweep.name, head, rows, sweep.about)))
    say(_counted(sweep, todo))


def show(found: Swept, folder: Path) -> None:
    """Print the table, and write it as a page and as JSON into the folder of the sweep."""
    names = labels(found.sweep.axes)
    best = found.ranked[0]
    tried = [Tried(point.values, point.mean) for point in found.ranked]
    axes = [(name, axis.values) for name, axis in zip(names, found.sweep.axes)]
    Analysis(
        title=f"{found.sweep.name}: {found.sweep.compared}",
        headline=_headline(found, best),
        protocol=_protocol(found),
        recipe=found.sweep.recipe.name,
        figures=(parallel(axes, tried, _figure(found), "grid"),),
        tables=_tables(found, names),
        numbers=found.plain(),
    ).publish(folder / PAGE)


def _tables(found: Swept, names: Sequence[str]) -> tuple[TableBlock, ...]:
    tables = [_by_point(found, names)]
    if len(found.ranked) > 1:
        tables.append(_by_value(found, names))
    if found.tests:
        tables.append(_tested(found))
    return tuple(tables)


def _by_point(found: Swept, names: Sequence[str]) -> TableBlock:
    """Points, the best first, and after them those that failed."""
    head = ("rank", *names, _figure(found), "best epoch", f"in {POINTS}/")
    rows = [
        (str(rank), *point.values, _spread(point), *_where(point))
        for rank, point in enumerate(found.ranked, 1)
    ]
    rows += [(NONE, *point.values, "failed", NONE, NONE) for point in found.failed]
    told = [f"{', '.join(point.values)}: {point.failed}" for point in found.failed]
    keys = [
        f"{name} is {axis.name}."
        for name, axis in zip(names, found.sweep.axes)
        if name != axis.name
    ]
    return TableBlock("Points", head, tuple(rows), "\n".join([NOTE, " ".join(keys), *told]).strip())


def _by_value(found: Swept, names: Sequence[str]) -> TableBlock:
    named = dict(zip(found.sweep.axes, names))
    rows = []
    for axis, value, have in found.by_value():
        figures = [point.mean for point in have]
        told = (f"{sum(figures) / len(have):.1f}", f"{max(figures):.1f}") if have else (NONE, NONE)
        rows.append((named[axis], value, str(len(have)), *told))
    head = ("key", "value", "points", f"mean {_figure(found)}", "best")
    return TableBlock("Values", head, tuple(rows), "Each with all points that have it.")


def _tested(found: Swept) -> TableBlock:
    recalls = [metric for metric in METRICS if "R@" in metric or metric == METRICS[-1]]
    rows = tuple(
        (test.stage, str(test.seed), *(f"{test.numbers[metric]:.1f}" for metric in recalls))
        for test in found.tests
    )
    told = dict.fromkeys(f"{test.stage}: {setting(test.protocol)}." for test in found.tests)
    note = "\n".join(told)
    return TableBlock("The best point on test", ("stage", "seed", *recalls), rows, note)


def _spread(point: Scored) -> str:
    spread = "" if point.deviation is None else f" ± {point.deviation:.1f}"
    return f"{point.mean:.1f}{spread}"


def _where(point: Scored) -> tuple[str, str]:
    """Best epochs and folders, one for each seed."""
    epochs = ", ".join(f"{one.epoch:g}" for one in point.trained)
    return epochs, ", ".join(Path(one.folder).name for one in point.trained)


def _figure(found: Swept) -> str:
    return "dev RSum" if found.select == "rsum" else f"dev {found.select}"


def _headline(found: Swept, best: Scored) -> str:
    settings = ", ".join(f"{axis.name}={v}" for axis, v in zip(found.sweep.axes, best.values))
    lowest = found.ranked[-1]
    reach = f"; the others go down to {lowest.mean:.1f}" if lowest.mean < best.mean else ""
    return f"The best {_figure(found)} is {_spread(best)}, with {settings}{reach}."


def _protocol(found: Swept) -> str:
    sweep = found.sweep
    drawn = f" drawn from {sweep.size:,} with seed {sweep.seed}" if sweep.draw else ""
    trained = len(found.ranked)
    seeds = ", ".join(map(str, sweep.seeds))
    return (
        f"chosen on {found.data} {found.dev}, whole split, by {found.select} of the best epoch of "
        f"{sweep.compared!r} ({sweep.recipe.name}); {trained:,} points{drawn}; single models; "
        f"seed{'s' if len(sweep.seeds) > 1 else ''} {seeds}"
        f"{', ± standard deviation between them' if len(sweep.seeds) > 1 else ''}"
    )


def _counted(sweep: Sweep, todo: Sequence[Job]) -> str:
    """How many stages of which kind, and how many there would be if nothing were shared."""
    kinds = {d: s.kind for job in todo for d, s in zip(job.needed, job.recipe.stages)}
    many = ", ".join(f"{count:,} {kind}" for kind, count in Counter(kinds.values()).items())
    alone = sum(len(job.needed) for job in todo)
    shared = f" ({alone:,} if none were shared)" if alone > len(kinds) else ""
    repeats = f" × {len(sweep.seeds)} seeds" if len(sweep.seeds) > 1 else ""
    return (
        f"{len(todo) // len(sweep.seeds):,} points{repeats}, compared on dev by "
        f"{sweep.compared!r}: {len(kinds):,} stages, {many}{shared}"
    )
