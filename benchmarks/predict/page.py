"""How well predictions order the arms of ledgers: rank correlations, and the page that shows them.

Kendall's tau-b (Biometrika 33, 1945) over pairs of arms, of all arms of a ledger or of those that
share a batch. Intervals are over seeds, which are drawn anew; predictions stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from benchmarks.pages import put_table, table_place
from benchmarks.predict.plans import LEDGERS, Ledger
from benchmarks.truths.table import markdown
from counterfoil.core.io import parse_json, read_json, write_text
from counterfoil.evaluation.bootstrap import percentile_interval

RESAMPLES, ORDERS = 2000, 10_000  # of seeds; random orders of plans
SPLITS = ("dev", "test")
PAGE, SUMMARY = Path("results/predict.md"), Path("evidence/predict.json")
START, END = "<!-- predict -->", "<!-- end -->"
STEP, PRECISION = "best step", "precision beside own captions"
# what predicts, by name: the measurement and its sign
PREDICTORS = {
    STEP: ("rsum", 1),
    PRECISION: ("precision", 1),
    "hardness": ("hardness", 1),
    "false share, fewer first": ("false_share", -1),
    "effective negatives": ("effective", 1),
    "batch": ("batch", 1),
}
Plain = dict[str, Any]
Plans = Mapping[str, Mapping[str, Mapping[str, float]]]  # measurements by ledger and row


@final
@dataclass(frozen=True)
class Claim:
    """What is declared before the ledgers that nothing was chosen on are looked at.

    Attributes:
        claim: one sentence.
        predictor: of `PREDICTORS`.
        measures: of both splits.
        against: another predictor; "" for random orders.
        within: only pairs of arms that share a batch count.
    """

    claim: str
    predictor: str
    measures: tuple[str, str]
    against: str = ""
    within: bool = True


_RSUM, _MANY = ("dev RSum", "test RSum"), ("dev mAP@R", "test mAP@R")
CLAIMS = (
    Claim("Of plans at one batch, the best step orders RSum better than chance.", STEP, _RSUM),
    Claim("It orders RSum better than the size of the batch does.", STEP, _RSUM, "batch", False),
    Claim(
        "Of plans at one batch, the precision after it orders mAP@R of all true pairs better than "
        "chance.",
        PRECISION,
        _MANY,
    ),
)
RULE = (
    "*Confirmed*: on dev and on test the interval lies above what 97.5 % of random orders reach "
    "(above zero, where two predictors are compared). *Refuted*: on both it lies below. *Open* "
    "otherwise. A prediction comes into `counterfoil diagnose` if the first claim is confirmed."
)


@final
@dataclass(frozen=True, eq=False)
class Pairs:
    """All pairs of arms of a ledger by one measure: which of the two is better.

    Attributes:
        first, second: (P,) arms.
        sign: (1 + R, P) of the difference of their means, as it is and of each resample of seeds.
    """

    first: Tensor
    second: Tensor
    sign: Tensor


def seeds_of(docs: Path, ledger: Ledger) -> dict[str, dict[str, dict[int, float]]]:
    """The numbers of a ledger's rows, by measure and seed."""
    path = docs / "evidence" / f"{ledger.name}.jsonl"
    found: dict[str, dict[str, dict[int, float]]] = {}
    for number, text in enumerate(path.read_text("utf-8").splitlines(), 1):
        line = parse_json(text, f"{path}, line {number}")
        if "setting" in line:
            row = found.setdefault(f"{line['setting']}, {line['method']}", {})
            values = {f"{split} RSum": line["numbers"][split]["RSum"] for split in SPLITS}
        elif line["phase"] == "confirm":
            row = found.setdefault(line["arm"], {})
            sides = [(f"{split} RSum", f"{split} {{}} RSum", 1.0) for split in SPLITS]
            sides += [(f"{s} {n.split('} ')[1]}", n, 0.5) for s, n in ledger.many.items()]
            values = {
                name: weight * sum(line["numbers"][form.format(d)] for d in ("i2t", "t2i"))
                for name, form, weight in sides
            }
        else:
            continue
        for name, value in values.items():
            row.setdefault(name, {})[line["seed"]] = value
    return found


def pairs_of(rows: Sequence[Mapping[int, float]]) -> Pairs:
    """All pairs of arms, given the numbers of each by seed."""
    seeds = sorted({seed for row in rows for seed in row})
    values = torch.tensor([[row.get(s, torch.nan) for s in seeds] for row in rows]).double()
    known = values.isfinite().double()
    rng = torch.Generator().manual_seed(0)
    picks = torch.randint(len(seeds), (RESAMPLES, len(seeds)), generator=rng)
    counts = torch.nn.functional.one_hot(picks, len(seeds)).sum(1).double()
    counts = torch.cat([torch.ones(1, len(seeds)).double(), counts])
    # an arm without any of the seeds that were drawn keeps its mean
    weights = counts.unsqueeze(1) * known
    weights = torch.where(weights.sum(2, keepdim=True) > 0, weights, known)
    means = (weights * values.nan_to_num(0)).sum(2) / weights.sum(2)
    first, second = torch.triu_indices(len(rows), len(rows), 1)
    return Pairs(first, second, (means[:, first] - means[:, second]).sign())


@final
@dataclass(frozen=True, eq=False)
class _Part:
    """What one ledger adds to a correlation."""

    pairs: Pairs
    predicted: Tensor  # (A,)
    batch: Tensor  # (A,)

    def counted(self, *, within: bool) -> Tensor:
        same = self.batch[self.pairs.first] == self.batch[self.pairs.second]
        return same if within else torch.ones_like(same)

    def sums(self, said: Tensor, sign: Tensor, *, within: bool) -> Tensor:
        """(3, R) pairs ordered alike less the others, told apart by the first, and by the second.

        `said` are (R, A) or (A,) predictions, `sign` (R, P) or (1, P) what is so.
        """
        counted = self.counted(within=within)
        order = (said[..., self.pairs.first] - said[..., self.pairs.second]).sign() * counted
        columns = (order * sign), order.abs(), (sign * counted).abs()
        rows = max(len(sign), len(columns[0]))
        return torch.stack([column.sum(-1).expand(rows) for column in columns])


def _ratio(sums: Sequence[Tensor]) -> Tensor:
    agree, said, known = torch.stack([*sums]).sum(0)
    return agree / (said * known).sqrt().clamp(min=1e-9)


def _tau(parts: Sequence[_Part], *, within: bool) -> Tensor:
    """(1 + R,) tau-b over the pairs of all parts; 0 where a predictor ties all."""
    return _ratio([part.sums(part.predicted, part.pairs.sign, within=within) for part in parts])


def _chance(parts: Sequence[_Part]) -> float:
    """What 97.5 % of random orders of the plans of each batch stay below."""
    rng, sums = torch.Generator().manual_seed(1), []
    for part in parts:
        said = torch.rand(ORDERS, len(part.batch), generator=rng).double()
        sums.append(part.sums(said, part.pairs.sign[:1], within=True))
    return float(_ratio(sums).quantile(0.975))


def _parts(
    plans: Plans, numbers: Mapping[str, Any], names: Iterable[str], predictor: str, measure: str
) -> list[_Part]:
    key, sign = PREDICTORS[predictor]
    found = []
    for name in names:
        rows = [row for row in plans[name] if measure in numbers[name].get(row, {})]
        if len(rows) < 2:
            continue
        said = torch.tensor([sign * plans[name][row][key] for row in rows]).double()
        batch = torch.tensor([plans[name][row]["batch"] for row in rows]).double()
        pairs = pairs_of([numbers[name][row][measure] for row in rows])
        found.append(_Part(pairs, said, batch))
    return found


def _span(taus: Tensor) -> list[float]:
    span = percentile_interval(taus[1:])
    return [round(number, 3) for number in (float(taus[0]), span.low, span.high)]


def judge(claim: Claim, plans: Plans, numbers: Mapping[str, Any]) -> Plain:
    """A claim with its state, over all ledgers that nothing was chosen on."""
    fresh = [ledger.name for ledger in LEDGERS if not ledger.chosen and ledger.name in plans]
    found, states = [], set()
    for measure in claim.measures:
        parts = _parts(plans, numbers, fresh, claim.predictor, measure)
        if not parts:
            return {"claim": claim.claim, "state": "Not run yet", "found": []}
        taus, limit = _tau(parts, within=claim.within), 0.0
        if claim.against:
            taus = taus - _tau(
                _parts(plans, numbers, fresh, claim.against, measure), within=claim.within
            )
        else:
            limit = _chance(parts)
        pairs = sum(int(part.counted(within=claim.within).sum()) for part in parts)
        span = _span(taus)
        states.add("Confirmed" if span[1] > limit else "Refuted" if span[2] < limit else "Open")
        found.append({"measure": measure, "tau": span, "limit": round(limit, 3), "pairs": pairs})
    state = states.pop() if len(states) == 1 else "Open"
    have = sum(len(plans.get(ledger.name, {})) for ledger in LEDGERS if not ledger.chosen)
    if have < (wanted := sum(len(ledger.rows) for ledger in LEDGERS if not ledger.chosen)):
        state = f"Open, {have} of {wanted} plans measured"
    return {"claim": claim.claim, "state": state, "found": found}


def summary(docs: Path, plans: Plans) -> Plain:
    """Correlations of every ledger and the verdicts, JSON-ready."""
    known = [ledger for ledger in LEDGERS if ledger.name in plans]
    numbers = {ledger.name: seeds_of(docs, ledger) for ledger in known}
    rows = []
    for ledger in known:
        measures = list(dict.fromkeys(m for row in numbers[ledger.name].values() for m in row))
        for measure in measures:
            for within in (True, False):
                taus = {
                    name: _span(_tau(parts, within=within))
                    for name in PREDICTORS
                    if (parts := _parts(plans, numbers, [ledger.name], name, measure))
                    and not (within and name == "batch")
                }
                count = int(parts[0].counted(within=within).sum())
                rows.append(
                    {"ledger": ledger.name, "chosen": ledger.chosen, "measure": measure}
                    | {"within": within, "pairs": count, "tau": taus}
                )
    picks = [
        pick
        for ledger in known
        for pick in _picks(plans[ledger.name], numbers[ledger.name], ledger.name)
    ]
    claims = [judge(claim, plans, numbers) for claim in CLAIMS]
    return {"plans": plans, "claims": claims, "rows": rows, "picks": picks}


def _picks(
    plans: Mapping[str, Mapping[str, float]], numbers: Mapping[str, Any], name: str
) -> list[Plain]:
    """Of each batch, the plan with the best step, against the first plan and the best one."""
    found = []
    for batch in dict.fromkeys(plan["batch"] for plan in plans.values()):
        rows = [row for row, plan in plans.items() if plan["batch"] == batch]
        if len(rows) < 2:
            continue
        picked = max(rows, key=lambda row: plans[row]["rsum"])
        pick: Plain = {"ledger": name, "batch": int(batch), "plans": len(rows), "picked": picked}
        for split in SPLITS:
            means = {
                row: sum(values.values()) / len(values)
                for row in rows
                for values in [numbers[row][f"{split} RSum"]]
            }
            best = max(means.values())
            pick[split] = [round(means[picked] - other, 2) for other in (means[rows[0]], best)]
        found.append(pick)
    return found


def _text(span: Sequence[float]) -> str:
    value, low, high = span
    return f"{value:+.2f} ({low:+.2f} to {high:+.2f})"


def table(found: Mapping[str, Any]) -> str:
    """Markdown: claims with verdicts, correlations, what would have been picked, and the plans."""
    lines = [f"- {_sentence(claim)}" for claim in found["claims"]]
    lines += ["", RULE, ""]
    rows = []
    for row in found["rows"]:
        if not row["pairs"]:
            continue
        chosen = " (chosen on)" if row["chosen"] else ""
        where = "one batch" if row["within"] else "all"
        cells = [_text(row["tau"][name]) if name in row["tau"] else "" for name in PREDICTORS]
        rows.append([f"{row['ledger']}{chosen}", row["measure"], where, str(row["pairs"]), *cells])
    lines += markdown(["ledger", "measure", "pairs of arms", "number", *PREDICTORS], rows)
    lines += ["", "Kendall's tau-b with 95 % intervals over seeds.", ""]
    rows = [
        [pick["ledger"], str(pick["batch"]), str(pick["plans"]), pick["picked"]]
        + [f"{number:+.1f}" for split in SPLITS for number in pick[split]]
        for pick in found["picks"]
    ]
    head = ["ledger", "batch", "plans", "best step"]
    head += [f"{split} RSum − {other}" for split in SPLITS for other in ("first", "best")]
    lines += markdown(head, rows)
    lines += [
        "",
        "First: the first plan of the batch, which draws nothing. Best: the best plan.",
        "",
    ]
    rows = [
        [name, row] + [f"{plan[key]:.{digits}f}" for key, digits in _SHOWN.items()]
        for name, plans in found["plans"].items()
        for row, plan in plans.items()
    ]
    return "\n".join([*lines, *markdown(["ledger", "plan", *_SHOWN_AS], rows)])


_SHOWN = {"rsum": 1, "precision": 2, "step": 1, "hardness": 2, "false_share": 1, "effective": 1}
_SHOWN_AS = (
    "dev RSum after the best step",
    PRECISION,
    "length of the step",
    "hardness",
    "false share, %",
    "effective negatives",
)


def _sentence(claim: Mapping[str, Any]) -> str:
    if not claim["found"]:
        return f"**{claim['state']}**: {claim['claim']}"
    spans = "; ".join(
        f"{one['measure']}: τ {_text(one['tau'])} over {one['pairs']} pairs, "
        f"limit {one['limit']:+.2f}"
        for one in claim["found"]
    )
    return f"**{claim['state']}**: {claim['claim']} {spans}."


def read_plans(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """What was measured, by ledger and row, in the order of `LEDGERS`.

    Raises:
        ValueError: nothing was.
    """
    found = {
        ledger.name: read_json(path, "measured plans")
        for ledger in LEDGERS
        if (path := folder / f"{ledger.name}.json").exists()
    }
    if not found:
        raise ValueError(f"{folder} holds no measured plans; run `measure` first")
    return found


def shown(text: str) -> tuple[str, str, str]:
    """The text of the page before its table, the table, and the text after it."""
    return table_place(text, START, END)


def write_pages(docs: Path, found: Mapping[str, Any]) -> None:
    """Write the summary and the table of the page."""
    put_table(docs / PAGE, START, END, table(found))
    write_text(docs / SUMMARY, f"{json.dumps(found, indent=1)}\n")
