"""The table of a run: each arm's measures, and differences with intervals over seeds and images.

A resample draws seeds and, on its own, images with all their captions: both the training and the
test pictures are samples (Davison and Hinkley, "Bootstrap Methods and their Application", 1997,
section 3.8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor

from benchmarks.truths.arms import BASE, CCA, TEXT_MASK, TRIPLET
from counterfoil.core.tensors import read_tensors
from counterfoil.evaluation.bootstrap import Interval, image_draws, percentile_interval

RESAMPLES = 2000
SEEDS = range(2, 22)  # confirm; 0 and 1 explored
# measures of the table: the sum or the mean of both directions
MEASURES: Mapping[str, tuple[str, float]] = {
    "dev RSum": ("dev {} RSum", 1.0),
    "test RSum": ("test {} RSum", 1.0),
    "RSum, judged true also right": ("judged {} RSum", 1.0),
    "mAP judged": ("judged {} mAP", 0.5),
    "nDCG judged": ("judged {} nDCG", 0.5),
    "mAP of others": ("judged {} mAP of others", 0.5),
    "AUC of others": ("judged {} AUC of others", 0.5),
}
OWN, OTHERS = "test RSum", "mAP of others"


@final
@dataclass(frozen=True, slots=True)
class Contrast:
    """A comparison that is declared before its seeds are trained.

    Attributes:
        claim: one sentence.
        arm: the treatment.
        base: what it is compared with, on equal seeds.
        measure: one of `MEASURES`.
        sign: "more" or "less".
    """

    claim: str
    arm: str
    base: str
    measure: str
    sign: Literal["more", "less"]

    def to_dict(self) -> dict[str, str]:
        """Plain values for JSON."""
        return asdict(self)


CONTRASTS = (
    Contrast(
        "The hardest triplet has the better recall with own captions.", TRIPLET, BASE, OWN, "more"
    ),
    Contrast("The hardest triplet ranks captions of others worse.", TRIPLET, BASE, OTHERS, "less"),
    Contrast(
        "A mask by captions has the worse recall with own captions.", TEXT_MASK, BASE, OWN, "less"
    ),
    Contrast(
        "A mask by captions ranks captions of others better.", TEXT_MASK, BASE, OTHERS, "more"
    ),
    Contrast("Own captions put the triplet above the mask.", TRIPLET, TEXT_MASK, OWN, "more"),
    Contrast(
        "Captions of others put the triplet below the mask.", TRIPLET, TEXT_MASK, OTHERS, "less"
    ),
    Contrast("Mined pairs help InfoNCE.", "mined, no filter", BASE, OWN, "more"),
    Contrast("AdapOffQuin after InfoNCE helps.", "AdapOffQuin", BASE, OWN, "more"),
)


def table(folder: Path, lines: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: the declared comparisons with their verdicts, then all arms.

    Raises:
        ValueError: no confirming seed is there.
    """
    points = _points(folder, lines)
    if BASE not in points:
        raise ValueError(f"{folder} holds no confirming seed of {BASE!r} yet; run it first")
    costs = {line["arm"]: line for line in lines if line["phase"] == "confirm"}
    head = ["arm", "seeds", "steps", "pairs encoded", *MEASURES]
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for arm in sorted(points, key=lambda arm: (arm != CCA, arm != BASE)):
        line, cells = costs[arm], []
        for measure in MEASURES:
            if arm in (BASE, CCA):
                cells.append(f"{_mean(points[arm], measure):.2f}")
            else:
                change, span = difference(points[arm], points[BASE], measure)
                cells.append(f"{change:+.2f} ({span.low:+.2f} to {span.high:+.2f})")
        first = [arm, str(len(points[arm])), f"{line['steps']:,}", f"{line['pairs']:,}"]
        rows.append(f"| {' | '.join([*first, *cells])} |")
    verdicts = [f"- {verdict(contrast, points)}" for contrast in CONTRASTS]
    note = (
        f"Differences are from “{BASE}” on equal seeds, with 95 % intervals over seeds and images "
        f"({RESAMPLES:,} resamples of both), not corrected for the number of rows. RSum: sum of "
        "both directions; the others: mean of both directions, over judged pairs."
    )
    return "\n".join([*verdicts, "", *rows, "", note])


Points = Mapping[int, Mapping[str, Tensor]]  # by seed and measure, (I, 2)


def _points(folder: Path, lines: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    found: dict[str, dict[int, Mapping[str, Tensor]]] = {}
    for line in lines:
        if line["phase"] == "confirm":
            path = folder / "points" / f"{line['key']}.safetensors"
            tensors, _ = read_tensors(path, "points of a training")
            plain = {name.replace("_", " "): table.double() for name, table in tensors.items()}
            found.setdefault(line["arm"], {})[line["seed"]] = plain
    return dict(found)


def _mean(points: Points, measure: str) -> float:
    name, weight = MEASURES[measure]
    total = 0.0
    for side in ("i2t", "t2i"):
        for tables in points.values():
            table = tables[name.format(side)]
            total += weight * (table[:, 0].sum() / table[:, 1].sum()).item()
    return total / len(points)


def difference(arm: Points, base: Points, measure: str) -> tuple[float, Interval]:
    """Mean difference on equal seeds, and its interval over seeds and images.

    Raises:
        ValueError: no seed is shared.
    """
    seeds = sorted(set(arm) & set(base))
    if not seeds:
        raise ValueError("two arms share no seed; run both on the same")
    name, weight = MEASURES[measure]
    sides, mean = [], 0.0
    for side in ("i2t", "t2i"):
        column = name.format(side)
        changes = torch.stack([arm[s][column][:, 0] - base[s][column][:, 0] for s in seeds])
        counts = base[seeds[0]][column][:, 1]
        sides.append((weight * changes, counts))
        mean += (weight * changes.sum() / len(seeds) / counts.sum()).item()
    images, values = sides[0][0].shape[1], []
    rng = torch.Generator().manual_seed(1)
    for drawn in image_draws(
        [torch.arange(images)], images, resamples=RESAMPLES, seed=0, width=images
    ):
        picks = torch.randint(len(seeds), (len(drawn), len(seeds)), generator=rng)
        share = torch.zeros(len(drawn), len(seeds), dtype=torch.float64)
        share.scatter_add_(1, picks, torch.full(picks.shape, 1 / len(seeds), dtype=torch.float64))
        values.append(
            torch.stack(
                [(share @ some * drawn).sum(1) / (drawn @ counts) for some, counts in sides]
            ).sum(0)
        )
    return mean, percentile_interval(torch.cat(values))


def verdict(contrast: Contrast, points: Mapping[str, Points]) -> str:
    """The declared comparison in a sentence."""
    if not (contrast.arm in points and contrast.base in points):
        return f"**Not run yet**: {contrast.claim}"
    change, span = difference(points[contrast.arm], points[contrast.base], contrast.measure)
    low, high = (span.low, span.high) if contrast.sign == "more" else (-span.high, -span.low)
    state = "Confirmed" if low > 0 else "Refuted, the opposite holds" if high < 0 else "Open"
    seeds = len(set(points[contrast.arm]) & set(points[contrast.base]))
    if seeds < len(SEEDS):
        state = f"Open, {seeds} of {len(SEEDS)} seeds"
    return (
        f"**{state}**: {contrast.claim} {contrast.measure} {change:+.2f} ({span.low:+.2f} to "
        f"{span.high:+.2f}), {contrast.arm} against {contrast.base}, {seeds} seeds."
    )
