"""Finished runs: their evaluations and logs, and ``counterfoil report`` that compares them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias, final

import torch
from pydantic import BaseModel, ValidationError

from counterfoil.core.io import parsing, read_json
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.bootstrap import Counted, shares
from counterfoil.evaluation.cascade import DEPTH
from counterfoil.evaluation.galleries import differ, side_by_side
from counterfoil.evaluation.metrics import EvaluationReport, common_line
from counterfoil.evaluation.protocols import protocol_by_name
from counterfoil.evaluation.results import (
    headline,
    result_table,
    results,
)
from counterfoil.model import is_model_folder, load_model
from counterfoil.pipelines.pipeline import evaluation_title
from counterfoil.pipelines.run import DataSource, stage_records
from counterfoil.pipelines.scorers import check_different, short_names
from counterfoil.pipelines.stages.compare import learning_curve
from counterfoil.pipelines.stages.evaluate import NUMBERS, RetrievalEvaluation
from counterfoil.pipelines.stages.mine import HARDNESS, hardness_at
from counterfoil.report.analysis import Analysis, Column, table
from counterfoil.report.figures import (
    NamedSample,
    gap_histograms,
    learning_curves,
    percentile_bands,
    step_curves,
)
from counterfoil.report.page import (
    CardSection,
    ExampleCard,
    Figure,
    FigureSection,
    TableBlock,
)
from counterfoil.training.logging import read_metrics

METRICS = "metrics.jsonl"

# -- Evaluations ----------------------------------------------------------------------------------


@final
class _NotedPlan(BaseModel):
    seed: int
    batch: int | None = None


@final
class _NotedStage(BaseModel):
    name: str
    using: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    depth: int = DEPTH
    plan: _NotedPlan | None = None
    sources: tuple[dict[str, Any], ...] = ()
    objective: dict[str, Any] = {}


@final
class _NotedData(BaseModel):
    name: str = ""
    fingerprint: str = ""


@final
class StageNote(BaseModel):
    """The note of a stage that lies beside its folder, as far as analyses need it."""

    kind: str
    state: str
    stage: _NotedStage
    data: _NotedData = _NotedData()

    @property
    def seed(self) -> int | None:
        """Seed of a training; None if not noted."""
        return self.stage.plan.seed if self.stage.plan else None

    @property
    def writer(self) -> str:
        """Writer of captions: "dynamic", the model in training, or "static: " and a frozen one."""
        named = [source["filler"] for source in self.stage.sources if source.get("filler")]
        if not named:
            return "dynamic"
        filler = named[0]["from_stage"] if isinstance(named[0], dict) else named[0]
        return f"static: {filler}"


def _parse_note(path: Path, content: Any) -> StageNote:
    try:
        return StageNote.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"{path} is no note of a stage: {where or 'it'}: {first['msg'].lower()}"
        ) from None


@final
@dataclass(frozen=True, slots=True, eq=False)
class FinishedEvaluation:
    """A finished evaluation of a run."""

    run: str  # short name
    models: tuple[str, ...]  # evaluated stages and named models; several are one ensemble
    seeds: tuple[int, ...]  # of their trainings, as far as noted
    batch: int | None  # of the training, the first one's for an ensemble; None if not noted
    teachers: tuple[str, ...]  # stages that taught the model; empty for an ensemble
    evaluation: RetrievalEvaluation
    folder: Path  # of the evaluation, or of the model that was evaluated for the report
    trained: tuple[Path, ...]  # folders of the models' trainings, as far as they are in the run
    name: str  # the models, and whose shortlists they re-rank

    @property
    def report(self) -> EvaluationReport:
        """Recalls and all other numbers, with their protocol."""
        return self.evaluation.report

    @property
    def dataset(self) -> str:
        """Fingerprint of the split."""
        return self.evaluation.dataset

    def describe(self) -> str:
        """Kind of the scoring model, single or ensemble, and its seeds, in words."""
        count = len(self.models)
        kind = "single" if count == 1 else f"ensemble of {count}"
        seeds = " and ".join(map(str, self.seeds))
        return f"{kind}, seed {seeds}" if seeds else kind


def finished_evaluations(folders: Sequence[Path]) -> tuple[FinishedEvaluation, ...]:
    """Read all finished evaluations of runs.

    Raises:
        ValueError: a folder holds none, or is given twice, or a note in it is damaged.
    """
    check_different(folders, "run")
    names = short_names(folders)
    return tuple(
        evaluation for name, folder in zip(names, folders) for evaluation in _of_run(name, folder)
    )


def common_setting(evaluations: Sequence[FinishedEvaluation]) -> str:
    """Data and protocol of evaluations, in one sentence.

    Raises:
        ValueError: data, protocols or truths differ.
    """
    settings: dict[tuple[str, str], FinishedEvaluation] = {}
    for evaluation in evaluations:
        s = evaluation.report.setting
        place = " ".join(part for part in (s.dataset, s.split) if part)
        words = f"{place}, {s.protocol.name}: {s.images:,} images, {s.texts:,} texts"
        words += f"; truth {s.truth}" if s.truth else ""
        settings[words, evaluation.dataset] = evaluation
    if len(settings) > 1:
        (first, one), (second, other) = list(settings.items())[:2]
        reason = "" if first[0] != second[0] else ", with other captions"
        raise ValueError(
            f"{one.run} was measured on {first[0]} and {other.run} on {second[0]}{reason}; figures "
            "of different data, protocols or truths cannot share a page"
        )
    return (
        f"{next(iter(settings))[0]}; any hit; RSum is the sum of R@1, R@5 and R@10 both ways; "
        "95 % intervals: images drawn anew with all their captions, 1,000 times, seed 0"
    )


def _of_run(run: str, folder: Path) -> list[FinishedEvaluation]:
    contents = stage_records(folder)
    if not folder.exists():
        raise ValueError(f"{folder} does not exist; name the folder of a run")
    if not contents:
        raise ValueError(f"{folder} holds no note of a stage; name the folder of a run")
    notes = {path.stem: _parse_note(path, content) for path, content in contents.items()}
    done = [
        note.stage
        for note in notes.values()
        if note.kind == "evaluate"
        and note.state == "done"
        and (folder / note.stage.name / NUMBERS).is_file()
    ]
    if not done:
        raise ValueError(f"{folder} holds no finished evaluation; name the folder of a run")
    return [_evaluation(run, folder, stage, notes) for stage in done]


def _evaluation(
    run: str, folder: Path, stage: _NotedStage, notes: Mapping[str, StageNote]
) -> FinishedEvaluation:
    models = (*stage.using, *stage.models)
    trained = [notes[name].stage for name in stage.using if name in notes]
    plans = [training.plan for training in trained if training.plan is not None]
    sources = trained[0].sources if len(trained) == len(models) == 1 else ()
    # a source that is a stage's result and no recorded call: targets
    teach = next((notes.get(s["from_stage"]) for s in sources if "from_stage" in s), None)
    return FinishedEvaluation(
        run,
        models,
        tuple(plan.seed for plan in plans),
        plans[0].batch or None if plans else None,
        teach.stage.using + teach.stage.models if teach and teach.kind == "teach" else (),
        RetrievalEvaluation.open(folder / stage.name),
        folder / stage.name,
        tuple(folder / name for name in stage.using if (folder / name / METRICS).is_file()),
        evaluation_title(models, stage.first, stage.depth),
    )


# -- Logs of trainings ----------------------------------------------------------------------------


def training_folders(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Folders with a training log: the given ones, or all below them.

    Raises:
        ValueError: a folder holds none.
    """
    places: dict[Path, None] = {}
    for folder in folders:
        if (folder / METRICS).is_file():
            places[folder] = None
            continue
        below = sorted(path.parent for path in folder.rglob(METRICS)) if folder.is_dir() else []
        if not below:
            raise ValueError(
                f"{folder} holds no {METRICS}; name the folder of a training stage or of a run"
            )
        places |= dict.fromkeys(below)
    return tuple(places)


def training_note(folder: Path) -> StageNote | None:
    """Read the note beside the folder of a training; None if there is none.

    Raises:
        ValueError: the file is no note of a stage.
    """
    path = folder.absolute()
    path = path.with_name(f"{path.name}.json")
    if not path.is_file():
        return None
    return _parse_note(path, read_json(path, "the note of a stage"))


def describe_notes(notes: Iterable[StageNote | None]) -> tuple[str, str]:
    """Names of the data of trainings, followed by a space, and their seeds after "; seed "."""
    known = [note for note in notes if note]
    data = ", ".join(dict.fromkeys(note.data.name for note in known if note.data.name))
    seeds = ", ".join(dict.fromkeys(str(note.seed) for note in known if note.seed is not None))
    return f"{data} " if data else "", f"; seed {seeds}" if seeds else ""


PERCENTILES = (10, 25, 50, 75, 90)
_ABOVE, _GAP, _LOSS = "written_above", "written_gap", "loss_written"


def caption_difficulty(name: str, folder: Path) -> dict[str, Any] | None:
    """Difficulty of generated captions by the log of a training, JSON-ready.

    Each value is a list with an entry for each of N logged steps. "percent_above" is the percent of
    generated captions that score above their original; "gap" is the mean difference of the scores,
    and "percentiles" are its `PERCENTILES`; "loss" is the weighted loss of the term "written", an
    empty list if the loss has no such term. The result is None if the log has no such lines.

    Raises:
        ValueError: there is no log, or a line holds a part of the numbers only.
    """
    lines = [line for line in read_metrics(folder / METRICS) if _ABOVE in line]
    if not lines:
        return None
    with parsing(folder / METRICS, "the difficulty of written captions"):
        losses = [float(line[_LOSS]) for line in lines if _LOSS in line]
        return {
            "training": name,
            "steps": [int(line["step"]) for line in lines],
            "percent_above": [float(line[_ABOVE]) for line in lines],
            "gap": [float(line[_GAP]) for line in lines],
            "percentiles": [
                [float(line[f"{_GAP}_p{level}"]) for level in PERCENTILES] for line in lines
            ],
            "loss": losses if len(losses) == len(lines) else [],
        }


def first_and_last(course: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Average the first and the last fifth of the logged steps, at least one step each.

    Of each range its steps, "from" and "to", and the shares "percent_above" and "gap". Intervals
    resample steps. Steps near each other are alike, so they are rather too narrow.
    """
    count = max(1, round(0.2 * len(course["steps"])))
    ranges = []
    for rows in (slice(count), slice(-count, None)):
        steps = course["steps"][rows]
        columns = [
            Counted.mean(torch.tensor(course[name][rows], dtype=torch.double))
            for name in ("percent_above", "gap")
        ]
        above, gap = shares(columns, torch.arange(len(steps)))
        ranges.append({"from": steps[0], "to": steps[-1], "percent_above": above, "gap": gap})
    return ranges[0], ranges[1]


def difficulty_figures(
    courses: Sequence[Mapping[str, Any]], *, loss: bool = False
) -> Iterator[Figure]:
    """Draw score differences, percentages above the original and, if wanted, losses by step."""
    if not courses:
        return

    def by_step(key: str) -> list[tuple[str, Any, Any]]:
        return [
            (course["training"], course["steps"], course[key]) for course in courses if course[key]
        ]

    yield percentile_bands(by_step("percentiles"))
    yield step_curves(by_step("percent_above"), "above the original, %", "above")
    if loss and by_step("loss"):
        yield step_curves(by_step("loss"), "weighted loss of written captions", "loss")


def training_cost(name: str, folder: Path) -> dict[str, Any]:
    """Cost of a training by its log, JSON-ready: over all its sessions, None where unknown.

    Raises:
        ValueError: the log is missing or damaged.
    """
    lines = read_metrics(folder / METRICS)

    def numbers(key: str) -> list[float]:
        return [float(line[key]) for line in lines if key in line]

    with parsing(folder / METRICS, "the log of a training"):
        seconds, speeds = numbers("seconds"), numbers("pairs_per_second")
        return {
            "name": name,
            "steps": int(max((line["step"] for line in lines), default=0)),
            "epochs": max(numbers("epoch"), default=0.0),
            "minutes": max(seconds) / 60 if seconds else None,
            "memory_mb": max(numbers("memory_mb"), default=None),
            "pairs_per_second": median(speeds) if speeds else None,
            "mined_minutes": sum(numbers("mined_seconds")) / 60,
        }


# -- The report -----------------------------------------------------------------------------------

NamedEvaluations: TypeAlias = dict[str, FinishedEvaluation]
SHOWN_QUERIES = 3  # of each kind on which two runs differ
TEXTS, IMAGES = 5, 3  # of a list, as many as Figure 6 of AOQ shows


def report(
    folders: Sequence[Path], *, source: DataSource | None = None, foils: Sequence[Path] = ()
) -> Analysis:
    """Set finished evaluations beside the first of them: numbers, curves, cost, differing queries.

    Folders are of runs, with all their finished evaluations, of evaluations, or of models.
    The data are needed to evaluate models and to show queries on which runs differ; `foils` are
    files that ``counterfoil foils --json`` wrote.

    Raises:
        ValueError: a folder holds no finished evaluation, or the data are not those of the
            evaluations.
    """
    named = _named(folders, source)
    first = next(iter(named.values()))
    same = {name: each for name, each in named.items() if _comparable(each, first)}
    others = {name: each for name, each in named.items() if name not in same}
    places = list(dict.fromkeys(place for each in named.values() for place in each.trained))
    trained = dict(zip(short_names(places), places, strict=True))
    costs = [training_cost(name, place) for name, place in trained.items()]
    accuracies = foil_accuracies(foils)
    difficulties = [caption_difficulty(name, place) for name, place in trained.items()]
    courses = [course for course in difficulties if course]
    cards, queries = _differing_queries(source, same) if source else ((), ())
    runs = results({name: each.report for name, each in same.items()})
    curves = [learning_curve(name, place / METRICS) for name, place in trained.items()]
    gaps = _gap_samples(named)
    figures = {
        "Learning curves": learning_curves(curves),
        "Hardness of negatives": (gap_histograms(gaps),) if gaps else (),
        "Written negatives while training": tuple(difficulty_figures(courses)),
    }
    return Analysis(
        title=_title(list(same)),
        headline=headline(runs),
        protocol=_protocol(same),
        tables=(
            result_table(runs),
            *([cost_table(costs)] if costs else []),
            *([foil_table(accuracies)] if accuracies else []),
            *([_apart_table(others)] if others else []),
        ),
        sections=(
            *(FigureSection(title, some) for title, some in figures.items() if some),
            *cards,
        ),
        numbers={
            "runs": [run.to_dict() for run in runs],
            "curves": [asdict(curve) for curve in curves],
            "hardness": [gap.gap_summary() for gap in gaps],
            "apart": {name: each.report.to_dict() for name, each in others.items()},
            "cost": costs,
            "foils": accuracies,
            "written": courses,
            "queries": queries,
        },
    )


def _named(folders: Sequence[Path], source: DataSource | None) -> NamedEvaluations:
    """Evaluations by short names: of runs, saved by ``counterfoil evaluate``, and of models.

    A model is evaluated on the split that the first evaluation was measured on, or on "test".
    """
    check_different(folders, "run")
    folders = [one for folder in folders for one in _evaluations_in(folder)]
    bare = {folder: one for folder in folders if (one := _without_run(folder)) is not None}
    models = [
        folder
        for folder in folders
        if folder not in bare and is_model_folder(folder) and not stage_records(folder)
    ]
    runs = [folder for folder in folders if folder not in bare and folder not in models]
    named = [*_of_runs(runs), *zip(short_names(list(bare)), bare.values())]
    if models:
        if source is None:
            raise ValueError(
                f"{models[0]} is a model, which the report has to evaluate first; name the data "
                "with --data"
            )
        dataset = source.split(named[0][1].report.setting.split if named else "test")
        evaluated = [_of_model(folder, dataset) for folder in models]
        named += zip(short_names(models), evaluated)
    count = Counter(name for name, _ in named)
    places = short_names([evaluation.folder for _, evaluation in named])
    return {
        name if count[name] == 1 else f"{name} ({place})": evaluation
        for (name, evaluation), place in zip(named, places)
    }


def _evaluations_in(folder: Path) -> list[Path]:
    """The evaluations of several models in a folder, in the order of their making; or itself."""
    if (folder / NUMBERS).is_file() or stage_records(folder):
        return [folder]
    inside = [path.parent for path in folder.glob(f"*/{NUMBERS}")]
    inside.sort(key=lambda path: (path / NUMBERS).stat().st_mtime_ns)
    return inside or [folder]


def _without_run(folder: Path) -> FinishedEvaluation | None:
    """An evaluation that ``counterfoil evaluate --output`` saved; None for other folders."""
    if not (folder / NUMBERS).is_file() or stage_records(folder.parent):
        return None
    evaluation = RetrievalEvaluation.open(folder)
    with parsing(folder / NUMBERS, "an evaluation"):
        models = read_json(folder / NUMBERS, "an evaluation").get("models") or [folder.name]
        return _single(tuple(map(str, models)), evaluation, folder)


def _of_model(folder: Path, dataset: ImageTextDataset) -> FinishedEvaluation:
    """Evaluate a saved model for the report."""
    model = load_model(str(folder))
    seed = model.card.provenance.get("seed") if model.card else None
    seed = seed if isinstance(seed, int) else None
    members, protocol = [model.embed(dataset)], protocol_by_name("whole")
    evaluation = RetrievalEvaluation.of(members, dataset, protocol, seed=seed)
    return _single((str(folder),), evaluation, folder)


def _single(
    models: tuple[str, ...], evaluation: RetrievalEvaluation, folder: Path
) -> FinishedEvaluation:
    """An evaluation that belongs to no run."""
    seed = evaluation.report.setting.seed
    trained = tuple(Path(model) for model in models if (Path(model) / METRICS).is_file())
    name = " + ".join(models)
    seeds = () if seed is None else (seed,)
    return FinishedEvaluation(
        folder.name, models, seeds, None, (), evaluation, folder, trained, name
    )


def _of_runs(folders: Sequence[Path]) -> list[tuple[str, FinishedEvaluation]]:
    """Evaluations of runs in the order of their own reports, and those that were named alone."""
    chosen: dict[Path, FinishedEvaluation] = {}  # an evaluation may be named beside its run
    for folder in folders:
        alone = (folder / NUMBERS).is_file()
        run = folder.parent if alone else folder
        notes = stage_records(run).values()
        order = [name for note in notes for name in note["stage"].get("results", ())]
        places = {name: place for place, name in enumerate(order)}
        evaluations = sorted(
            finished_evaluations([run]), key=lambda one: places.get(one.folder.name, len(order))
        )
        chosen |= {e.folder: e for e in evaluations if not alone or e.folder == folder}
    runs = list(dict.fromkeys(folder.parent for folder in chosen))
    before = dict(zip(runs, short_names(runs))) if len(runs) > 1 else {}
    return [
        (f"{before[folder.parent]}/{one.name}" if before else one.name, one)
        for folder, one in chosen.items()
    ]


def _protocol(same: NamedEvaluations) -> str:
    """In one sentence, with the seed if it is the same for all."""
    return common_line([evaluation.report.setting for evaluation in same.values()])


def _comparable(one: FinishedEvaluation, other: FinishedEvaluation) -> bool:
    """Return True if two evaluations have the same queries, truth, protocol and metrics."""
    a, b = one.report.setting, other.report.setting
    keys = [(s.protocol, s.split, s.images, s.texts, s.tie, s.truth) for s in (a, b)]
    same = keys[0] == keys[1] and one.dataset == other.dataset
    return same and one.report.names == other.report.names


def _title(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    few = ", ".join(names[:-1]) if len(names) < 5 else f"{names[0]}, {len(names) - 2} more"
    return f"{few} and {names[-1]}"


def _gap_samples(named: NamedEvaluations) -> tuple[NamedSample, ...]:
    """Score gaps of the negatives of each run's mined lists."""
    runs = list(dict.fromkeys(evaluation.folder.parent for evaluation in named.values()))
    places = [path.parent for run in runs for path in sorted(run.glob(f"*/{HARDNESS}"))]
    return tuple(
        replace(sample, name=f"{name}, {sample.name.partition(':')[0]}")
        for name, place in zip(short_names(places), places, strict=True)
        for sample in hardness_at(place, name)
    )


def cost_table(costs: Sequence[Mapping[str, Any]]) -> TableBlock:
    """Show what `training_cost` measured: steps, minutes, memory and pairs a second of each run."""
    columns: dict[str, Column] = {
        "training": "name",
        "steps": "steps",
        "epochs": ("epochs", "g"),
        "minutes": "minutes",
        "peak GB": lambda cost: (cost["memory_mb"] and cost["memory_mb"] / 1024, ".2f"),
        "pairs a second": ("pairs_per_second", ",.0f"),
        "mining, minutes": lambda cost: cost["mined_minutes"] or None,
    }
    note = (
        "Minutes with everything beside the steps, over all sessions; peak memory of the GPU if "
        "there was one, else of the process; pairs a second: median of the log. Minutes of "
        "different machines, or of a busy one, do not compare."
    )
    return table("Cost of training", costs, columns, note)


def foil_accuracies(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Read the aggregates that ``counterfoil foils --json`` wrote."""
    writer, lines = "what `counterfoil foils --json` wrote", []
    for path in files:
        content = read_json(path, writer)
        with parsing(path, "accuracies of foils", f"name {writer}"):
            lines += [
                {
                    "set": str(content["set"]),
                    "of": str(line["of"]),
                    "measure": str(line["measure"]),
                    "model": str(content["model"]),
                    "value": float(line["value"]),
                    "low": float(line["interval"]["low"]),
                    "high": float(line["interval"]["high"]),
                    "chance": float(line["chance"]),
                }
                for line in content["lines"]
            ]
    return sorted(lines, key=lambda line: (line["set"], line["of"], line["measure"]))


def foil_table(lines: Sequence[Mapping[str, Any]]) -> TableBlock:
    """Show what `foil_accuracies` counted: accuracy, interval and chance of each set and model."""
    columns: dict[str, Column] = {
        "set": "set",
        "items of": "of",
        "measure": "measure",
        "model": "model",
        "%": "value",
        "95 % interval": lambda line: f"{line['low']:.1f} to {line['high']:.1f}",
        "chance, %": "chance",
    }
    return table("Foils", lines, columns)


def _apart_table(others: NamedEvaluations) -> TableBlock:
    columns: dict[str, Column] = {
        "run": lambda one: one[0],
        "RSum": lambda one: one[1].report.rsum,
        "how": lambda one: one[1].report.setting.line(),
    }
    note = (
        "Other data, or another split, protocol, truth or set of metrics: these do not compare "
        "with those above."
    )
    return table("Measured otherwise", list(others.items()), columns, note)


def _differing_queries(
    source: DataSource, same: NamedEvaluations
) -> tuple[tuple[CardSection, ...], Sequence[dict[str, object]]]:
    """Queries on which the first and the last run differ most (AOQ, Figure 6), and their JSON."""
    if len(same) < 2:
        return (), ()
    (first, one), *_, (last, other) = same.items()
    dataset = source.split(one.report.setting.split)
    if dataset.fingerprint != one.dataset:
        raise ValueError(
            f"{first} was measured on other data than {dataset.name} {dataset.split_name} as they "
            "are now; name the data of the run with --data, and its corrections where it had "
            "some (--data DATA:corrections=FILE), or leave them out for a report without pictures"
        )
    both = {first: one.evaluation, last: other.evaluation}
    sections, queries = [], []
    for side, title in enumerate(("Image to text", "Text to image")):
        ranks = [measured.report.ranked[side] for measured in both.values()]
        better, worse = differ(ranks[0], ranks[1], SHOWN_QUERIES)
        targets = "images for a caption" if side else "captions for an image"
        for name, rows in ((last, better), (first, worse)):
            note = f"Where {name} ranks the best true one highest above the other; {targets}."
            shown = [_differing_query(dataset, both, side, row) for row in rows]
            if shown:
                cards = tuple(card for card, _ in shown)
                sections.append(CardSection(f"{title}: for {name}", note, cards))
            queries += [numbers for _, numbers in shown]
    return tuple(sections), queries


def _differing_query(
    dataset: ImageTextDataset, both: Mapping[str, RetrievalEvaluation], side: int, row: int
) -> tuple[ExampleCard, dict[str, object]]:
    """A query with the first items of both runs, and its numbers."""
    names = dataset.image_ids if side else dataset.text_ids
    count = IMAGES if side else TEXTS
    lists = {name: run.ranked_lists[side] for name, run in both.items()}
    return side_by_side(dataset, lists, row, count), {
        "direction": "t2i" if side else "i2t",
        "query": dataset.texts[row] if side else dataset.image_ids[row],
        "rank": {name: int(each.ranked.ranks[row]) + 1 for name, each in lists.items()},
        "found": {
            name: [names[r] for r in each.rows[row, :count].tolist() if r >= 0]
            for name, each in lists.items()
        },
    }
