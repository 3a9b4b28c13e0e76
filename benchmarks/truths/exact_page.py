"""The table of lists where truth is complete: verdicts on dev and on test, the arms, the lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiments.summary import svg_text
from benchmarks.truths.arms import CCA
from benchmarks.truths.bed import SPLITS
from benchmarks.truths.exact import (
    ADAPTERS,
    AOQ_FALSE,
    AOQ_MINED,
    BASE,
    FALSE,
    FILTERED,
    KINDS,
    MINED,
    TOWERS,
    Study,
    read_facts,
)
from benchmarks.truths.page import Published, shortened
from benchmarks.truths.table import (
    RESAMPLES,
    Claim,
    Points,
    arm_rows,
    claim_sentence,
    facts_of,
    judge,
    markdown,
    read_points,
)

PUBLISHED = {
    ADAPTERS.name: Published("exact-lists"),
    TOWERS.name: Published("exact-lists-towers", on="exact-lists"),
}
OWN, ANY, AT_R, PRECISION, MEAN = "RSum", "RSum, all true right", "mAP@R", "R-precision", "mAP"
# the sum or the mean of both directions, by split
COLUMNS = {
    OWN: ("{} {{}} RSum", 1.0),
    ANY: ("{} true {{}} RSum", 1.0),
    AT_R: ("{} true {{}} mAP@R", 0.5),
    PRECISION: ("{} true {{}} R-precision", 0.5),
    MEAN: ("{} true {{}} mAP", 0.5),
}
MEASURES = {
    f"{split} {name}": (column.format(split), weight)
    for name, (column, weight) in COLUMNS.items()
    for split in SPLITS
}
Plain = dict[str, Any]


def _turned(what: str, arm: str, base: str) -> tuple[Claim, ...]:
    """Worse by the own caption, better by all true ones."""
    return (
        Claim(f"{what} lower RSum.", arm, base, OWN, "less"),
        Claim(f"{what} higher mAP@R.", arm, base, AT_R),
        Claim(f"{what} higher R-precision.", arm, base, PRECISION),
    )


_OF_LISTS = (
    *_turned("Exactly false lists instead of mined ones give a", FALSE, MINED),
    *_turned("Filtered lists instead of mined ones give a", FILTERED, MINED),
    Claim("Mined lists help InfoNCE at equal cost, by RSum.", MINED, BASE, OWN),
    Claim("Mined lists help InfoNCE at equal cost, by mAP@R.", MINED, BASE, AT_R),
    Claim("Exactly false lists help InfoNCE at equal cost, by RSum.", FALSE, BASE, OWN),
    Claim("Exactly false lists help InfoNCE at equal cost, by mAP@R.", FALSE, BASE, AT_R),
)
_OF_QUINTUPLETS = _turned(
    "With AdapOffQuin, exactly false lists instead of mined ones give a", AOQ_FALSE, AOQ_MINED
)
CLAIMS = {ADAPTERS.name: _OF_LISTS, TOWERS.name: (*_OF_LISTS, *_OF_QUINTUPLETS)}


def summary(study: Study, folder: Path, lines: Sequence[Mapping[str, Any]]) -> Plain:
    """Means, differences from the base, verdicts and facts of the lists, JSON-ready.

    Raises:
        ValueError: no confirming seed is there.
    """
    points = read_points(folder, lines)
    if BASE not in points:
        raise ValueError(f"{folder} holds no confirming seed of {BASE!r} yet; run it first")
    known = {line["arm"]: line for line in lines if line["phase"] == "confirm"}
    arms = [
        {"arm": name}
        | facts_of(known[name], points[name], None if name == CCA else points[BASE], MEASURES)
        for name in (CCA, *study.arms)
        if name in points
    ]
    seeds = {str(seed) for seed in study.seeds}
    lists = [facts for seed, facts in read_facts(folder).items() if seed in seeds]
    return {
        "arms": arms,
        "claims": [_judged(claim, points, study.seeds) for claim in CLAIMS[study.name]],
        "lists": {
            kind: {
                name: round(sum(one[kind][name] for one in lists) / len(lists), 4)
                for name in lists[0][kind]
            }
            for kind in KINDS
            if lists
        },
    }


def _judged(claim: Claim, points: Mapping[str, Points], seeds: range) -> Plain:
    """A declared claim with what was found."""
    shown = [f"{split} {claim.measure}" for split in SPLITS]
    return judge(claim, points, shown, seeds, MEASURES)


def table(found: Mapping[str, Any]) -> str:
    """Markdown: the declared claims with their verdicts, all arms, then the lists."""
    parts = [f"- {claim_sentence(claim, SPLITS)}" for claim in found["claims"]]
    for split in SPLITS:
        shown = [f"{split} {name}" for name in COLUMNS]
        parts += ["", *arm_rows(found["arms"], shown)]
    parts += ["", *_lists(found["lists"])]
    note = (
        f"Differences are from “{BASE}” on equal seeds, with 95 % intervals over seeds and images "
        f"({RESAMPLES:,} resamples of both), not corrected for the number of rows. RSum: sum of "
        "both directions; the others: mean of both. RSum counts an image's own captions; all else "
        "counts every true pair. Lists: means over the seeds; the rank is that in the list of the "
        "model before anything is replaced or left out."
    )
    return "\n".join([*parts, "", note])


def _lists(lists: Mapping[str, Mapping[str, float]]) -> list[str]:
    head = ["lists", *(f"{side}: {what}" for side in ("texts", "images") for what in _FACTS)]
    rows = (
        (
            kind,
            *(
                form.format(lists[kind][f"{side} {name}"])
                for side in ("texts", "images")
                for name, form in _FACTS.values()
            ),
        )
        for kind in KINDS
    )
    return markdown(head, rows)


_FACTS = {
    "% true": ("true", "{:.1f}"),
    "mean rank": ("rank", "{:.2f}"),
    "mean score": ("score", "{:.4f}"),
    "empty lists": ("empty", "{:.0f}"),
}


def write_pages(
    study: Study, docs: Path, found: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> None:
    """Write the summary, the trainings, the figure and the table of the page."""
    kept = (shortened(line, MEASURES, MEASURES) for line in lines)
    place = PUBLISHED[study.name]
    place.write(docs, found, kept, table(found), figure_svg(found, place.name))


_COLOURS = ("#4a6fa5", "#b08a4a", "#6a9a5b", "#a5574a", "#7a5ea5", "#5f6b73")


def figure_svg(found: Mapping[str, Any], name: str) -> str:
    """RSum against mAP@R on dev and on test, a point for each arm, with their intervals, as SVG."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(9.6, 4.4), layout="constrained")
    panels = canvas.subplots(1, len(SPLITS))
    shown = [arm for arm in found["arms"] if "differences" in arm]
    for axes, split in zip(panels, SPLITS, strict=True):
        axes.axvline(0, color="#888888", linewidth=0.8)
        axes.axhline(0, color="#888888", linewidth=0.8)
        axes.plot(0, 0, "k*", markersize=9, label=BASE)
        for arm, color in zip(shown, _COLOURS):
            x, *across = arm["differences"][f"{split} {OWN}"]
            y, *up = arm["differences"][f"{split} {AT_R}"]
            axes.plot(across, [y, y], color=color, linewidth=0.9, alpha=0.6)
            axes.plot([x, x], up, color=color, linewidth=0.9, alpha=0.6)
            axes.plot(x, y, "o", color=color, markersize=6, label=arm["arm"])
        axes.set_xlabel(f"{split}: RSum, own captions")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(f"{AT_R}, all true pairs")
    panels[0].set_title(f"differences from {BASE}", fontsize=9, loc="left")
    panels[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return svg_text(canvas, name)
