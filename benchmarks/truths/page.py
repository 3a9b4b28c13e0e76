"""Ledger, figure and page of a run, for the documentation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from benchmarks.experiments.summary import svg_text
from benchmarks.pages import put_table, table_place
from benchmarks.truths.arms import BASE
from benchmarks.truths.table import MEASURES, OTHERS, OWN, Measures, table
from counterfoil.core.io import write_text


@final
@dataclass(frozen=True)
class Published:
    """Where a run stands in the documentation, by one name for all of its files.

    Attributes:
        name: of the files, and in the mark above the table.
        on: the page, where it has the name of another run.
    """

    name: str
    on: str = ""

    @property
    def page(self) -> Path:
        """Its text, with a place for the table."""
        return Path(f"results/{self.on or self.name}.md")

    @property
    def figure(self) -> Path:
        """SVG."""
        return Path(f"images/{self.name}.svg")

    @property
    def summary(self) -> Path:
        """What the table shows, as JSON."""
        return Path(f"evidence/{self.name}.json")

    @property
    def trainings(self) -> Path:
        """A line of JSON for each."""
        return Path(f"evidence/{self.name}.jsonl")

    @property
    def start(self) -> str:
        """The line above the table."""
        return f"<!-- {self.name} -->\n"

    def shown(self, text: str) -> tuple[str, str, str]:
        """The text of a page before its table, the table, and the text after it.

        Raises:
            ValueError: the page has no place for one.
        """
        return table_place(text, self.start.strip(), END)

    def write(
        self,
        docs: Path,
        found: Mapping[str, Any],
        lines: Iterable[Mapping[str, Any]],
        table: str,
        figure: str,
    ) -> None:
        """Write the summary, the trainings, the figure and the table of the page.

        Raises:
            ValueError: the page has no place for the table.
        """
        put_table(docs / self.page, self.start.strip(), END, table)
        write_text(docs / self.summary, f"{json.dumps(found, indent=1, sort_keys=True)}\n")
        plain = (json.dumps(line, sort_keys=True) for line in lines)
        write_text(docs / self.trainings, "".join(f"{line}\n" for line in plain))
        write_text(docs / self.figure, figure)


TRUTHS, END = Published("truths"), "<!-- end -->"
_COLOURS = ("#4a6fa5", "#b08a4a", "#6a9a5b", "#a5574a", "#7a5ea5", "#5f6b73")
_MARKS = "os^Dv"


def write_pages(docs: Path, found: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> None:
    """Write the summary, the trainings, the figure and the table of the page."""
    kept = (shortened(line, MEASURES) for line in lines)
    TRUTHS.write(docs, found, kept, table(found), figure_svg(found))


def shortened(
    line: Mapping[str, Any], measures: Iterable[str], columns: Measures = MEASURES
) -> dict[str, Any]:
    """A line of the ledger with the numbers that a page shows; of an explored point dev alone."""
    shown = measures if line["phase"] == "confirm" else ("dev RSum",)
    names = [columns[m][0].format(side) for m in shown for side in ("i2t", "t2i")]
    kept = {key: line[key] for key in ("phase", "arm", "point", "seed", "steps", "pairs")}
    return kept | {"numbers": {name: line["numbers"][name] for name in names}}


def figure_svg(found: Mapping[str, Any], name: str = TRUTHS.name) -> str:
    """RSum on test against mAP of others, a point for each arm, with their intervals, as SVG."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(8.6, 4.6), layout="constrained")
    axes = canvas.subplots()
    axes.axvline(0, color="#888888", linewidth=0.8)
    axes.axhline(0, color="#888888", linewidth=0.8)
    axes.plot(0, 0, "k*", markersize=9, label=BASE)
    shown = [arm for arm in found["arms"] if "differences" in arm]
    for number, arm in enumerate(shown):
        (x, *across), (y, *up) = arm["differences"][OWN], arm["differences"][OTHERS]
        color = _COLOURS[number % len(_COLOURS)]
        axes.plot(across, [y, y], color=color, linewidth=0.9, alpha=0.6)
        axes.plot([x, x], up, color=color, linewidth=0.9, alpha=0.6)
        mark = _MARKS[number % len(_MARKS)]
        axes.plot(x, y, mark, color=color, markersize=6, label=arm["arm"])
    axes.set_xlabel(f"{OWN}, own captions: difference from {BASE}")
    axes.set_ylabel(f"{OTHERS}, judged pairs: difference")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8.5, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return svg_text(canvas, name)
