"""The table of methods of 2024 to 2026: verdicts on dev and on test, then the arms by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.truths.arms import BASE
from benchmarks.truths.bed import SPLITS
from benchmarks.truths.methods import (
    AMBIGUOUS,
    FIVE,
    FOUR,
    HARDER,
    KEPT,
    MEAN,
    MINED,
    REPLACED,
    SEEDS,
    SHARED,
    STUDIES,
    TAUGHT,
)
from benchmarks.truths.page import Published, figure_svg, shortened
from benchmarks.truths.table import (
    MEASURES,
    RESAMPLES,
    Claim,
    arm_rows,
    claim_sentence,
    facts_of,
    judge,
    read_points,
)

PUBLISHED = {
    "methods": Published("methods"),
    "replacing": Published("replacing", on="methods"),
    "listwise": Published("listwise", on="methods"),
}
CLAIMS: Mapping[str, tuple[Claim, ...]] = {
    "methods": (
        Claim("A hardness weight in InfoNCE helps.", HARDER, BASE),
        Claim("Drawing mined negatives by ambiguity (SimANS) helps mined pairs.", AMBIGUOUS, MINED),
        Claim("A shared target helps five captions as positives.", SHARED, FIVE),
        Claim("Filtering below the mean positive helps mined pairs.", MEAN, MINED),
    ),
    "replacing": (
        Claim("Replacing mined negatives that are learnt helps mined pairs.", REPLACED, MINED),
        Claim("One negative each that is kept is worse.", KEPT, REPLACED, sign="less"),
    ),
    "listwise": (Claim("A re-ranker that teaches over lists helps mined pairs.", TAUGHT, FOUR),),
}
_SHOWN = tuple(f"{split} RSum" for split in SPLITS)
Plain = dict[str, Any]


def summary(study: str, folder: Path, lines: Sequence[Mapping[str, Any]]) -> Plain:
    """Means, differences from the base of each group and verdicts, JSON-ready.

    Raises:
        ValueError: no confirming seed of the base is there.
    """
    points = read_points(folder, lines)
    if BASE not in points:
        raise ValueError(f"{folder} holds no confirming seed of {BASE!r} yet; run it first")
    known = {line["arm"]: line for line in lines if line["phase"] == "confirm"}
    arms = [
        {"arm": name} | facts_of(known[name], points[name], points[BASE])
        for group in STUDIES[study]
        for name in group
        if name in points
    ]
    claims = [judge(claim, points, _SHOWN, SEEDS) for claim in CLAIMS[study]]
    return {"arms": arms, "claims": claims}


def table(found: Mapping[str, Any]) -> str:
    """Markdown: the declared claims with their verdicts, then all arms."""
    verdicts = [f"- {claim_sentence(claim, _SHOWN)}" for claim in found["claims"]]
    note = (
        f"Differences are from “{BASE}” on equal seeds, with 95 % intervals over seeds and images "
        f"({RESAMPLES:,} resamples of both), not corrected for the number of rows. RSum: sum of "
        "both directions; the others: mean of both directions, over judged pairs of test."
    )
    return "\n".join([*verdicts, "", *arm_rows(found["arms"], MEASURES), "", note])


def write_pages(
    study: str, docs: Path, found: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> None:
    """Write the summary, the trainings, the figure and the table of the page."""
    kept = (shortened(line, MEASURES) for line in lines)
    published = PUBLISHED[study]
    published.write(docs, found, kept, table(found), figure_svg(found, published.name))
