"""What finished runs have measured, and how the models were trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from pydantic import BaseModel, ValidationError

from counterfoil.evaluate.cascade import DEPTH
from counterfoil.evaluate.result import Report
from counterfoil.recipes.analyses.scorers import short_names
from counterfoil.recipes.measured import NUMBERS, Measured
from counterfoil.recipes.measures import called
from counterfoil.recipes.notes import notes_in

METRICS = "metrics.jsonl"


@final
class _Plan(BaseModel):
    seed: int
    batch: int


@final
class _Stage(BaseModel):
    name: str
    using: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    depth: int = DEPTH
    guide: str | None = None
    plan: _Plan | None = None


@final
class _Note(BaseModel):
    kind: str
    state: str
    stage: _Stage


@final
@dataclass(frozen=True, slots=True, eq=False)
class Tested:
    """A finished evaluation of a run.

    Attributes:
        run: as much of its folder's name as tells it from the others.
        models: stages whose models were measured, and models that were named; several are one
            ensemble.
        seeds: of their trainings, as far as noted.
        batch: of the training; of an ensemble the first one's, None where it is not noted.
        teachers: stages that taught the model; empty for an ensemble.
        report: what was measured.
        corpus: fingerprint of the split.
        folder: of the evaluation.
        trained: folders of the models' trainings, as far as they are in the run.
        name: the models, and whose shortlists they put in order.
    """

    run: str
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    batch: int | None
    teachers: tuple[str, ...]
    report: Report
    corpus: str
    folder: Path
    trained: tuple[Path, ...]
    name: str

    def said(self) -> str:
        """Whether a single model or an ensemble scored, and the seeds."""
        many = len(self.models)
        kind = "single" if many == 1 else f"ensemble of {many}"
        seeds = " and ".join(map(str, self.seeds))
        return f"{kind}, seed {seeds}" if seeds else kind


def tested(folders: Sequence[Path]) -> tuple[Tested, ...]:
    """All finished evaluations of runs.

    Raises:
        ValueError: a folder holds none, or is given twice, or a note in it is damaged.
    """
    twice = next((folder for folder in folders if list(folders).count(folder) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice; name each run once")
    names = short_names([str(folder) for folder in folders])
    return tuple(test for name, folder in zip(names, folders) for test in _of(name, folder))


def one_setting(found: Sequence[Tested]) -> str:
    """Data and protocol of all of them, in one sentence.

    Raises:
        ValueError: they were measured on different data or under different protocols.
    """
    settings = {_setting(test): test for test in found}
    if len(settings) > 1:
        (first, one), (second, other) = list(settings.items())[:2]
        what = "" if first[0] != second[0] else ", with other captions"
        raise ValueError(
            f"{one.run} was measured on {first[0]} and {other.run} on {second[0]}{what}; figures "
            "of different data or protocols do not stand in one picture"
        )
    return (
        f"{next(iter(settings))[0]}; any hit; RSum is the sum of R@1, R@5 and R@10 both ways; "
        "95 % intervals: images drawn anew with all their captions, 1,000 times, seed 0"
    )


def _setting(test: Tested) -> tuple[str, str]:
    s = test.report.setting
    where = " ".join(part for part in (s.dataset, s.split) if part)
    return f"{where}, {s.protocol.name}: {s.images:,} images, {s.texts:,} texts", test.corpus


def _of(run: str, folder: Path) -> list[Tested]:
    notes = {path.stem: _read(path, plain) for path, plain in _notes(folder).items()}
    done = [note.stage for note in notes.values() if note.kind == "evaluate"]
    done = [stage for stage in done if notes[stage.name].state == "done"]
    done = [stage for stage in done if (folder / stage.name / NUMBERS).is_file()]
    if not done:
        raise ValueError(f"{folder} holds no finished evaluation; name the folder of a run")
    return [_tested(run, folder, stage, notes) for stage in done]


def _tested(run: str, folder: Path, stage: _Stage, notes: Mapping[str, _Note]) -> Tested:
    models = (*stage.using, *stage.models)
    trained = [notes[name].stage for name in stage.using if name in notes]
    plans = [one.plan for one in trained if one.plan is not None]
    guide = trained[0].guide if len(trained) == len(models) == 1 else None
    teach = notes.get(guide or "")
    measured = Measured.open(folder / stage.name)
    return Tested(
        run,
        models,
        tuple(plan.seed for plan in plans),
        plans[0].batch if plans else None,
        teach.stage.using + teach.stage.models if teach and teach.kind == "teach" else (),
        measured.report,
        measured.corpus,
        folder / stage.name,
        tuple(folder / name for name in stage.using if (folder / name / METRICS).is_file()),
        called(models, stage.first, stage.depth),
    )


def _notes(folder: Path) -> dict[Path, Any]:
    found = notes_in(folder)
    if not found:
        raise ValueError(f"{folder} holds no note of a stage; name the folder of a run")
    return found


def _read(path: Path, plain: Any) -> _Note:
    try:
        return _Note.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"{path} is no note of a stage: {where or 'it'}: {first['msg'].lower()}"
        ) from None
