"""How a table of experiments is shown: in the terminal, as Markdown, as a figure."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from rich import box
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from counterfoil.files import check_file, write_text
from counterfoil.recipes.evidence.catalogue import tables
from counterfoil.recipes.evidence.ledger import Entry, read
from counterfoil.recipes.evidence.plan import Budget, Row
from counterfoil.recipes.evidence.plan import Table as Plan
from counterfoil.recipes.evidence.summary import ONLINE, RECALLS, RSUM, Line, lines, setting
from counterfoil.recipes.show import console

HEAD = ("host", "loss", "seeds", *RECALLS, RSUM, "against {first} (95 %)", "p", "better in")
NOTE = (
    "Mean over seeds; RSum ± standard deviation between seeds. The interval draws seeds and images "
    "with all their captions anew; p exchanges the two methods' answers image by image and says "
    "nothing about other seeds; neither is corrected for the number of rows. Single models, "
    "but where a row says ensemble."
)


def planned(tables: Iterable[Plan]) -> None:
    """All tables, a line each."""
    shown = Table("table of experiments", "about")
    for table in tables:
        shown.add_row(table.name, table.about)
    console.print(shown)


def planned_experiments(table: Plan) -> None:
    """The experiments of a table, those that come first first."""
    for budget in get_args(Budget):
        tree = Tree(f"[bold]{table.name} --budget {budget}[/bold]  {table.about}")
        for one in table.of(budget):
            branch = tree.add(f"[bold]{one.key}[/bold]")
            methods: dict[str, list[str]] = {}
            for row in one.rows:
                methods.setdefault(f"{row.host}, seed {row.seed}", []).append(_named(row))
            for host, trained in methods.items():
                branch.add(f"{host}: {', '.join(trained)}")
        console.print(tree)


def show(ledgers: Sequence[Path], *, markdown: bool = False, figure: Path | None = None) -> None:
    """Print the table of one or more files of raw results, and draw it where asked.

    Raises:
        ValueError: a file is missing or damaged, or results do not belong into one table.
    """
    if figure is not None:
        check_file(figure)
    entries = [entry for path in ledgers for entry in read(path)]
    found = lines(entries, first_of(entries))
    if markdown:
        console.print(as_markdown(entries, found), markup=False, highlight=False, soft_wrap=True)
    else:
        console.print(_terminal(entries, found))
    if figure is not None:
        write_text(figure, drawn(found, first_of(entries)))


def first_of(entries: Sequence[Entry]) -> str:
    """The method that others are compared with, as the table has it."""
    known = {table.name: table.first for table in tables()}
    return known.get(entries[0].table, ONLINE) if entries else ONLINE


def as_markdown(entries: Sequence[Entry], found: Sequence[Line]) -> str:
    """A Markdown table with its protocol."""
    head = [
        f"| {' | '.join(HEAD).format(first=first_of(entries))} |",
        f"|{'---|' * len(HEAD)}",
    ]
    rows = [f"| {' | '.join(_cells(line))} |" for line in found]
    return "\n".join([f"{_protocol(entries)}.", "", *head, *rows, "", NOTE])


def drawn(found: Sequence[Line], first: str = ONLINE) -> str:
    """Differences of RSum with their intervals, a line of the figure each, as SVG."""
    from matplotlib.figure import Figure

    rows = [line for line in found if line.against]
    canvas = Figure(figsize=(7.2, 0.9 + 0.32 * len(rows)), layout="constrained")
    axes = canvas.subplots()
    for place, line in enumerate(rows):
        against = line.against
        assert against is not None
        axes.plot([against.low, against.high], [place, place], color="#4a6fa5", linewidth=2)
        axes.plot(against.mean, place, "o", color="#4a6fa5")
    axes.axvline(0, color="#888888", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [f"{line.host}, {_named(line)}" for line in rows])
    axes.invert_yaxis()
    axes.set_xlabel(f"RSum against {first}, 95 % interval")
    axes.spines[["top", "right", "left"]].set_visible(False)
    written = io.StringIO()
    canvas.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()


def _terminal(entries: Sequence[Entry], found: Sequence[Line]) -> Table:
    """Two lines of 80 letters for each method."""
    first = first_of(entries)
    shown = Table(box=box.SIMPLE_HEAD, caption=Text(f"{_protocol(entries)}. {NOTE}"))
    shown.caption_justify = "left"
    shown.add_column("host\n  loss", no_wrap=True)
    for name in ("seeds", "i2t R@1, 5, 10\nt2i R@1, 5, 10", "RSum", f"against {first}\n(95 %), p"):
        shown.add_column(name, justify="right")
    for line in found:
        _, _, seeds, *numbers, rsum, difference, p, better = _cells(line)
        both = f"{'  '.join(numbers[:3])}\n{'  '.join(numbers[3:])}"
        against = f"{difference}\np {p}, {better}" if line.against else ""
        name = f"{line.host}\n  {_named(line)}"
        shown.add_row(*(Text(cell) for cell in (name, seeds, both, rsum, against)))
    return shown


def _cells(line: Line) -> list[str]:
    spread = "" if line.deviation is None else f" ± {line.deviation:.1f}"
    numbers = [f"{line.means[metric]:.1f}" for metric in RECALLS]
    cells = [line.host, _named(line), str(len(line.seeds)), *numbers]
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


def _named(row: Line | Row) -> str:
    """A method, and whose lists it had if not its own."""
    own = row.lists in ("", row.host)
    return row.method if own else f"{row.method} (lists of {row.lists})"


def _protocol(entries: Sequence[Entry]) -> str:
    return f"{entries[0].table}, budget {entries[0].budget}: {setting(entries[0].protocol)}"
