"""The table of equal cost: differences from InfoNCE at the same batch, and the declared claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiments.summary import svg_text
from benchmarks.truths.arms import CCA
from benchmarks.truths.cost import (
    BASE,
    BATCHES,
    ENSEMBLES,
    FILTERED,
    LONG,
    MINED,
    NDGL,
    QUINTUPLET,
    ROWS,
    SEEDS,
    SOUPS,
    TAUGHT,
    TRIPLET,
    row,
)
from benchmarks.truths.page import Published, shortened
from benchmarks.truths.table import (
    MARGIN,
    OTHERS,
    OWN,
    RESAMPLES,
    Claim,
    Points,
    Sign,
    facts_of,
    judge,
    markdown,
    measured,
    read_points,
    span_text,
)

PUBLISHED = Published("equal-cost")
DEV = "dev RSum"
SPLITS = (DEV, OWN)
MEASURES = (DEV, OWN, "RSum, judged true also right", OTHERS)


def _at_each(claim: str, arm: str, base: str, sign: Sign = "more") -> tuple[Claim, ...]:
    return tuple(
        Claim(claim.format(batch), row(arm, batch), row(base, batch), sign=sign)
        for batch in BATCHES
    )


CLAIMS = (
    *_at_each("At batch {}, mined pairs pay.", MINED, BASE),
    Claim("At batch 8, AdapOffQuin pays.", row(QUINTUPLET, 8), row(BASE, 8)),
    Claim("Mined pairs at batch 8 are level with a batch of 512.", row(MINED, 8), row(BASE, 512),
          sign="level"),
    *_at_each("At batch {}, two models gain.", ENSEMBLES[2], BASE),
    *_at_each("At batch {}, one distilled from two keeps it.", TAUGHT[2], ENSEMBLES[2], "level"),
    *_at_each("At batch {}, the average of two's weights keeps it.", SOUPS[2], ENSEMBLES[2],
              "level"),
    *_at_each("At batch {}, one distilled from four beats a longer training.", TAUGHT[4], LONG),
    Claim("At batch 512, NDGL beats a longer training.", row(NDGL, 512), row(LONG, 512)),
)  # fmt: skip
Plain = dict[str, Any]


def summary(folder: Path, lines: Sequence[Mapping[str, Any]]) -> Plain:
    """Means, differences from the base of the batch and verdicts, JSON-ready.

    Raises:
        ValueError: no confirming seed is there.
    """
    points = read_points(folder, lines)
    if not points.keys() & {row(BASE, batch) for batch in BATCHES}:
        raise ValueError(f"{folder} holds no confirming seed of {BASE!r} yet; run it first")
    known = {line["arm"]: line for line in lines if line["phase"] == "confirm"}
    rows = [_row(CCA, 0, CCA, points, known)] if CCA in points else []
    for batch in BATCHES:
        if row(BASE, batch) not in points:
            continue
        names = [(arm, row(arm, batch)) for arm in (BASE, *ROWS[:1], *ROWS[2:])]
        rows += [_row(arm, batch, name, points, known) for arm, name in names if name in points]
    return {"rows": rows, "claims": [_judged(claim, points) for claim in CLAIMS]}


def _row(
    arm: str,
    batch: int,
    name: str,
    points: Mapping[str, Points],
    known: Mapping[str, Mapping[str, Any]],
) -> Plain:
    base = None if arm == CCA else points[row(BASE, batch)]
    facts = facts_of(known[name], points[name], base, shown=MEASURES)
    return {"arm": arm, "batch": batch} | facts


def _judged(claim: Claim, points: Mapping[str, Points]) -> Plain:
    """A declared claim with what was found, by split."""
    facts = judge(claim, points, SPLITS, SEEDS)
    if "found" in facts:
        facts["found"] = dict(zip(SPLITS, facts["found"], strict=True))
    return facts


def table(found: Mapping[str, Any]) -> str:
    """Markdown: the declared claims with their verdicts, then all rows."""
    head = ["batch", "arm", "steps", "pairs encoded", *MEASURES]
    cells = []
    for one in found["rows"]:
        arm = f"*{one['arm']}*" if one["arm"] in ENSEMBLES.values() else one["arm"]
        first = [str(one["batch"] or ""), arm, f"{one['steps']:,}", f"{one['pairs']:,}"]
        cells.append([*first, *measured(one, MEASURES)])
    rows = markdown(head, cells)
    verdicts = [f"- {_sentence(claim)}" for claim in found["claims"] if "found" in claim]
    if missing := [claim["claim"] for claim in found["claims"] if "found" not in claim]:
        verdicts.append(f"- **Not run yet**: {' '.join(missing)}")
    note = (
        f"{len(SEEDS)} seeds, CCA one. Differences are from “{BASE}” at the same batch on equal "
        f"seeds, with 95 % intervals over seeds and images ({RESAMPLES:,} resamples of both), not "
        "corrected for the number of rows. RSum: sum of both directions; mAP: mean of both. In "
        "italics: more than one model is asked."
    )
    return "\n".join([*verdicts, "", *rows, "", note])


def _sentence(claim: Mapping[str, Any]) -> str:
    start = f"**{claim['state']}**: {claim['claim']}"
    spans = ", ".join(f"{measure} {span_text(claim['found'][measure])}" for measure in SPLITS)
    limit = f" (level: above -{MARGIN:g})" if claim["sign"] == "level" else ""
    return f"{start} {spans}{limit}; {claim['arm']} against {claim['base']}."


def write_pages(docs: Path, found: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> None:
    """Write the summary, the trainings, the figure and the table of the page."""
    kept = (shortened(line, MEASURES) for line in lines)
    PUBLISHED.write(docs, found, kept, table(found), figure_svg(found))


_LEFT, _RIGHT = (
    (TRIPLET, MINED, FILTERED, QUINTUPLET),
    (
        NDGL,
        *TAUGHT.values(),
        *SOUPS.values(),
        *ENSEMBLES.values(),
        LONG,
    ),
)
_COLOURS = ("#4a6fa5", "#b08a4a", "#6a9a5b", "#a5574a", "#7a5ea5", "#5f6b73", "#3f8f8f", "#c08497")


def figure_svg(found: Mapping[str, Any]) -> str:
    """Differences from InfoNCE against the size of the batch, an arm a line, as SVG."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(9.6, 6.6), layout="constrained")
    panels = canvas.subplots(2, 2, sharex=True)
    for up, measure in enumerate(SPLITS):
        for across, arms in enumerate((_LEFT, _RIGHT)):
            axes = panels[up][across]
            axes.axhline(0, color="#888888", linewidth=0.8)
            for number, arm in enumerate(arms):
                _line(axes, found, measure, arm, number - len(arms) / 2, _COLOURS[number])
            axes.set_xscale("log", base=2)
            axes.set_xlim(BATCHES[0] / 1.5, BATCHES[-1] * 1.5)
            axes.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
            axes.spines[["top", "right"]].set_visible(False)
            if up == 0:
                axes.legend(frameon=False, fontsize=7.5, ncols=2)
            else:
                axes.set_xlabel("batch")
        panels[up][0].set_ylabel(f"{measure}: difference from\n{BASE}")
    return svg_text(canvas, PUBLISHED.name)


def _line(
    axes: Any, found: Mapping[str, Any], measure: str, arm: str, shift: float, color: str
) -> None:
    """One arm, moved sideways so that intervals do not cover each other."""
    rows = [one for one in found["rows"] if one["arm"] == arm and "differences" in one]
    if not rows:
        return
    spans = [one["differences"][measure] for one in rows]
    places = [one["batch"] * 2 ** (shift / 12) for one in rows]
    below = [change - low for change, low, _ in spans]
    above = [high - change for change, _, high in spans]
    axes.errorbar(
        places,
        [change for change, _, _ in spans],
        yerr=[below, above],
        color=color,
        marker="o",
        markersize=3.5,
        linewidth=1.2,
        elinewidth=0.8,
        label=arm,
    )
