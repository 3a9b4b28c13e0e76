"""Ledger, figure and page of a run, for the documentation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiments.summary import svg_text
from benchmarks.truths.arms import BASE
from benchmarks.truths.table import MEASURES, OTHERS, OWN, table
from counterfoil.core.io import write_text

PAGE, FIGURE = Path("results/truths.md"), Path("images/truths.svg")
SUMMARY, TRAININGS = Path("evidence/truths.json"), Path("evidence/truths.jsonl")
START, END = "<!-- truths -->\n", "<!-- end -->"
_COLOURS = ("#4a6fa5", "#b08a4a", "#6a9a5b", "#a5574a", "#7a5ea5", "#5f6b73")
_MARKS = "os^Dv"


def write_pages(docs: Path, found: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> None:
    """Write the summary, the trainings, the figure and the table of the page.

    Raises:
        ValueError: the page has no place for the table.
    """
    text = (docs / PAGE).read_text("utf-8")
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"{docs / PAGE} has no place {START.strip()} … {END} for the table")
    write_text(docs / PAGE, f"{before}{START}{table(found)}\n{END}{after}")
    write_text(docs / SUMMARY, f"{json.dumps(found, indent=1, sort_keys=True)}\n")
    plain = (json.dumps(_training(line), sort_keys=True) for line in lines)
    write_text(docs / TRAININGS, "".join(f"{line}\n" for line in plain))
    write_text(docs / FIGURE, figure_svg(found))


def _training(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the ledger with the numbers that the page shows; of an explored point dev alone."""
    shown = MEASURES if line["phase"] == "confirm" else ("dev RSum",)
    names = [MEASURES[m][0].format(side) for m in shown for side in ("i2t", "t2i")]
    kept = {key: line[key] for key in ("phase", "arm", "point", "seed", "steps", "pairs")}
    return kept | {"numbers": {name: line["numbers"][name] for name in names}}


def figure_svg(found: Mapping[str, Any]) -> str:
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
    return svg_text(canvas, "truths")
