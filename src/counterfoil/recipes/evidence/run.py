"""Runs the experiments of a table one after another and keeps what they found."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from counterfoil import __version__, world
from counterfoil.core.console import info
from counterfoil.evaluate.result import METRICS
from counterfoil.files import read_json
from counterfoil.recipes.contents import contents
from counterfoil.recipes.evidence.ledger import Entry, add, bands, read
from counterfoil.recipes.evidence.plan import Experiment, Row, Table
from counterfoil.recipes.measured import Measured
from counterfoil.recipes.recipe import Recipe, digests
from counterfoil.recipes.run import Source, execute
from counterfoil.train.log import read_metrics


def run(
    table: Table,
    budget: str,
    source: Source,
    folder: Path,
    ledger: Path,
    *,
    only: Sequence[str] = (),
    resume: bool = False,
    minutes: float | None = None,
) -> bool:
    """Run what is missing of a table; every finished evaluation goes into the ledger.

    Rows that stand in the ledger are not run again, wherever they were run.

    Args:
        table: what to run.
        budget: how much of it.
        source: on which data.
        folder: of the runs, one folder an experiment.
        ledger: file of raw results, see `counterfoil.recipes.evidence.ledger`.
        only: the experiments whose keys begin with one of these; all when empty.
        resume: go on with experiments that were stopped.
        minutes: stop by itself after this long.

    Returns:
        Whether all were done before the time was up.

    Raises:
        ValueError: as `execute` does, or there is no such budget or experiment.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    todo = table.of(budget, only)
    data = contents(source.open())
    for number, experiment in enumerate(todo, 1):
        left = None if deadline is None else max(0.01, (deadline - time.monotonic()) / 60)
        info(f"{table.name} ({budget}), {number} of {len(todo)}: {experiment.key}")
        named = digests(experiment.recipe, data)
        recipe, place = _missing(experiment, named, ledger), folder / experiment.key
        if recipe is None:
            info(f"{experiment.key}: kept, {ledger}")
            continue
        done = execute(recipe, source, place, resume=resume, minutes=left)
        if world.rank() == 0:
            add(ledger, found(table, budget, experiment, named, place))
        world.wait()
        if not done:
            return False
    return True


def _missing(experiment: Experiment, named: Mapping[str, str], ledger: Path) -> Recipe | None:
    """The stages behind the rows that the ledger does not hold yet; None where it holds all."""
    have = {entry.digest for entry in read(ledger)} if ledger.exists() else set()
    wanted = [row.test for row in experiment.rows if named[row.test] not in have]
    for name in wanted:  # grows by what each stage reads
        wanted += [read for read in experiment.recipe.stage(name).reads if read not in wanted]
    stages = tuple(stage for stage in experiment.recipe.stages if stage.name in wanted)
    return replace(experiment.recipe, stages=stages) if stages else None


def found(
    table: Table, budget: str, experiment: Experiment, named: Mapping[str, str], folder: Path
) -> tuple[Entry, ...]:
    """What is finished of an experiment whose stages have these digests."""
    return tuple(
        _entry(table, budget, row, named[row.test], folder)
        for row in experiment.rows
        if _done(folder, row.test, named[row.test])
    )


def _done(folder: Path, stage: str, digest: str) -> bool:
    note = folder / f"{stage}.json"
    if not note.exists():
        return False
    noted = read_json(note, "the note of a stage")
    return bool(noted.get("state") == "done" and noted.get("digest") == digest)


def _entry(table: Table, budget: str, row: Row, digest: str, folder: Path) -> Entry:
    measured = Measured.open(folder / row.test)
    i2t, t2i = measured.report.ranked
    return Entry(
        table=table.name,
        budget=budget,
        host=row.host,
        method=row.method,
        lists=row.lists,
        seed=row.seed,
        protocol=measured.report.setting.line(),
        digest=digest,
        data=measured.corpus,
        numbers={n: round(v, 4) for n, v in zip(METRICS, measured.report.numbers, strict=True)},
        training=_training([folder / name for name in row.models]),
        versions={"counterfoil": __version__, "torch": torch.__version__},
        images="".join(bands(i2t)),
        texts=" ".join(bands(t2i)),
    )


def _training(folders: Sequence[Path]) -> dict[str, float]:
    """Epochs, the best one, its dev RSum and the seconds; means and sums over several models."""
    logs = [read_metrics(folder / "metrics.jsonl") for folder in folders]
    dev = [[line for line in log if "dev_rsum" in line] for log in logs]
    best = [max(lines, key=lambda line: line["dev_rsum"]) for lines in dev if lines]
    told: dict[str, float] = {}
    if best:
        told["epochs"] = max(float(lines[-1]["epoch"]) for lines in dev if lines)
        told["best_epoch"] = sum(float(line["epoch"]) for line in best) / len(best)
        told["dev_rsum"] = round(sum(float(line["dev_rsum"]) for line in best) / len(best), 4)
    seconds = [max((float(line.get("seconds", 0)) for line in log), default=0.0) for log in logs]
    return told | {"seconds": round(sum(seconds), 1)}
