"""Foil accuracy by every kind alike: the claims, declared before their seeds are trained.

Macro is the mean of the accuracies of all kinds of edit, micro that of all foils. Intervals are
over seeds and images, and a claim is judged by those of dev and of test together.

``python -m benchmarks.experiments.macro measure RUNS --ledger LEDGER`` measures what ``python -m
benchmarks.experiments run macro-foils --folder RUNS`` has trained; ``page docs/`` writes the table
of the published ledger into its page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from benchmarks import refused
from benchmarks.experiments import tags
from benchmarks.experiments.catalogue import find
from benchmarks.experiments.foils import FoilAccuracy
from benchmarks.experiments.ledger import SPLITS, is_done
from benchmarks.experiments.summary import svg_text
from benchmarks.experiments.table import Experiment, Row
from benchmarks.experiments.tags import FRESH, MODELS, OWN, RULES, SCENES, WRITTEN, method
from benchmarks.pages import put_table
from benchmarks.truths.table import (
    RESAMPLES,
    Claim,
    claim_sentence,
    markdown,
    resampled,
    rounded,
    span_text,
)
from counterfoil.core.io import parse_json, write_text
from counterfoil.evaluation.bootstrap import percentile_interval
from counterfoil.evaluation.metrics import RECALLS, EvaluationReport
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.recipes.base import MARGIN

KINDS = ("colour", "number", "object", "pattern", "relation", "size", "swap")
RULE_FOILS, TAGS_FOILS = method(RULES, MARGIN), method(WRITTEN, MARGIN)
MICRO, MACRO, OTHERS, NUMBER, RSUM = "micro", "macro", "macro without number", "number", "RSum"
# columns of points by measure, with their weights; "all" sums the kinds
MEASURES: Mapping[str, Mapping[str, float]] = {
    MACRO: dict.fromkeys(KINDS, 100 / len(KINDS)),
    MICRO: {"all": 100.0},
    OTHERS: {kind: 100 / (len(KINDS) - 1) for kind in KINDS if kind != NUMBER},
    **{kind: {kind: 100.0} for kind in KINDS},
    RSUM: {"i2t": 100.0, "t2i": 100.0},
}
PAGE = Path("results/tags.md")
LEDGER = Path(f"evidence/{tags.MACRO}.jsonl")
FIGURE = Path(f"images/{tags.MACRO}.svg")
BEGIN, END = f"<!-- {tags.MACRO} -->", "<!-- end -->"
ITEMS = "items"  # line of a ledger: what the points of the others are a share of
READER = "n-grams of captions, no picture"
DIGITS = "0123456789abcdef"  # a character an image; none has more foils of a kind, or recalls
Points = Mapping[str, Tensor]  # (I, 2) sums of each image and numbers of items, by "test colour"
Trained = Mapping[tuple[str, str], Mapping[int, Points]]  # by model and method, by seed
Plain = dict[str, Any]


@final
@dataclass(frozen=True)
class Declared:
    """A claim about one model.

    Attributes:
        model: its title.
        claim: of its rows.
    """

    model: str
    claim: Claim


def _of(model: str) -> tuple[Claim, ...]:
    """What seeds 2 to 9 suggested or left open, of a model; the last ones hold of any."""
    limit = f"any gain of {model} by rule foils is below one point"
    return (
        Claim(f"Foils by rule teach {model} more than its own loss.", RULE_FOILS, OWN, MACRO),
        Claim(
            f"Foils of TAGS teach {model} less than those by rule.",
            TAGS_FOILS,
            RULE_FOILS,
            MACRO,
            "less",
        ),
        Claim(f"Foils by rule teach {model} number.", RULE_FOILS, OWN, NUMBER),
        Claim(f"Without number, {limit}.", OWN, RULE_FOILS, OTHERS, "level"),
        Claim(f"By the micro-average, {limit}.", OWN, RULE_FOILS, MICRO, "level"),
        Claim(f"Foils by rule cost {model} recall.", RULE_FOILS, OWN, RSUM, "less"),
    )


CLAIMS = tuple(
    Declared(model, claim) for model in reversed(MODELS.values()) for claim in _of(model)
)


# --- points and their ledger --------------------------------------------------------------------


def measure(runs: Path, ledger: Path, source: str) -> None:
    """Add the points of all trainings that are done and not in the ledger yet.

    Raises:
        ValueError: no training is done.
    """
    table, foils = find(tags.MACRO), FoilAccuracy(source)
    todo = [
        (one, row) for one in table.of("cpu") for row in one.rows if is_done(runs / one.key, row)
    ]
    if not todo:
        raise ValueError(f"{runs} holds no training of {table.name} that is done; run it first")
    lines = ledger.read_text("utf-8").splitlines() if ledger.exists() else []
    known = [parse_json(line, f"{ledger}") for line in lines]
    have = {(line["model"], line["method"], line["seed"]) for line in known}
    for experiment, row in todo:
        if (row.model, row.method, row.seed) in have:
            continue
        points = _points(foils, experiment, row, runs)
        if not lines:
            blind = {f"{s} {k}": t for s in SPLITS for k, t in foils.by_image(s, None).items()}
            lines += [_line("", ITEMS, 0, points, 1), _line("", READER, 0, blind)]
        lines.append(_line(row.model, row.method, row.seed, points))
        ledger.parent.mkdir(parents=True, exist_ok=True)
        write_text(ledger, "".join(f"{line}\n" for line in lines))
        print(f"{row.model}, {row.method}, seed {row.seed}", flush=True)


def _points(foils: FoilAccuracy, experiment: Experiment, row: Row, runs: Path) -> Points:
    """Points of one training."""
    folder, (trained,) = runs / experiment.key, row.trained
    found: dict[str, Tensor] = {}
    for split in SPLITS:
        columns = foils.by_image(split, folder / trained)
        report = RetrievalEvaluation.open(folder / f"{split}-{row.name}").report
        found |= {f"{split} {name}": t for name, t in (columns | recalls(report)).items()}
    return found


def recalls(report: EvaluationReport) -> dict[str, Tensor]:
    """(I, 2) hits of each image's queries that RSum counts, and its queries, by direction."""
    found = {}
    for ranked in report.ranked:
        values = [metric.values(ranked) for metric in RECALLS.values() if metric.in_rsum]
        hits = torch.stack(values).sum(0) / 100
        table = torch.zeros(report.setting.images, 2, dtype=torch.float64)
        points = torch.stack([hits, torch.ones_like(hits)], 1)
        found[ranked.direction] = table.index_add_(0, ranked.images, points)
    return found


def _line(model: str, method: str, seed: int, points: Points, column: int = 0) -> str:
    text = {name: digits(table[:, column]) for name, table in points.items()}
    return json.dumps({"model": model, "method": method, "seed": seed, "points": text})


def digits(counts: Tensor) -> str:
    """(I,) whole numbers below 16 as text.

    >>> digits(torch.tensor([3.0, 0.0, 15.0]))
    '30f'
    """
    return "".join(DIGITS[int(count)] for count in counts.round())


def read(ledger: Path) -> Trained:
    """The points of a ledger, by model and method and by seed.

    Raises:
        ValueError: it is missing, or its first line is not that of the items.
    """
    if not ledger.exists():
        raise ValueError(f"{ledger} does not exist; measure a run first")
    lines = [parse_json(line, f"{ledger}") for line in ledger.read_text("utf-8").splitlines()]
    if not lines or lines[0].get("method") != ITEMS:
        raise ValueError(f"{ledger} is no ledger of {tags.MACRO}; measure a run into a new file")
    items, found = _counts(lines[0]), dict[tuple[str, str], dict[int, Points]]()
    for line in lines[1:]:
        points = {name: torch.stack([g, items[name]], 1) for name, g in _counts(line).items()}
        for split in SPLITS:
            kinds = [points[f"{split} {kind}"] for kind in KINDS]
            points[f"{split} all"] = torch.stack(kinds).sum(0)
        found.setdefault((line["model"], line["method"]), {})[line["seed"]] = points
    return found


def _counts(line: Mapping[str, Any]) -> dict[str, Tensor]:
    """(I,) double by column."""
    return {
        name: torch.tensor([DIGITS.index(digit) for digit in text], dtype=torch.float64)
        for name, text in line["points"].items()
    }


# --- the table ----------------------------------------------------------------------------------


def mean_of(
    trainings: Mapping[int, Points],
    split: str,
    measure: str,
    measures: Mapping[str, Mapping[str, float]] = MEASURES,
) -> float:
    """Mean over seeds of a measure of a split."""
    sides = _sides(trainings, sorted(trainings), split, measures[measure])
    return resampled(sides, drawn=False).item()


def difference(
    arm: Mapping[int, Points],
    base: Mapping[int, Points],
    split: str,
    measure: str,
    measures: Mapping[str, Mapping[str, float]] = MEASURES,
) -> list[float]:
    """Mean difference on equal seeds, and the ends of its interval over seeds and images."""
    seeds = sorted(set(arm) & set(base))
    both = (_sides(one, seeds, split, measures[measure]) for one in (arm, base))
    sides = [(one - other, items) for (one, items), (other, _) in zip(*both, strict=True)]
    return rounded(resampled(sides, drawn=False).item(), percentile_interval(resampled(sides)))


def _sides(
    trainings: Mapping[int, Points],
    seeds: Sequence[int],
    split: str,
    columns: Mapping[str, float],
) -> list[tuple[Tensor, Tensor]]:
    """(S, I) weighted points of each column of a measure, with the (I,) numbers of items."""
    found = []
    for column, weight in columns.items():
        tables = torch.stack([trainings[seed][f"{split} {column}"] for seed in seeds])
        found.append((weight * tables[:, :, 0], tables[0, :, 1]))
    return found


def judge(declared: Declared, trained: Trained) -> Plain:
    """A declared claim with its state, the intervals of dev and test, and how many seeds."""
    claim = declared.claim
    arm, base = (trained.get((declared.model, name), {}) for name in (claim.arm, claim.base))
    facts: Plain = {"model": declared.model} | claim.to_dict()
    run = len(set(arm) & set(base) & set(FRESH))
    if not run:
        return facts | {"state": "Not run yet"}
    found = [difference(arm, base, split, claim.measure) for split in SPLITS]
    state = claim.state(found) if run == len(FRESH) else f"Open, {run} of {len(FRESH)} seeds"
    return facts | {"state": state, "found": found, "seeds": run}


def as_markdown(trained: Trained) -> str:
    """The declared claims with their verdicts, then a table of each split."""
    parts, (first, *others) = list[str](), SPLITS
    for declared in CLAIMS:
        shown = f"{declared.claim.measure} {first}", *others
        parts.append(f"- {claim_sentence(judge(declared, trained), shown)}")
    for split in SPLITS:
        rows = [_cells(trained, model, name, split) for model, name in _order(trained)]
        parts += ["", *markdown(["model", f"method, {split}", "seeds", *MEASURES], rows)]
    note = (
        f"Rows of foils are differences from “{OWN}” on equal seeds, with 95 % intervals over "
        f"seeds and images ({RESAMPLES:,} resamples of both), not corrected for the number of "
        "columns. In percent: *macro* is the mean over the seven kinds, *macro without number* "
        "over the six others, *micro* over all foils. Declared are the sentences above the tables "
        "alone."
    )
    return "\n".join([*parts, "", note])


def _order(trained: Trained) -> list[tuple[str, str]]:
    """Rows, those of a model together, its own loss first; reading alone at the end."""
    methods = (OWN, RULE_FOILS, TAGS_FOILS)
    rows = [(model, name) for model in reversed(MODELS.values()) for name in methods]
    return [row for row in (*rows, ("", READER)) if row in trained]


def _cells(trained: Trained, model: str, name: str, split: str) -> list[str]:
    rows, base = trained[model, name], trained.get((model, OWN), {})
    if name in (OWN, READER):
        shown = [m for m in MEASURES if model or m != RSUM]  # one that sees no picture finds none
        means = [f"{mean_of(rows, split, m):.2f}" for m in shown]
        return [model, name, str(len(rows)) if model else "", *means, *([] if model else [""])]
    changes = [span_text(difference(rows, base, split, m)) for m in MEASURES]
    return [model, name, str(len(set(rows) & set(base))), *changes]


def figure_svg(trained: Trained) -> str:
    """Differences of rule foils from the own loss by measure, on dev and on test, as SVG."""
    from matplotlib.figure import Figure

    shown = [m for m in MEASURES if m != RSUM]
    models = [m for m in reversed(MODELS.values()) if (m, RULE_FOILS) in trained]
    canvas = Figure(figsize=(4.2 * len(models) + 1.6, 3.8), layout="constrained")
    for column, model in enumerate(models):
        axes = canvas.add_subplot(1, len(models), column + 1)
        arm, base = trained[model, RULE_FOILS], trained[model, OWN]
        for split, shift, color in (("dev", -0.14, "#b08a4a"), ("test", 0.14, "#4a6fa5")):
            for place, name in enumerate(shown):
                change, *ends = difference(arm, base, split, name)
                at, label = place + shift, None if place else split
                axes.plot(ends, [at, at], color=color, linewidth=2)
                axes.plot(change, at, "o", color=color, markersize=4, label=label)
        axes.axvline(0, color="#888888", linewidth=0.8)
        axes.set_title(model, fontsize=9, loc="left")
        axes.set_xscale("symlog", linthresh=2)  # number gains ten times what the others do
        ticks = (-10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50)
        axes.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks], fontsize=8)
        axes.set_xlim(-12, 80)
        axes.set_xlabel(f"{RULE_FOILS}: points above {OWN}", fontsize=8)
        axes.set_yticks(range(len(shown)), [] if column else shown)
        axes.invert_yaxis()
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    return svg_text(canvas, tags.MACRO)


def write_page(docs: Path) -> None:
    """Write the table of the published ledger into its page, and the figure.

    Raises:
        ValueError: there is no ledger, or the page has no place for a table.
    """
    trained = read(docs / LEDGER)
    put_table(docs / PAGE, BEGIN, END, as_markdown(trained))
    write_text(docs / FIGURE, figure_svg(trained))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or publish; 0 when all went well, 2 when the input was at fault."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.experiments.macro", description=__doc__
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    go = verbs.add_parser("measure", help="add the points of trainings to a ledger")
    go.add_argument("runs", type=Path, help="folder of the run")
    go.add_argument("--data", default=SCENES, help="as the run had it")
    go.add_argument("--ledger", type=Path, required=True, help="JSONL")
    page = verbs.add_parser("page", help="write the table of the published ledger into its page")
    page.add_argument("docs", type=Path, nargs="?", default=Path("docs"))
    given = parser.parse_args(arguments)
    try:
        if given.verb == "measure":
            measure(given.runs, given.ledger, given.data)
        else:
            write_page(given.docs)
    except (ValueError, OSError) as error:
        return refused(error)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
