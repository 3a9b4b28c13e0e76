"""The table of a run: each arm's measures, and differences with intervals over seeds and images.

A resample draws seeds and, on its own, images with all their captions: both the training and the
test pictures are samples (Davison and Hinkley, "Bootstrap Methods and their Application", 1997,
section 3.8).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
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
Measures = Mapping[str, tuple[str, float]]
# measures of the table: the sum or the mean of both directions
MEASURES: Measures = {
    "dev RSum": ("dev {} RSum", 1.0),
    "test RSum": ("test {} RSum", 1.0),
    "RSum, judged true also right": ("judged {} RSum", 1.0),
    "mAP judged": ("judged {} mAP", 0.5),
    "nDCG judged": ("judged {} nDCG", 0.5),
    "mAP of others": ("judged {} mAP of others", 0.5),
    "AUC of others": ("judged {} AUC of others", 0.5),
}
OWN, OTHERS = "test RSum", "mAP of others"


MARGIN = 1.0  # RSum; a lower bound above minus this is "not worse"
Sign = Literal["more", "less", "level"]


@final
@dataclass(frozen=True, slots=True)
class Claim:
    """A comparison that is declared before its seeds are trained.

    Attributes:
        claim: one sentence.
        arm: the treatment.
        base: what it is compared with, on equal seeds.
        measure: of the table; "" where all claims of a table are of one.
        sign: "more", "less", or "level" for not worse by `MARGIN`.
    """

    claim: str
    arm: str
    base: str
    measure: str = ""
    sign: Sign = "more"

    def to_dict(self) -> dict[str, str]:
        """Plain values for JSON."""
        return {name: value for name, value in asdict(self).items() if value}

    def state(self, spans: Sequence[Sequence[float]]) -> str:
        """What intervals (change, low, high), of all splits that count, say."""
        if self.sign == "less":
            spans = [(-change, -high, -low) for change, low, high in spans]
        limit = -MARGIN if self.sign == "level" else 0.0
        if all(low > limit for _, low, _ in spans):
            return "Confirmed"
        if all(high < limit for _, _, high in spans):
            return "Refuted" if self.sign == "level" else "Refuted, the opposite holds"
        return "Open"


CONTRASTS = (
    Claim(
        "The hardest triplet has the better recall with own captions.", TRIPLET, BASE, OWN, "more"
    ),
    Claim("The hardest triplet ranks captions of others worse.", TRIPLET, BASE, OTHERS, "less"),
    Claim(
        "A mask by captions has the worse recall with own captions.", TEXT_MASK, BASE, OWN, "less"
    ),
    Claim("A mask by captions ranks captions of others better.", TEXT_MASK, BASE, OTHERS, "more"),
    Claim("Own captions put the triplet above the mask.", TRIPLET, TEXT_MASK, OWN, "more"),
    Claim("Captions of others put the triplet below the mask.", TRIPLET, TEXT_MASK, OTHERS, "less"),
    Claim("Mined pairs help InfoNCE.", "mined, no filter", BASE, OWN, "more"),
    Claim("AdapOffQuin after InfoNCE helps.", "AdapOffQuin", BASE, OWN, "more"),
)


Plain = dict[str, Any]
Points = Mapping[int, Mapping[str, Tensor]]  # by seed and measure, (I, 2)


def summary(folder: Path, lines: Sequence[Mapping[str, Any]]) -> Plain:
    """Means, differences from the base and verdicts of a run, JSON-ready.

    Raises:
        ValueError: no confirming seed is there.
    """
    points = read_points(folder, lines)
    if BASE not in points:
        raise ValueError(f"{folder} holds no confirming seed of {BASE!r} yet; run it first")
    confirmed = {line["arm"]: line for line in lines if line["phase"] == "confirm"}
    arms = [
        {"arm": arm} | facts_of(confirmed[arm], points[arm], None if arm == CCA else points[BASE])
        for arm in sorted(points, key=lambda arm: (arm != CCA, arm != BASE))
    ]
    alike, low, high = agreement(points)
    return {
        "arms": arms,
        "contrasts": [_judged(contrast, points) for contrast in CONTRASTS],
        "agreement": {"pairs": alike, "low": low, "high": high},
    }


def table(found: Mapping[str, Any]) -> str:
    """Markdown: the declared comparisons with their verdicts, then all arms."""
    rows = arm_rows(found["arms"], MEASURES)
    verdicts = [f"- {_sentence(contrast)}" for contrast in found["contrasts"]]
    share = found["agreement"]
    order = (
        f"Of all pairs of trained arms, {OWN} and {OTHERS} order {share['pairs']:.0f} % alike "
        f"(95 % interval {share['low']:.0f} to {share['high']:.0f}, over seeds and images; not "
        "declared)."
    )
    rule = f"**Default by the rule**: {default_arm(found)}. {RULE}"
    note = (
        f"Differences are from “{BASE}” on equal seeds, with 95 % intervals over seeds and images "
        f"({RESAMPLES:,} resamples of both), not corrected for the number of rows. RSum: sum of "
        "both directions; the others: mean of both directions, over judged pairs."
    )
    return "\n".join([*verdicts, "", rule, "", order, "", *rows, "", note])


RULE = (
    f"An arm takes the place of {BASE} as the default if it encodes at most twice as many pairs; "
    "if its dev RSum is higher beyond the interval, or not worse and its mAP of others higher "
    "beyond the interval; and if on test its RSum is not worse and its mAP of others not lower "
    f"beyond the interval. Not worse: the lower bound of the interval is above -{MARGIN:g} RSum. "
    "Of several the one with the highest dev RSum."
)


def default_arm(found: Mapping[str, Any]) -> str:
    """The arm that `RULE` makes the default."""
    (base,) = (arm for arm in found["arms"] if arm["arm"] == BASE)
    best, chosen = 0.0, BASE
    for arm in found["arms"]:
        if "differences" not in arm or arm["pairs"] > 2 * base["pairs"]:
            continue
        change, dev, _ = arm["differences"]["dev RSum"]
        _, test, _ = arm["differences"][OWN]
        _, low, high = arm["differences"][OTHERS]
        better = dev > 0 or (dev > -MARGIN and low > 0)
        if better and test > -MARGIN and high >= 0 and (chosen == BASE or change > best):
            best, chosen = change, str(arm["arm"])
    return chosen


def _judged(contrast: Claim, points: Mapping[str, Points]) -> Plain:
    """A declared comparison with what was found."""
    facts = judge(contrast, points, (contrast.measure,), SEEDS)
    if "found" in facts:
        (facts["found"],) = facts["found"]
    return facts


def judge(
    claim: Claim,
    points: Mapping[str, Points],
    shown: Sequence[str],
    seeds: Sized,
    measures: Measures = MEASURES,
) -> Plain:
    """A declared claim with its state, its intervals by the measures shown, and how many seeds."""
    if not (claim.arm in points and claim.base in points):
        return claim.to_dict() | {"state": "Not run yet"}
    arm, base = points[claim.arm], points[claim.base]
    found = [rounded(*difference(arm, base, measure, measures)) for measure in shown]
    run, state = len(set(arm) & set(base)), claim.state(found)
    if run < len(seeds):
        state = f"Open, {run} of {len(seeds)} seeds"
    return claim.to_dict() | {"state": state, "found": found, "seeds": run}


def facts_of(
    line: Mapping[str, Any],
    points: Points,
    base: Points | None,
    measures: Measures = MEASURES,
    shown: Iterable[str] | None = None,
) -> Plain:
    """What a row of the table shows of an arm.

    Args:
        line: of the ledger, of one of its trainings.
        points: of the arm.
        base: what it is compared with; itself or None where it is not.
        measures: how measures are taken from points.
        shown: of these; None for all.
    """
    names = list(measures if shown is None else shown)
    facts: Plain = {key: line[key] for key in ("point", "steps", "pairs")}
    means = {name: round(mean_of(points, name, measures), 3) for name in names}
    facts |= {"seeds": len(points), "means": means}
    if base is not None and base is not points:
        facts["differences"] = {
            name: rounded(*difference(points, base, name, measures)) for name in names
        }
    return facts


def arm_rows(arms: Iterable[Mapping[str, Any]], shown: Collection[str]) -> list[str]:
    """Lines of a Markdown table of arms."""
    rows = []
    for arm in arms:
        first = [arm["arm"], str(arm["seeds"]), f"{arm['steps']:,}", f"{arm['pairs']:,}"]
        rows.append([*first, *measured(arm, shown)])
    return markdown(["arm", "seeds", "steps", "pairs encoded", *shown], rows)


def measured(row: Mapping[str, Any], shown: Iterable[str]) -> list[str]:
    """Cells of a row: differences, or means where it is compared with none."""
    if "differences" in row:
        return [span_text(row["differences"][measure]) for measure in shown]
    return [f"{row['means'][measure]:.2f}" for measure in shown]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def span_text(span: Sequence[float]) -> str:
    """A change with its interval."""
    change, low, high = span
    return f"{change:+.2f} ({low:+.2f} to {high:+.2f})"


def _sentence(contrast: Mapping[str, Any]) -> str:
    start = f"**{contrast['state']}**: {contrast['claim']}"
    if "found" not in contrast:
        return start
    return (
        f"{start} {contrast['measure']} {span_text(contrast['found'])}, "
        f"{contrast['arm']} against {contrast['base']}, {contrast['seeds']} seeds."
    )


def claim_sentence(claim: Mapping[str, Any], shown: Sequence[str]) -> str:
    """A judged claim with its state and, once it was run, an interval under each name `shown`."""
    start = f"**{claim['state']}**: {claim['claim']}"
    if "found" not in claim:
        return start
    spans = ", ".join(f"{name} {span_text(span)}" for name, span in zip(shown, claim["found"]))
    return f"{start} {spans}; {claim['arm']} against {claim['base']}, {claim['seeds']} seeds."


def rounded(change: float, span: Interval) -> list[float]:
    return [round(number, 3) for number in (change, span.low, span.high)]


def read_points(folder: Path, lines: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    found: dict[str, dict[int, Mapping[str, Tensor]]] = {}
    for line in lines:
        if line["phase"] == "confirm":
            path = folder / "points" / f"{line['key']}.safetensors"
            tensors, _ = read_tensors(path, "points of a training")
            plain = {name.replace("_", " "): table.double() for name, table in tensors.items()}
            found.setdefault(line["arm"], {})[line["seed"]] = plain
    return dict(found)


def mean_of(points: Points, measure: str, measures: Measures = MEASURES) -> float:
    name, weight = measures[measure]
    total = 0.0
    for side in ("i2t", "t2i"):
        for tables in points.values():
            table = tables[name.format(side)]
            total += weight * (table[:, 0].sum() / table[:, 1].sum()).item()
    return total / len(points)


def difference(
    arm: Points, base: Points, measure: str, measures: Measures = MEASURES
) -> tuple[float, Interval]:
    """Mean difference on equal seeds, and its interval over seeds and images.

    Raises:
        ValueError: no seed is shared.
    """
    seeds = sorted(set(arm) & set(base))
    if not seeds:
        raise ValueError("two arms share no seed; run both on the same")
    changes = [_sides(one, seeds, measure, measures) for one in (arm, base)]
    mean, sides = 0.0, []
    for (values, counts), (others, _) in zip(*changes, strict=True):
        sides.append((values - others, counts))
        mean += ((values - others).sum() / len(seeds) / counts.sum()).item()
    return mean, percentile_interval(resampled(sides))


def agreement(points: Mapping[str, Points]) -> tuple[float, float, float]:
    """Percent of pairs of trained arms that `OWN` and `OTHERS` order alike, and its interval."""
    arms = {name: by_seed for name, by_seed in points.items() if name != CCA}
    seeds = sorted(set.intersection(*map(set, arms.values())))
    first, second = torch.triu_indices(len(arms), len(arms), 1)
    if not (seeds and len(first)):
        return (torch.nan,) * 3
    alike = []
    for draws in (False, True):
        own, others = (
            torch.stack([resampled(_sides(one, seeds, m), drawn=draws) for one in arms.values()], 1)
            for m in (OWN, OTHERS)
        )
        same = (own[:, first] > own[:, second]) == (others[:, first] > others[:, second])
        alike.append(100 * same.double().mean(1))
    span = percentile_interval(alike[1])
    return round(alike[0].item(), 1), round(span.low, 1), round(span.high, 1)


def _sides(
    points: Points, seeds: Sequence[int], measure: str, measures: Measures = MEASURES
) -> list[tuple[Tensor, Tensor]]:
    """(S, I) weighted sums of each direction, with the (I,) numbers of queries."""
    name, weight = measures[measure]
    found = []
    for side in ("i2t", "t2i"):
        tables = [points[seed][name.format(side)] for seed in seeds]
        found.append((weight * torch.stack([one[:, 0] for one in tables]), tables[0][:, 1]))
    return found


def resampled(sides: Sequence[tuple[Tensor, Tensor]], *, drawn: bool = True) -> Tensor:
    """(R,) sums over the sides, each with other seeds and images; (1,) as they are.

    A side is a direction, or another part that has items of its own: (S, I) points of each seed and
    image, and (I,) the number of its items.
    """
    seeds, images = sides[0][0].shape
    if not drawn:
        return torch.stack([(v.mean(0).sum() / c.sum()).reshape(1) for v, c in sides]).sum(0)
    rng, found = torch.Generator().manual_seed(1), []
    for draw in image_draws(
        [torch.arange(images)], images, resamples=RESAMPLES, seed=0, width=images
    ):
        picks = torch.randint(seeds, (len(draw), seeds), generator=rng)
        share = torch.zeros(len(draw), seeds, dtype=torch.float64)
        share.scatter_add_(1, picks, torch.full(picks.shape, 1 / seeds, dtype=torch.float64))
        parts = [(share @ values * draw).sum(1) / (draw @ counts) for values, counts in sides]
        found.append(torch.stack(parts).sum(0))
    return torch.cat(found)
