"""Results of experiments as lines of JSON, and the run that adds what is missing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

import torch
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from benchmarks.experiments.cca import write_cca_vectors
from benchmarks.experiments.foils import FOILS, FoilAccuracy
from benchmarks.experiments.table import Row, Table
from counterfoil import __version__
from counterfoil.core import distributed
from counterfoil.core.console import output
from counterfoil.core.io import ensure_writable_file, read_json, write_lock, write_text
from counterfoil.evaluation.metrics import METRICS, without_models
from counterfoil.pipelines.pipeline import Recipe, Stage, data_contents, stage_digests
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.training.logging import read_metrics

SPLITS = ("dev", "test")


@final
class Entry(BaseModel):
    """One training of one seed, measured on both splits.

    Attributes:
        table: as in "aoq-batch".
        budget: as in "cpu".
        model: title of the model.
        setting: what several methods are compared under, as in "batch 8".
        method: how it was trained.
        seed: of the training.
        protocol: the evaluation on test in one sentence.
        digest: of everything that the evaluation on test depends on.
        data: fingerprint of the data set.
        numbers: metrics by split and name.
        training: from the training log, by name: epochs, seconds.
        versions: of counterfoil and torch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    table: str
    budget: str
    model: str
    setting: str = ""
    method: str
    seed: int
    protocol: str
    digest: str
    data: str
    numbers: dict[str, dict[str, float]]
    training: dict[str, float] = {}
    versions: dict[str, str] = {}

    @field_validator("protocol")
    @classmethod
    def _without_digest(cls, protocol: str) -> str:
        """Drop the digest from the folder name of CCA vectors: `data` holds it."""
        return re.sub(r"^vectors-[0-9a-f]{16} ", "vectors ", protocol)

    @property
    def place(self) -> tuple[str, str, str, str, str, int]:
        """Key of the row; a later entry with the same key replaces an earlier one."""
        return self.table, self.budget, self.model, self.setting, self.method, self.seed


def read(path: Path) -> tuple[Entry, ...]:
    """All entries of a file, the newest of each row.

    Raises:
        ValueError: there is no such file, or a line in it is no entry.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; an experiment writes it with --ledger") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as text: {error}") from error
    entries: dict[object, Entry] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            entry = _parsed(line, f"{path}, line {number}")
            entries[entry.place] = entry
    return tuple(entries.values())


def add(path: Path, entries: Iterable[Entry]) -> None:
    """Put entries into a file, in place of older ones of the same row.

    Several runs may do so at once: the file is read and replaced under a lock.

    Raises:
        ValueError: the file is no ledger.
    """
    ensure_writable_file(path, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_lock(path.with_name(f".{path.name}.lock"), path, wait=True):
        known = {entry.place: entry for entry in (read(path) if path.exists() else ())}
        known |= {entry.place: entry for entry in entries}
        lines = [json.dumps(entry.model_dump(mode="json")) for entry in known.values()]
        write_text(path, "".join(f"{line}\n" for line in lines))


def _parsed(line: str, where: str) -> Entry:
    try:
        return Entry.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the line"
        raise ValueError(
            f"{where}: {field}: {first['msg'].lower()}; it is no result of an experiment, so take "
            "the line out or name another file"
        ) from None


def run(
    table: Table,
    budget: str,
    source: DataSource,
    folder: Path,
    ledger: Path,
    *,
    only: Sequence[str] = (),
    resume: bool = False,
    minutes: float | None = None,
) -> bool:
    """Run the missing experiments of a table; every finished evaluation goes into the ledger.

    Rows that stand in the ledger are not run again, wherever they were run.

    Args:
        table: the experiments.
        budget: the settings.
        source: the data.
        folder: of the runs, one folder an experiment.
        ledger: file of raw results.
        only: the experiments whose keys begin with one of these; all when empty.
        resume: go on with experiments that were stopped.
        minutes: stop after this long.

    Returns:
        Whether all were done before the time was up.

    Raises:
        ValueError: as `execute` does, or there is no such budget or experiment.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    experiments = table.of(budget, only)
    # rows of declared contrasts first, for all seeds, then the others
    first = [(one, tuple(filter(table.declares, one.rows))) for one in experiments]
    todo = [(one, rows) for one, rows in first if rows]
    todo += [(one, one.rows) for one, rows in first if rows != one.rows]
    contents = data_contents(source.open())
    vectors = folder.parent / f"vectors-{contents}"  # tables share them
    opened = _with_vectors(source, vectors) if table.vectors else source
    foils = FoilAccuracy(source.data) if FOILS in table.metrics else None
    for number, (experiment, rows) in enumerate(todo, 1):
        left = None if deadline is None else max(0.01, (deadline - time.monotonic()) / 60)
        output(f"{table.name} ({budget}), {number} of {len(todo)}: {experiment.key}")
        names = stage_digests(experiment.recipe, contents)
        recipe, place = _missing(experiment.recipe, rows, names, ledger), folder / experiment.key
        if recipe is None:
            output(f"{experiment.key}: in {ledger}")
            continue
        done = run_pipeline(recipe, opened, place, resume=resume, minutes=left)
        if distributed.rank() == 0:
            have = _digests(ledger)
            for row in rows:
                digest = names[_test(row)]
                if digest not in have and is_done(place, row):
                    add(ledger, [_entry(table, budget, row, digest, place, foils)])
        distributed.barrier()
        if not done:
            return False
    return True


def _with_vectors(source: DataSource, folder: Path) -> DataSource:
    """The CCA vectors of a data set, computed once."""
    if not folder.exists() and distributed.rank() == 0:
        write_cca_vectors(source.open(), folder)
    distributed.barrier()
    return DataSource(str(folder))


def _test(row: Row) -> str:
    return f"test-{row.name}"


def _digests(ledger: Path) -> set[str]:
    """The rows that a ledger holds."""
    return {entry.digest for entry in read(ledger)} if ledger.exists() else set()


def _missing(
    recipe: Recipe, rows: Sequence[Row], names: Mapping[str, str], ledger: Path
) -> Recipe | None:
    """The stages behind the rows that the ledger does not hold yet; None where it holds all."""
    have = _digests(ledger)
    wanted = [
        f"{split}-{row.name}" for row in rows if names[_test(row)] not in have for split in SPLITS
    ]
    return replace(recipe, stages=_dependencies(recipe, wanted)) if wanted else None


def _dependencies(recipe: Recipe, names: Sequence[str]) -> tuple[Stage, ...]:
    """Stages and all that they depend on, in order."""
    wanted = list(names)
    for name in wanted:  # grows by the inputs of each stage
        wanted += [read for read in recipe.stage(name).reads if read not in wanted]
    return tuple(stage for stage in recipe.stages if stage.name in wanted)


def is_done(folder: Path, row: Row) -> bool:
    """Whether both evaluations of a row are there."""
    notes = [folder / f"{split}-{row.name}.json" for split in SPLITS]
    if not all(note.exists() for note in notes):
        return False
    return all(read_json(note, "the note of a stage").get("state") == "done" for note in notes)


def _entry(
    table: Table, budget: str, row: Row, digest: str, folder: Path, foils: FoilAccuracy | None
) -> Entry:
    trained = [folder / name for name in row.trained]
    measured = {s: RetrievalEvaluation.open(folder / f"{s}-{row.name}") for s in SPLITS}
    return Entry(
        table=table.name,
        budget=budget,
        model=row.model,
        setting=row.setting,
        method=row.method,
        seed=row.seed,
        protocol=without_models(measured["test"].report.setting.line()),
        digest=digest,
        data=measured["test"].dataset,
        numbers={
            split: {
                name: round(value, 4)
                for name, value in zip(METRICS, evaluation.report.numbers, strict=True)
            }
            | (foils.numbers(split, trained) if foils else {})
            for split, evaluation in measured.items()
        },
        training=_training(trained),
        versions={"counterfoil": __version__, "torch": torch.__version__},
    )


def _training(folders: Sequence[Path]) -> dict[str, float]:
    """Epochs and seconds of a training, sums over several."""
    logs = [read_metrics(folder / "metrics.jsonl") for folder in folders]
    epochs = [max((float(line.get("epoch", 0)) for line in log), default=0.0) for log in logs]
    seconds = [max((float(line.get("seconds", 0)) for line in log), default=0.0) for log in logs]
    return {"epochs": sum(epochs), "seconds": round(sum(seconds), 1)}
