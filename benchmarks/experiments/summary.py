"""The table of experiments, made from their raw results: as Markdown and as SVG."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final, get_args

import torch
from rich.table import Table as RichTable
from rich.tree import Tree
from torch import Tensor

from benchmarks.experiments.catalogue import tables
from benchmarks.experiments.ledger import Entry, read
from benchmarks.experiments.table import Budget, Row, Table
from counterfoil.core.io import ensure_writable_file, write_text
from counterfoil.evaluation.metrics import METRICS, without_models
from counterfoil.pipelines.plan import console

ONLINE = "online"
RSUM = METRICS[-1]
RECALLS = tuple(metric for metric in METRICS if "R@" in metric)
RESAMPLES, FLIPS, LEVEL = 2000, 10_000, 0.95
AT_ONCE = 250
HEAD = ("model", "loss", "seeds", *RECALLS, RSUM, "against {first} (95 %)", "p", "better in")
NOTE = (
    "Mean over seeds; RSum ± standard deviation between seeds. The interval resamples seeds and "
    "images with all their captions; p permutes the two methods' results image by image and does "
    "not extend to other seeds; neither is corrected for the number of rows. Single models, "
    "except in rows named ensemble."
)


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """Distance of RSum from that of the first method, on the same model, seeds and queries.

    Attributes:
        mean: over seeds.
        low: of the interval that draws seeds, and images with all their queries, anew.
        high: of the same.
        p: two-sided, of a test that exchanges the two methods' answers image by image, for all
            seeds together; it says nothing about other seeds.
        better: number of seeds with a higher RSum, and number of seeds.
    """

    mean: float
    low: float
    high: float
    p: float
    better: tuple[int, int]


@final
@dataclass(frozen=True, slots=True)
class Line:
    """One method on one model, over its seeds.

    Attributes:
        host: title of the model.
        method: how it was trained.
        lists: the model whose scores mined its negatives.
        seeds: in order.
        means: of every metric, by name.
        deviation: of RSum between seeds (n - 1); None for a single one.
        against: the first method, or None for itself.
    """

    host: str
    method: str
    lists: str
    seeds: tuple[int, ...]
    means: dict[str, float]
    deviation: float | None
    against: Difference | None


def lines(entries: Sequence[Entry], first: str = ONLINE) -> tuple[Line, ...]:
    """A line for each model and method, in the order of the entries.

    Args:
        entries: of one table and budget.
        first: method that the others are compared with.

    Raises:
        ValueError: nothing, or results of different protocols or data.
    """
    _check_same(entries)
    rows: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        rows.setdefault((entry.host, entry.method, entry.lists), []).append(entry)
    base = {(entry.host, entry.seed): entry for entry in entries if entry.method == first}
    hosts = list(dict.fromkeys(entry.host for entry in entries))
    order = sorted(rows, key=lambda row: (hosts.index(row[0]), row[1] != first))
    return tuple(_line(sorted(rows[row], key=lambda e: e.seed), base, first) for row in order)


def first_of(entries: Sequence[Entry]) -> str:
    """The method that others are compared with in the entries' table."""
    known = {table.name: table.first for table in tables()}
    return known.get(entries[0].table, ONLINE) if entries else ONLINE


def _check_same(entries: Sequence[Entry]) -> None:
    if not entries:
        raise ValueError("there is no result yet; run the table first")
    for kind, given in (
        ("tables", {(e.table, e.budget) for e in entries}),
        ("protocols", {without_models(e.protocol) for e in entries}),
        ("data sets", {e.data for e in entries}),
    ):
        if len(given) > 1:
            names = "; ".join(sorted(str(one) for one in given))
            raise ValueError(f"results of different {kind} cannot stand in one table: {names}")


def _line(runs: Sequence[Entry], base: dict[tuple[str, int], Entry], first: str) -> Line:
    rsums = torch.tensor([run.numbers[RSUM] for run in runs], dtype=torch.float64)
    pairs = [(base[run.host, run.seed], run) for run in runs if (run.host, run.seed) in base]
    compared = runs[0].method != first and pairs
    return Line(
        host=runs[0].host,
        method=runs[0].method,
        lists=runs[0].lists,
        seeds=tuple(run.seed for run in runs),
        means={m: sum(run.numbers[m] for run in runs) / len(runs) for m in METRICS},
        deviation=float(rsums.std()) if len(runs) > 1 else None,
        against=_difference(pairs) if compared else None,
    )


def _difference(pairs: Sequence[tuple[Entry, Entry]]) -> Difference:
    """Of the second of each pair from the first."""
    changes = torch.stack([second.shares() - first.shares() for first, second in pairs])
    rng = torch.Generator().manual_seed(0)
    counts = (min(AT_ONCE, RESAMPLES - n) for n in range(0, RESAMPLES, AT_ONCE))
    resampled = torch.cat([_resampled(changes, count, rng) for count in counts])
    edge = (1 - LEVEL) / 2
    low, high = resampled.quantile(torch.tensor([edge, 1 - edge], dtype=torch.float64)).tolist()
    each = changes.sum(1)
    return Difference(
        mean=float(each.mean()),
        low=low,
        high=high,
        p=_p_value(changes.mean(0), rng),
        better=(int((each > 0).sum()), len(each)),
    )


def _resampled(changes: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """(count,) mean changes of RSum, seeds and images drawn with replacement."""
    seeds, images = changes.shape
    picked = changes[torch.randint(seeds, (count, seeds), generator=rng)].mean(1)
    return picked.gather(1, torch.randint(images, (count, images), generator=rng)).sum(1)


def _p_value(changes: Tensor, rng: torch.Generator) -> float:
    """Share of random sign flips whose sum is at least as far from 0 as the real one."""
    real, changes = changes.sum().abs() - 1e-9, changes[changes != 0]
    extreme = 0
    for start in range(0, FLIPS, AT_ONCE):
        shape = (min(AT_ONCE, FLIPS - start), len(changes))
        signs = torch.randint(2, shape, generator=rng).double() * 2 - 1
        extreme += int(((signs @ changes).abs() >= real).sum())
    return (extreme + 1) / (FLIPS + 1)


def show(ledgers: Sequence[Path], figure: Path | None = None) -> None:
    """Print the table of one or more files of raw results as Markdown, and draw its differences.

    Raises:
        ValueError: a file is missing or damaged, or results do not belong into one table.
    """
    if figure is not None:
        ensure_writable_file(figure)
    entries = [entry for path in ledgers for entry in read(path)]
    rows = lines(entries, first_of(entries))
    console.print(as_markdown(entries, rows), markup=False, highlight=False, soft_wrap=True)
    if figure is not None:
        write_text(figure, figure_svg(rows, first_of(entries)))


def show_tables(tables: Iterable[Table]) -> None:
    """Print all tables, a line each."""
    shown = RichTable("table of experiments", "about")
    for table in tables:
        shown.add_row(table.name, table.about)
    console.print(shown)


def show_plan(table: Table) -> None:
    """Print the experiments of a table by budget, in the order of running."""
    for budget in get_args(Budget):
        tree = Tree(f"[bold]{table.name} --budget {budget}[/bold]  {table.about}")
        for one in table.of(budget):
            branch = tree.add(f"[bold]{one.key}[/bold]")
            methods: dict[str, list[str]] = {}
            for row in one.rows:
                methods.setdefault(f"{row.host}, seed {row.seed}", []).append(_method(row))
            for host, trained in methods.items():
                branch.add(f"{host}: {', '.join(trained)}")
        console.print(tree)


def as_markdown(entries: Sequence[Entry], rows: Sequence[Line]) -> str:
    """A Markdown table with its protocol."""
    head = [
        f"| {' | '.join(HEAD).format(first=first_of(entries))} |",
        f"|{'---|' * len(HEAD)}",
    ]
    body = [f"| {' | '.join(_cells(line))} |" for line in rows]
    return "\n".join([f"{_protocol(entries)}.", "", *head, *body, "", NOTE])


def figure_svg(rows: Sequence[Line], first: str = ONLINE) -> str:
    """Differences of RSum with their intervals, a line of the figure each, as SVG."""
    from matplotlib.figure import Figure

    differences = [(line, line.against) for line in rows if line.against]
    canvas = Figure(figsize=(7.2, 0.9 + 0.32 * len(differences)), layout="constrained")
    axes = canvas.subplots()
    for place, (_, against) in enumerate(differences):
        axes.plot([against.low, against.high], [place, place], color="#4a6fa5", linewidth=2)
        axes.plot(against.mean, place, "o", color="#4a6fa5")
    axes.axvline(0, color="#888888", linewidth=0.8)
    names = [f"{line.host}, {_method(line)}" for line, _ in differences]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"RSum against {first}, 95 % interval")
    axes.spines[["top", "right", "left"]].set_visible(False)
    svg = io.StringIO()
    canvas.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()


def _cells(line: Line) -> list[str]:
    spread = "" if line.deviation is None else f" ± {line.deviation:.1f}"
    numbers = [f"{line.means[metric]:.1f}" for metric in RECALLS]
    cells = [line.host, _method(line), str(len(line.seeds)), *numbers]
    cells.append(f"{line.means[RSUM]:.1f}{spread}")
    if line.against is None:
        return [*cells, "", "", ""]
    a = line.against
    return [
        *cells,
        f"{a.mean:+.1f} ({a.low:+.1f} to {a.high:+.1f})",
        f"{a.p:.3f}" if a.p >= 0.001 else "< 0.001",
        f"{a.better[0]} of {a.better[1]}",
    ]


def _method(row: Line | Row) -> str:
    """A method, with the model behind its lists if that is another one."""
    own = row.lists in ("", row.host)
    return row.method if own else f"{row.method} (lists of {row.lists})"


def _protocol(entries: Sequence[Entry]) -> str:
    protocol = without_models(entries[0].protocol)
    return f"{entries[0].table}, budget {entries[0].budget}: {protocol}"
