"""Tables and figures of experiments, made from their ledgers: Markdown and SVG.

Differences are between trainings of equal seeds; their interval is Student's over seeds.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final, get_args

from rich.table import Table as RichTable
from rich.tree import Tree

from benchmarks.experiments.catalogue import find
from benchmarks.experiments.ledger import SPLITS, Entry, read
from benchmarks.experiments.table import Budget, Contrast, Table
from counterfoil.core.io import ensure_writable_file, write_text
from counterfoil.pipelines.plan import console

RSUM = "RSum"
LEVEL = 0.95
NOTE = (
    "Mean over seeds ± standard deviation between seeds. Differences are from the row “{base}” of "
    "the same model and setting, on equal seeds, with Student's 95 % interval over seeds; not "
    "corrected for the number of rows. Last epoch, nothing selected; single models, except in rows "
    "named ensemble."
)


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference of a metric between two methods on equal seeds.

    Attributes:
        mean: over seeds.
        low: of Student's interval; -inf for a single seed.
        high: of the same.
        better: seeds with a higher value.
        count: seeds.
    """

    mean: float
    low: float
    high: float
    better: int
    count: int

    def __str__(self) -> str:
        if self.count == 1:
            return f"{self.mean:+.1f} (one seed)"
        return f"{self.mean:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


@final
@dataclass(frozen=True, slots=True)
class Line:
    """One method under one setting, over its seeds.

    Attributes:
        model: title of the model.
        setting: see `Entry`.
        method: how it was trained.
        entries: by seed.
        against: difference from the base by split, of the table's first metric; empty for the base
            and where no seed is shared.
        base: entries of the base by seed; empty for the base.
    """

    model: str
    setting: str
    method: str
    entries: dict[int, Entry]
    against: dict[str, Difference]
    base: dict[int, Entry] = field(default_factory=dict)

    def values(self, split: str, metric: str = RSUM) -> list[float]:
        """Values of a metric, by seed."""
        return [entry.numbers[split][metric] for entry in self.entries.values()]


def difference(
    treated: dict[int, Entry], base: dict[int, Entry], split: str, metric: str = RSUM
) -> Difference | None:
    """Difference on the seeds that both have; None where they share none."""
    changes = [
        entry.numbers[split][metric] - base[seed].numbers[split][metric]
        for seed, entry in treated.items()
        if seed in base
    ]
    return of_changes(changes) if changes else None


def of_changes(changes: Sequence[float]) -> Difference:
    """Difference of values that are paired by seed, from the change of each pair."""
    mean, reach = sum(changes) / len(changes), math.inf
    if len(changes) > 1:
        from scipy.stats import t

        reach = _deviation(changes) / math.sqrt(len(changes))
        reach *= float(t.ppf((1 + LEVEL) / 2, len(changes) - 1))
    return Difference(
        mean=mean,
        low=mean - reach,
        high=mean + reach,
        better=sum(change > 0 for change in changes),
        count=len(changes),
    )


def lines(table: Table, entries: Sequence[Entry]) -> tuple[Line, ...]:
    """A line for each model, setting and method, in the order of the entries, the base first.

    Raises:
        ValueError: no entry, or entries of several tables, budgets, protocols or data sets.
    """
    _check_same(entries)
    rows: dict[tuple[str, str, str], dict[int, Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.seed):
        rows.setdefault((entry.model, entry.setting, entry.method), {})[entry.seed] = entry
    groups = list(dict.fromkeys((entry.model, entry.setting) for entry in entries))
    methods = list(dict.fromkeys((table.base, *(entry.method for entry in entries))))
    order = sorted(rows, key=lambda row: (groups.index(row[:2]), methods.index(row[2])))
    return tuple(_line(row, rows, table) for row in order)


def _line(
    row: tuple[str, str, str], rows: dict[tuple[str, str, str], dict[int, Entry]], table: Table
) -> Line:
    model, setting, method = row
    others = rows.get((model, setting, table.base), {}) if method != table.base else {}
    first = table.metrics[0]
    found = {split: difference(rows[row], others, split, first) for split in SPLITS}
    against = {split: change for split, change in found.items() if change}
    return Line(model, setting, method, rows[row], against, others)


def _check_same(entries: Sequence[Entry]) -> None:
    if not entries:
        raise ValueError("there is no result yet; run the table first")
    for kind, given in (
        ("tables", {(e.table, e.budget) for e in entries}),
        ("protocols", {e.protocol for e in entries}),
        ("data sets", {e.data for e in entries}),
    ):
        if len(given) > 1:
            names = "; ".join(sorted(str(one) for one in given))
            raise ValueError(f"results of different {kind} cannot stand in one table: {names}")


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation (n - 1)."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def verdict(contrast: Contrast, entries: Sequence[Entry]) -> str:
    """The declared comparison on its seeds, in a sentence."""
    rows: dict[str, dict[int, Entry]] = {contrast.method: {}, contrast.base: {}}
    for entry in entries:
        if (entry.model, entry.setting) != (contrast.model, contrast.setting):
            continue
        if entry.method in rows and entry.seed in contrast.seeds:
            rows[entry.method][entry.seed] = entry
    changes = [
        difference(rows[contrast.method], rows[contrast.base], split, contrast.metric)
        for split in SPLITS
    ]
    dev, test = changes
    if dev is None or test is None:
        return f"**Not run yet**: {contrast.claim}"
    if test.count < len(contrast.seeds):
        state = f"Open, {test.count} of {len(contrast.seeds)} seeds"
    elif dev.low > 0 and test.low > 0:
        state = "Confirmed"
    elif dev.high < 0 and test.high < 0:
        state = "Refuted, the opposite holds"
    elif dev.high < contrast.least and test.high < contrast.least:
        state = f"Refuted, any gain is below {contrast.least:g}"
    elif (dev.low > 0) != (test.low > 0):
        state = "Open, dev and test disagree"
    else:
        state = "Open"
    return (
        f"**{state}**: {contrast.claim} {contrast.metric} dev {dev}, test {test}, "
        f"{contrast.method} against {contrast.base}, {test.count} seeds, higher in {dev.better} "
        f"and {test.better}."
    )


def seeds_needed(deviation: float, gain: float, *, power: float = 0.8) -> int:
    """Seeds at which a paired t-test at 5 % detects a gain with this power.

    Args:
        deviation: between seeds, of the difference of two trainings of equal seeds.
        gain: true difference.
        power: probability of detecting it.

    Raises:
        ValueError: no gain or no deviation.
    """
    from scipy.stats import nct, t

    if gain == 0 or deviation <= 0:
        raise ValueError(f"gain {gain} and deviation {deviation}: both must differ from 0")
    for count in range(2, 10_000):
        limit, shift = t.ppf(0.975, count - 1), math.sqrt(count) * abs(gain) / deviation
        if 1 - nct.cdf(limit, count - 1, shift) >= power:
            return count
    raise ValueError(f"a gain of {gain} is too small to be seen with 10,000 seeds")


def show(ledgers: Sequence[Path], figure: Path | None = None) -> None:
    """Print the table of one or more ledgers as Markdown, and draw its differences.

    Raises:
        ValueError: a file is missing or damaged, or results do not belong into one table.
    """
    if figure is not None:
        ensure_writable_file(figure, exist_ok=True)
    entries = [entry for path in ledgers for entry in read(path)]
    _check_same(entries)
    table = find(entries[0].table)
    console.print(as_markdown(table, entries), markup=False, highlight=False, soft_wrap=True)
    for line in lines(table, entries):
        if line.against.get("test") and len(line.entries) > 1:
            console.print(
                _power(table, line, entries), markup=False, highlight=False, soft_wrap=True
            )
    if figure is not None:
        write_text(figure, figure_svg(table, entries))


def _power(table: Table, line: Line, entries: Sequence[Entry]) -> str:
    """Seeds that a difference of 1, 2 and 4 points would need, from the deviation measured."""
    metric = table.metrics[0]
    base = {
        entry.seed: entry.numbers["test"][metric]
        for entry in entries
        if (entry.model, entry.setting, entry.method) == (line.model, line.setting, table.base)
    }
    changes = [e.numbers["test"][metric] - base[s] for s, e in line.entries.items() if s in base]
    deviation = max(_deviation(changes), 1e-3)
    needed = ", ".join(f"{seeds_needed(deviation, gain)} for {gain}" for gain in (1, 2, 4))
    name = ", ".join(part for part in (line.model, line.setting, line.method) if part)
    return f"{name}: differences deviate by {deviation:.1f} between seeds; seeds needed: {needed}"


BLOCK = re.compile(r"(<!-- table: ([a-z0-9-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write_pages(docs: Path) -> None:
    """Write the tables of ``docs/evidence/TABLE.jsonl`` into the pages of results, with figures.

    A page has a place ``<!-- table: TABLE --> … <!-- end -->``; the figure is
    ``docs/images/TABLE.svg``.
    """
    for page in sorted((docs / "results").glob("*.md")):
        text = page.read_text("utf-8")
        made = BLOCK.sub(lambda block: _block(docs, block), text)
        if made != text:
            write_text(page, made)


def _block(docs: Path, block: re.Match[str]) -> str:
    head, name, end = block.groups()
    entries, table = read(docs / "evidence" / f"{name}.jsonl"), find(name)
    write_text(docs / "images" / f"{name}.svg", figure_svg(table, entries))
    return f"{head}{as_markdown(table, entries)}\n{end}"


def show_tables(tables: Iterable[Table]) -> None:
    """Print all tables, a line each."""
    shown = RichTable("table of experiments", "question")
    for table in tables:
        shown.add_row(table.name, table.question)
    console.print(shown)


def show_plan(table: Table) -> None:
    """Print the experiments of a table by budget, in the order of running."""
    for budget in get_args(Budget):
        tree = Tree(f"[bold]{table.name} --budget {budget}[/bold]  {table.question}")
        for one in table.of(budget):
            branch = tree.add(f"[bold]{one.key}[/bold]")
            methods: dict[str, list[str]] = {}
            for row in one.rows:
                group = ", ".join(part for part in (row.model, row.setting) if part)
                methods.setdefault(f"{group}, seed {row.seed}", []).append(row.method)
            for group, trained in methods.items():
                branch.add(f"{group}: {', '.join(trained)}")
        for contrast in table.contrasts:
            seeds = f"{contrast.seeds[0]} to {contrast.seeds[-1]}"
            tree.add(f"declared: {contrast.claim} (seeds {seeds})")
        console.print(tree)


def as_markdown(table: Table, entries: Sequence[Entry]) -> str:
    """Question, protocol, the declared contrasts with their verdicts, and the table."""
    verdicts = [f"- {verdict(contrast, entries)}" for contrast in table.contrasts]
    head = ["model", "setting", "method", "seeds"]
    for metric in table.metrics:
        head += [*(f"{split} {metric}" for split in SPLITS), *SPLITS]
    first = entries[0]
    body = [f"| {' | '.join(_cells(table, line))} |" for line in lines(table, entries)]
    return "\n".join(
        [
            f"{table.question}",
            "",
            *verdicts,
            "",
            f"{first.table}, budget {first.budget}: {first.protocol}.",
            "",
            f"| {' | '.join(head)} |",
            f"|{'---|' * len(head)}",
            *body,
            "",
            NOTE.format(base=table.base),
        ]
    )


def _cells(table: Table, line: Line) -> list[str]:
    cells = [line.model, line.setting, line.method, str(len(line.entries))]
    for metric in table.metrics:
        changes = [difference(line.entries, line.base, split, metric) for split in SPLITS]
        cells += [_mean_deviation(line.values(split, metric)) for split in SPLITS]
        cells += [str(change or "") for change in changes]
    return cells


def _mean_deviation(values: Sequence[float]) -> str:
    spread = f" ± {_deviation(values):.1f}" if len(values) > 1 else ""
    return f"{sum(values) / len(values):.1f}{spread}"


def figure_svg(table: Table, entries: Sequence[Entry]) -> str:
    """Differences on test and dev with their intervals, a line of the figure each, as SVG."""
    from matplotlib.figure import Figure

    shown = [line for line in lines(table, entries) if line.against]
    canvas = Figure(figsize=(7.2, 1.1 + 0.36 * len(shown)), layout="constrained")
    axes = canvas.subplots()
    for place, line in enumerate(shown):
        for split, shift, color in (("dev", -0.14, "#b08a4a"), ("test", 0.14, "#4a6fa5")):
            change = line.against[split]
            at, name = place + shift, split if place == 0 else None
            if change.count > 1:
                axes.plot([change.low, change.high], [at, at], color=color, linewidth=2)
            axes.plot(change.mean, at, "o", color=color, markersize=4, label=name)
    axes.axvline(0, color="#888888", linewidth=0.8)
    names = [", ".join(p for p in (line.model, line.setting, line.method) if p) for line in shown]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"{table.metrics[0]} against {table.base}, 95 % interval over seeds")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    return svg_text(canvas, table.name)


def svg_text(canvas: Any, salt: str) -> str:
    """A figure of matplotlib as SVG; the same numbers give the same file."""
    from matplotlib import rc_context

    svg = io.StringIO()
    with rc_context({"svg.hashsalt": salt}):
        canvas.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()
