"""Tables of a report of runs: what training cost, foils, and what was measured otherwise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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

    def plain(self) -> dict[str, Any]:
        """JSON-ready form, null where the log does not tell."""
        told = asdict(self).items()
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in told
        }


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


@final
@dataclass(frozen=True, slots=True)
class FoilAccuracy:
    """An aggregate that ``counterfoil foils`` measured, in percent.

    Attributes:
        set: of foils.
        of: which of its items.
        measure: what was counted.
        model: by name.
        value: the accuracy.
        low: where its 95 % interval begins.
        high: where it ends.
        chance: what guessing reaches.
    """

    set: str
    of: str
    measure: str
    model: str
    value: float
    low: float
    high: float
    chance: float


def foil_accuracies(files: Sequence[Path]) -> list[FoilAccuracy]:
    """What ``counterfoil foils --json`` measured, each aggregate of each file.

    Raises:
        ValueError: a file is missing or none of these.
    """
    found = [one for path in files for one in _foils(path)]
    return sorted(found, key=lambda one: (one.set, one.of, one.measure))


def foil_rows(found: Sequence[FoilAccuracy]) -> Rows:
    """A line for each."""
    head = "set", "items of", "measure", "model", "%", "95 % interval", "chance, %"
    rows = tuple(
        (
            one.set,
            one.of,
            one.measure,
            one.model,
            f"{one.value:.1f}",
            f"{one.low:.1f} to {one.high:.1f}",
            f"{one.chance:.1f}",
        )
        for one in found
    )
    return Rows("Foils", head, rows)


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


def _foils(path: Path) -> list[FoilAccuracy]:
    plain = read_json(path, "what `counterfoil foils --json` wrote")
    try:
        return [
            FoilAccuracy(
                set=str(plain["set"]),
                of=str(line["of"]),
                measure=str(line["measure"]),
                model=str(plain["model"]),
                value=float(line["value"]),
                low=float(line["interval"]["low"]),
                high=float(line["interval"]["high"]),
                chance=float(line["chance"]),
            )
            for line in plain["lines"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} holds no accuracies of foils ({error!r}); name what `counterfoil foils "
            "--json` wrote"
        ) from None
