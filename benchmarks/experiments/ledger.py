"""Raw results of experiments as lines of JSON, and the run that fills them.

A line holds one evaluation: its numbers, and for every query whether its best true counterpart was
first, in the first 5, in the first 10 or further back, so that paired tests can be made later.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import final

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from benchmarks.experiments.table import Experiment, Row, Table
from counterfoil import __version__
from counterfoil.core import distributed
from counterfoil.core.console import output
from counterfoil.core.io import ensure_writable_file, read_json, write_text
from counterfoil.evaluation.metrics import CUTOFFS, METRICS, RankedQueries
from counterfoil.pipelines.pipeline import Recipe, data_contents, stage_digests
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.recipes.grid_search import dependencies
from counterfoil.training.logging import read_metrics

BANDS = "0123"  # hit at 1, at 5, at 10, none


@final
class Entry(BaseModel):
    """One evaluation.

    Attributes:
        table: as in "evidence/aoq-flickr8k".
        budget: as in "cpu".
        host: title of the model.
        method: how it was trained.
        lists: the model whose scores mined its negatives; empty for none.
        seed: of the training.
        protocol: the evaluation in one sentence.
        digest: of everything the evaluation depends on.
        data: fingerprint of the data set.
        numbers: metrics by name.
        training: from the training log, by name: epochs, best_epoch, dev_rsum, seconds.
        versions: of counterfoil and torch.
        images: for every image a digit: 0, 1 or 2 where its best text is among the first 1, 5 or
            10, and else 3.
        texts: the same for every text, those of one image together, images apart by a blank.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    table: str
    budget: str
    host: str
    method: str
    lists: str = ""
    seed: int
    protocol: str
    digest: str
    data: str
    numbers: dict[str, float]
    training: dict[str, float] = {}
    versions: dict[str, str] = {}
    images: str = Field(pattern="^[0-3]+$")
    texts: str = Field(pattern="^[0-3 ]+$")

    @property
    def place(self) -> tuple[str, str, str, str, str, int]:
        """Key of the row; a later entry with the same key replaces an earlier one."""
        return self.table, self.budget, self.host, self.method, self.lists, self.seed

    def shares(self) -> Tensor:
        """(I,) contribution of each image, with all its texts, to RSum."""

        def hits(digit: str) -> int:  # how many of R@1, R@5 and R@10 a query counts for
            return len(CUTOFFS) - BANDS.index(digit)

        groups = self.texts.split(" ")
        each = torch.tensor([float(sum(map(hits, group))) for group in groups])
        own = torch.tensor([float(hits(digit)) for digit in self.images])
        texts = sum(map(len, groups))
        return 100 * (own.double() / len(own) + each.double() / texts)


def bands(ranked: RankedQueries) -> tuple[str, ...]:
    """For every image a digit for each of its queries, see `Entry`; images as in the split."""
    counted = ranked.counted
    misses = torch.stack([ranked.ranks[counted] >= k for k in CUTOFFS]).sum(0)
    digits: dict[int, list[str]] = {}
    for image, band in zip(ranked.images[counted].tolist(), misses.tolist()):
        digits.setdefault(image, []).append(BANDS[band])
    return tuple("".join(digits[image]) for image in sorted(digits))


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
    ensure_writable_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
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


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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
    todo = table.of(budget, only)
    data = data_contents(source.open())
    for number, experiment in enumerate(todo, 1):
        left = None if deadline is None else max(0.01, (deadline - time.monotonic()) / 60)
        output(f"{table.name} ({budget}), {number} of {len(todo)}: {experiment.key}")
        names = stage_digests(experiment.recipe, data)
        recipe, place = _missing(experiment, names, ledger), folder / experiment.key
        if recipe is None:
            output(f"{experiment.key}: kept, {ledger}")
            continue
        done = run_pipeline(recipe, source, place, resume=resume, minutes=left)
        if distributed.rank() == 0:
            finished = [row for row in experiment.rows if _done(place, row.test, names[row.test])]
            add(ledger, [_entry(table, budget, row, names[row.test], place) for row in finished])
        distributed.barrier()
        if not done:
            return False
    return True


def _missing(experiment: Experiment, names: Mapping[str, str], ledger: Path) -> Recipe | None:
    """The stages behind the rows that the ledger does not hold yet; None where it holds all."""
    have = {entry.digest for entry in read(ledger)} if ledger.exists() else set()
    recipe = experiment.recipe
    wanted = [row.test for row in experiment.rows if names[row.test] not in have]
    return replace(recipe, stages=dependencies(recipe, *wanted)) if wanted else None


def _done(folder: Path, stage: str, digest: str) -> bool:
    note = folder / f"{stage}.json"
    if not note.exists():
        return False
    noted = read_json(note, "the note of a stage")
    return bool(noted.get("state") == "done" and noted.get("digest") == digest)


def _entry(table: Table, budget: str, row: Row, digest: str, folder: Path) -> Entry:
    measured = RetrievalEvaluation.open(folder / row.test)
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
        data=measured.dataset,
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
    numbers: dict[str, float] = {}
    if best:
        numbers["epochs"] = max(float(lines[-1]["epoch"]) for lines in dev if lines)
        numbers["best_epoch"] = sum(float(line["epoch"]) for line in best) / len(best)
        numbers["dev_rsum"] = round(sum(float(line["dev_rsum"]) for line in best) / len(best), 4)
    seconds = [max((float(line.get("seconds", 0)) for line in log), default=0.0) for log in logs]
    return numbers | {"seconds": round(sum(seconds), 1)}
