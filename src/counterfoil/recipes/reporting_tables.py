"""Tables of a report of runs: what training cost, foils, and what was measured otherwise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, final

from counterfoil.evaluate.analysis_page import Rows
from counterfoil.files import read_json
from counterfoil.recipes.analyses.noted import METRICS, Tested
from counterfoil.train.log import read_metrics


@final
@dataclass(frozen=True, slots=True)
class Cost:
    """What a training took.

    Attributes:
        name: of the training.
        steps: that it made.
        epochs: that it went through.
        minutes: over all its sessions.
        memory_mb: the peak.
        pairs_per_second: median of the log.
        mined_minutes: spent on lists of negatives while it went on.
    """

    name: str
    steps: int
    epochs: float
    minutes: float
    memory_mb: float
    pairs_per_second: float
    mined_minutes: float


def cost(name: str, folder: Path) -> Cost:
    """What a training took, by its log; nan where the log does not tell.

    Raises:
        ValueError: the log is missing, or holds something else.
    """
    lines = read_metrics(folder / METRICS)
    try:
        return Cost(
            name,
            steps=int(max((line["step"] for line in lines), default=0)),
            epochs=float(max(_told(lines, "epoch"), default=0.0)),
            minutes=max(_told(lines, "seconds"), default=math.nan) / 60,
            memory_mb=max(_told(lines, "memory_mb"), default=math.nan),
            pairs_per_second=median(_told(lines, "pairs_per_second") or [math.nan]),
            mined_minutes=sum(_told(lines, "mined_seconds")) / 60,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / METRICS} is no log of a training: {error!r}") from error


def costs(found: Sequence[Cost]) -> Rows:
    """A line for each training."""
    rows = tuple(
        (
            one.name,
            f"{one.steps:,}",
            f"{one.epochs:g}",
            _number(one.minutes, ".1f"),
            _number(one.memory_mb / 1024, ".2f"),
            _number(one.pairs_per_second, ",.0f"),
            f"{one.mined_minutes:.1f}" if one.mined_minutes else "–",
        )
        for one in found
    )
    head = "training", "steps", "epochs", "minutes", "peak GB", "pairs a second", "mining, minutes"
    note = (
        "Minutes with all that goes on beside the steps, over all sessions; peak memory of the "
        "GPU where there was one, else of the process; pairs a second: median of the log. Minutes "
        "of different machines, or of a busy one, do not compare."
    )
    return Rows("Cost of training", head, rows, note)


def foil_rows(files: Sequence[Path]) -> Rows:
    """What ``counterfoil foils --json`` measured, a line for each aggregate of each file.

    Raises:
        ValueError: a file is missing or none of these.
    """
    rows = [row for path in files for row in _foils(path)]
    head = "set", "items of", "measure", "model", "%", "95 % interval", "chance, %"
    return Rows("Foils", head, tuple(sorted(rows, key=lambda row: row[:3])))


def apart(found: Sequence[tuple[str, Tested]]) -> Rows:
    """Evaluations that compare with none of the others."""
    rows = tuple(
        (name, f"{test.report.rsum:.1f}", test.report.setting.line()) for name, test in found
    )
    note = "Other data, another split or another protocol: these do not compare with those above."
    return Rows("Measured otherwise", ("run", "RSum", "how"), rows, note)


def _told(lines: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [float(line[key]) for line in lines if key in line]


def _number(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)


def _foils(path: Path) -> list[tuple[str, ...]]:
    plain = read_json(path, "what `counterfoil foils --json` wrote")
    try:
        return [
            (
                plain["set"],
                line["of"],
                line["measure"],
                plain["model"],
                f"{line['value']:.1f}",
                f"{line['interval']['low']:.1f} to {line['interval']['high']:.1f}",
                f"{line['chance']:.1f}",
            )
            for line in plain["lines"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} holds no accuracies of foils ({error!r}); name what `counterfoil foils "
            "--json` wrote"
        ) from None
