"""Grid search: train a recipe at many settings and rank them on dev.

A point of the grid is the folder of a run, ``points/DIGEST/``, named by the digest of everything
that its compared training depends on. Stages that another point has finished are linked into it
with their notes, so that the run finds them done: what points share runs once, a stopped search
goes on from there, and a wider grid may use the same folder.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Self, final

import torch

from counterfoil.core import distributed
from counterfoil.core.config import unknown_name
from counterfoil.core.console import console, output
from counterfoil.core.io import read_json, write_json
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.metrics import METRICS, without_models
from counterfoil.model import MODEL, read_card
from counterfoil.pipelines import run
from counterfoil.pipelines.overrides import apply_overrides
from counterfoil.pipelines.pipeline import (
    Evaluate,
    Recipe,
    Stage,
    Train,
    data_contents,
    stage_digests,
)
from counterfoil.pipelines.publishing import Analysis
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.pipelines.state import DEV, RunContext
from counterfoil.recipes import catalogue, tags
from counterfoil.recipes.catalogue import smoke_recipe
from counterfoil.recipes.models import LARGE, Dataset
from counterfoil.report.page import TableBlock
from counterfoil.report.tables import terminal_table

NAMED = "sweeps/"  # prefix of the names of the grids that are built in
POINTS, RESULTS, PAGE = "points", "sweep.json", "sweep.html"
MAX_POINTS = 10_000
NONE = "–"
NOTE = "The best of many points looks better on dev than it is; only test tells how good it is."


@final
@dataclass(frozen=True, kw_only=True)
class GridAxis:
    """Values of one key of a recipe, or of several keys together.

    Attributes:
        keys: as ``--set`` names them.
        values: as ``--set`` reads them.

    Raises:
        ValueError: no value, or one twice.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.values or not all(self.values) or not all(self.keys):
            raise ValueError(
                f"{self.name}={','.join(self.values)} is no axis of a sweep; write "
                "stage.key=value,value, as in online.margin=0.1,0.2"
            )
        twice = [value for value in self.values if self.values.count(value) > 1]
        if twice:
            raise ValueError(f"{self.name} is to be {twice[0]} twice; name each value once")

    @classmethod
    def parse(cls, text: str) -> Self:
        """An axis written ``key=value,value``, or ``key+key=…`` for keys that are kept equal.

        Commas inside brackets and quotes belong to a value: ``betas=(0.9, 0.98),(0.9, 0.999)``.

        Raises:
            ValueError: it is not written so.
        """
        keys, equals, values = text.partition("=")
        if not equals:
            raise ValueError(
                f"{text!r} is no axis of a sweep; write stage.key=value,value, as in "
                "online.margin=0.1,0.2"
            )
        return cls(keys=tuple(key.strip() for key in keys.split("+")), values=_split(values))

    @property
    def name(self) -> str:
        """The keys, joined by +."""
        return "+".join(self.keys)

    def settings(self, value: str) -> tuple[str, ...]:
        """The ``--set`` arguments of one of the values."""
        return tuple(f"{key}={value}" for key in self.keys)


@final
@dataclass(frozen=True, kw_only=True)
class GridSearch:
    """A recipe and the settings to try.

    Attributes:
        name: as in "sweeps/tags-dc-scenes".
        recipe: run at every point.
        axes: every combination of their values is a point.
        stage: training whose dev figure is compared; empty for the last one.
        draw: number of points drawn from the grid; 0 for all.
        seed: of the draw.
        seeds: repeats of every point: added to the seed of every training, but not of
            pre-training, which the repeats share.
        smoke: at most 20 training steps a stage.
        about: one sentence.

    Raises:
        ValueError: nothing to vary, a key twice, more points are to be drawn than there are, a
            seed twice or below 0, or no such training.
    """

    name: str
    recipe: Recipe
    axes: tuple[GridAxis, ...]
    stage: str = ""
    draw: int = 0
    seed: int = 0
    seeds: tuple[int, ...] = (0,)
    smoke: bool = False
    about: str = ""

    def __post_init__(self) -> None:
        if not self.axes:
            raise ValueError(f"{self.name} varies nothing; add --over stage.key=value,value")
        keys = [key for axis in self.axes for key in axis.keys]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise ValueError(f"{twice[0]} is varied twice; name each key once")
        if self.size > MAX_POINTS:
            raise ValueError(
                f"the grid has {self.size:,} points, at most {MAX_POINTS:,} are allowed"
            )
        if self.draw > self.size:
            raise ValueError(f"{self.draw:,} points cannot be drawn, the grid has {self.size:,}")
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            given = ",".join(map(str, self.seeds))
            raise ValueError(f"--seeds {given}: different whole numbers from 0 on are needed")
        if not self._trainings:
            raise ValueError(f"{self.recipe.name} trains nothing that could be compared on dev")
        if self.stage and self.stage not in self._trainings:
            kind = f"a training of {self.recipe.name}"
            raise ValueError(unknown_name(self.stage, self._trainings, kind))

    @property
    def _trainings(self) -> list[str]:
        return [stage.name for stage in self.recipe.stages if isinstance(stage, Train)]

    @property
    def folder(self) -> Path:
        """Default folder of the results."""
        return Path("runs") / NAMED / self.name.removeprefix(NAMED)

    @property
    def size(self) -> int:
        """Points of the whole grid."""
        count = 1
        for axis in self.axes:
            count *= len(axis.values)
        return count

    @property
    def compared(self) -> str:
        """Training whose dev figure is compared."""
        return self.stage or self._trainings[-1]

    def points(self) -> tuple[GridPoint, ...]:
        """The points in the order of the grid; the values of the last axis change first.

        Raises:
            ValueError: a key or value that the recipe does not take.
        """
        for axis in self.axes:  # report a wrong value before many right ones are built
            for value in axis.values:
                apply_overrides(self.recipe, axis.settings(value))
        numbers: Iterable[int] = range(self.size)
        if self.draw:  # a prefix of one permutation: a longer draw holds the shorter ones
            rng = torch.Generator().manual_seed(self.seed)
            numbers = sorted(torch.randperm(self.size, generator=rng)[: self.draw].tolist())
        return tuple(self._point(number) for number in numbers)

    def _point(self, number: int) -> GridPoint:
        values: list[str] = []
        for axis in reversed(self.axes):  # digits of the number, the last axis first
            number, digit = divmod(number, len(axis.values))
            values.insert(0, axis.values[digit])
        settings = [s for axis, value in zip(self.axes, values) for s in axis.settings(value)]
        recipe = apply_overrides(self.recipe, settings)
        recipe = smoke_recipe(recipe) if self.smoke else recipe
        seeded = tuple(_seeded(recipe, seed) for seed in self.seeds)
        return GridPoint(values=tuple(values), recipes=seeded)

    def settings(self, values: Sequence[str]) -> str:
        """The ``--set`` arguments of a point, in words."""
        return ", ".join(f"{axis.name}={value}" for axis, value in zip(self.axes, values))


@final
@dataclass(frozen=True, kw_only=True)
class GridPoint:
    """One combination of values.

    Attributes:
        values: one for each axis.
        recipes: one for each seed.
    """

    values: tuple[str, ...]
    recipes: tuple[Recipe, ...]


@final
@dataclass(frozen=True, kw_only=True)
class GridJob:
    """A point with one seed.

    Attributes:
        values: of the point.
        seed: of the repeat.
        recipe: the compared training and the stages it depends on.
        stage: the compared training.
        digests: of the stages, by name.
        tests: evaluations of the training on test.
    """

    values: tuple[str, ...]
    seed: int
    recipe: Recipe
    stage: str
    digests: Mapping[str, str]
    tests: tuple[Evaluate, ...]

    @property
    def needed(self) -> tuple[str, ...]:
        """Digests of all stages but the tests, in order."""
        return tuple(self.digests[stage.name] for stage in self.recipe.stages)

    @property
    def name(self) -> str:
        """Folder of the run, inside that of the search."""
        return f"{POINTS}/{self.digests[self.stage]}"

    @property
    def select(self) -> str:
        """Dev figure that chooses the epoch of the compared training."""
        stage = self.recipe.stage(self.stage)
        assert isinstance(stage, Train)
        return stage.plan.select

    def tested(self) -> Recipe:
        """The recipe with the tests."""
        return replace(self.recipe, stages=(*self.recipe.stages, *self.tests))


def jobs(search: GridSearch, data: str) -> tuple[GridJob, ...]:
    """All trainings, the seeds of a point one after another.

    Args:
        search: the grid.
        data: digest of the data.

    Raises:
        ValueError: two points train the same, or choose epochs by different figures.
    """
    every = [
        _job(search, point, seed, recipe, data)
        for point in search.points()
        for seed, recipe in zip(search.seeds, point.recipes)
    ]
    known: dict[str, GridJob] = {}
    for job in every:
        other = known.setdefault(job.name, job)
        if other is not job:
            raise ValueError(
                f"{_named(search, other)} and {_named(search, job)} train the same {job.stage!r}; "
                "vary what it depends on, or name another training with --stage"
            )
    selects = sorted({job.select for job in every})
    if len(selects) > 1:
        raise ValueError(
            f"points that choose their epochs by different figures, {' and '.join(selects)}, "
            "cannot be compared; leave select as it is"
        )
    return tuple(every)


def dependencies(recipe: Recipe, stage: str) -> tuple[Stage, ...]:
    """A stage and all that it depends on, in order."""
    wanted = [stage]
    for name in wanted:  # grows by what each stage reads
        wanted += [read for read in recipe.stage(name).reads if read not in wanted]
    return tuple(one for one in recipe.stages if one.name in wanted)


def _job(search: GridSearch, point: GridPoint, seed: int, recipe: Recipe, data: str) -> GridJob:
    stage = search.compared
    needed = replace(recipe, stages=dependencies(recipe, stage))
    there = {one.name for one in needed.stages}
    tests = tuple(  # the recipe's own tests of this training alone, or all of test as it is
        one
        for one in recipe.stages
        if isinstance(one, Evaluate)
        and (one.using, one.split) == ((stage,), "test")
        and there.issuperset(one.reads)
    ) or (Evaluate(name=f"test-{stage}", using=(stage,)),)
    whole = replace(needed, stages=(*needed.stages, *tests))
    return GridJob(
        values=point.values,
        seed=seed,
        recipe=needed,
        stage=stage,
        digests=stage_digests(whole, data),
        tests=tests,
    )


def _named(search: GridSearch, job: GridJob) -> str:
    seed = f", seed {job.seed}" if len(search.seeds) > 1 else ""
    return f"{search.settings(job.values)}{seed}"


def _seeded(recipe: Recipe, more: int) -> Recipe:
    """The recipe with another seed of every training."""
    changed = [
        replace(stage, plan=replace(stage.plan, seed=stage.plan.seed + more))
        if isinstance(stage, Train)
        else stage
        for stage in recipe.stages
    ]
    return replace(recipe, stages=tuple(changed))


def _split(text: str) -> tuple[str, ...]:
    """Values between commas that are in no bracket and no quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if letter == "," and not depth and not quote:
            parts.append("")
            continue
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        depth += 0 if quote else (letter in "([{") - (letter in ")]}")
        parts[-1] += letter
    return tuple(part.strip() for part in parts)


# The search.


def run_grid(
    search: GridSearch,
    source: DataSource,
    folder: Path,
    *,
    resume: bool = False,
    minutes: float | None = None,
    test: bool = False,
) -> bool:
    """Train the missing points of a grid and rank them on dev.

    A point that cannot be trained, as where the loss is not finite, is reported and left out. A
    wider grid of the same recipe and data may use the same folder.

    Args:
        search: the grid.
        source: the data.
        folder: of the points, and of ``sweep.json`` and ``sweep.html``.
        resume: go on with trainings that were stopped.
        minutes: stop after this long.
        test: measure the best point, and nothing else, on test.

    Returns:
        Whether all was done before the time was up.

    Raises:
        ValueError: a key or value that the recipe does not take, points that train the same, data
            without a dev split, a folder of another search, a training that was stopped and is not
            to be resumed, or nothing can be trained.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    distributed.init()
    dataset = source.open()
    data = data_contents(dataset)
    todo = jobs(search, data)
    _check_folder(search, data, folder)
    _check_jobs(todo, dataset, folder, resume=resume, test=test)
    running = _GridRun(search, source, folder, todo, dataset, data, deadline)
    distributed.barrier()  # nobody begins before everybody has looked
    if not running.train(resume=resume):
        return False
    results = running.results()
    if not results.ranked:
        raise ValueError(f"no point can be trained; of the first: {results.failed[0].failed}")
    if test:
        tests = running.test(results.ranked[0].values)
        if tests is None:
            return False
        results = replace(results, tests=tests)
    _page(results).publish(folder / PAGE)
    return True


def show_grid(search: GridSearch) -> None:
    """Print the points of a grid and count their stages.

    Raises:
        ValueError: a key or value that the recipe does not take, or points that train the same.
    """
    todo = jobs(search, "")
    points = dict.fromkeys(job.values for job in todo)
    rows = tuple((str(n), *values) for n, values in enumerate(points, 1))
    console().print(
        terminal_table(
            TableBlock(search.name, ("point", *axis_labels(search.axes)), rows, search.about)
        )
    )
    kinds = {d: s.kind for job in todo for d, s in zip(job.needed, job.recipe.stages)}
    many = ", ".join(f"{count:,} {kind}" for kind, count in Counter(kinds.values()).items())
    alone = sum(len(job.needed) for job in todo)
    shared = f" ({alone:,} if none were shared)" if alone > len(kinds) else ""
    repeats = f" × {len(search.seeds)} seeds" if len(search.seeds) > 1 else ""
    output(
        f"{len(points):,} points{repeats}, compared on dev by {search.compared!r}: "
        f"{len(kinds):,} stages, {many}{shared}"
    )


def _check_folder(search: GridSearch, data: str, folder: Path) -> None:
    """Refuse the folder of another search.

    Raises:
        ValueError: it is one.
    """
    run.check_run_folder(folder)
    if not (folder / RESULTS).exists():
        return
    noted = read_json(folder / RESULTS, "the results of a sweep")
    now = search.recipe.name, search.compared, data
    if not isinstance(noted, dict) or now != (
        noted.get("recipe"),
        noted.get("stage"),
        noted.get("data", {}).get("digest"),
    ):
        raise ValueError(
            f"{folder} holds a sweep of another recipe, training or data; choose another --output"
        )


def _check_jobs(
    todo: Sequence[GridJob], dataset: ImageTextDataset, folder: Path, *, resume: bool, test: bool
) -> None:
    """Refuse what would fail only after hours.

    Raises:
        ValueError: there is no dev split, a training was stopped and is not to be resumed, or data
            and a stage do not fit.
    """
    if not set(DEV) & set(dataset.split_names):
        raise ValueError(f"{dataset.name} has no dev split, and a sweep compares on nothing else")
    checked: set[str] = set()
    for job in todo:
        recipe = job.tested() if test else job.recipe
        context = RunContext(recipe, dataset, folder / job.name, job.digests)
        for stage in job.recipe.stages:
            run.admit_stage(context, stage, resume=resume)
        for stage in recipe.stages:
            if job.digests[stage.name] not in checked:
                stage.check(context)
            checked.add(job.digests[stage.name])


@final
@dataclass(eq=False)
class _GridRun:
    """The trainings of a grid, one after another."""

    search: GridSearch
    source: DataSource
    folder: Path
    todo: Sequence[GridJob]
    dataset: ImageTextDataset
    data: str
    deadline: float | None
    done: dict[str, Path] = field(default_factory=dict)  # folders of finished stages, by digest
    failed: dict[str, str] = field(default_factory=dict)  # reasons, by the digest of the stage

    def __post_init__(self) -> None:
        for point in sorted((self.folder / POINTS).glob("*/")):
            self.done |= _finished(point)

    def train(self, *, resume: bool) -> bool:
        """Train the missing points; whether the time sufficed."""
        every = {digest for job in self.todo for digest in job.needed}
        began, before = time.monotonic(), len(every & self.done.keys())
        self._save()
        for number, job in enumerate(self.todo, 1):
            if job.digests[job.stage] in self.done or self._failure(job):
                continue
            if self._late():
                return False
            there = len(every & self.done.keys())
            left = _time_left(time.monotonic() - began, there - before, len(every) - there)
            output(
                f"{self.search.name}, {number} of {len(self.todo)}: {_named(self.search, job)} "
                f"({there} of {len(every)} stages done{left})"
            )
            finished = self._run(job, resume=resume)
            self._save()
            if not finished:
                return False
        return True

    def test(self, values: tuple[str, ...]) -> tuple[GridTest, ...] | None:
        """Measure a point on test; None where the time did not suffice."""
        tests: list[GridTest] = []
        for job in self.todo:
            if job.values != values:
                continue
            place, left = self.folder / job.name, self._minutes()
            if self._late() or not run_pipeline(
                job.tested(), self.source, place, resume=True, minutes=left
            ):
                return None
            distributed.barrier()
            tests += [GridTest.open(one.name, job.seed, place) for one in job.tests]
        return tuple(tests)

    def results(self) -> GridResults:
        """The results so far."""
        many = len(self.search.seeds)
        groups = [self.todo[start : start + many] for start in range(0, len(self.todo), many)]
        return GridResults(
            search=self.search,
            data=self.dataset.name,
            contents=self.data,
            dev=next(name for name in DEV if name in self.dataset.split_names),
            select=self.todo[0].select,
            points=tuple(self._scored(group) for group in groups),
        )

    def _run(self, job: GridJob, *, resume: bool) -> bool:
        place, finished = self.folder / job.name, True
        self._link_shared(job, place)
        try:
            finished = run_pipeline(
                job.recipe, self.source, place, resume=resume, minutes=self._minutes()
            )
        except ValueError as error:
            context = RunContext(job.recipe, self.dataset, place, job.digests)
            broken = [s.name for s in job.recipe.stages if run.stage_state(context, s) != "done"]
            self.failed[job.digests[broken[0]]] = str(error)
            output(f"{_named(self.search, job)}: {error}")
        distributed.barrier()
        for digest, made in _finished(place).items():
            self.done.setdefault(digest, made)
        return finished

    def _link_shared(self, job: GridJob, place: Path) -> None:
        """Link what other points have finished into a point; the first process does.

        The note is written before the link: a note without a folder, which a kill in between
        leaves, is removed or linked anew the next time.
        """
        if distributed.rank() == 0:
            for stage in job.recipe.stages:
                made = self.done.get(job.digests[stage.name])
                here, note = place / stage.name, place / f"{stage.name}.json"
                if made is None and not here.is_dir():
                    note.unlink(missing_ok=True)
                    here.unlink(missing_ok=True)
                elif made is not None and made != here:
                    if here.is_dir() and not here.is_symlink():  # stopped here, finished there
                        shutil.rmtree(here)
                    here.unlink(missing_ok=True)
                    _remove_parts(note)
                    write_json(note, read_json(made.with_name(note.name), "the note of a stage"))
                    target = os.path.relpath(made, place)  # the folder of the search may be moved
                    here.symlink_to(target, target_is_directory=True)
        distributed.barrier()

    def _failure(self, job: GridJob) -> str:
        """Why a point will not be trained; empty if it may be."""
        return next((self.failed[d] for d in job.needed if d in self.failed), "")

    def _scored(self, group: Sequence[GridJob]) -> PointResult:
        done = [job for job in group if job.digests[job.stage] in self.done]
        return PointResult(
            values=group[0].values,
            select=group[0].select,
            seeds=len(group),
            trained=tuple(TrainedSeed.open(job, self.folder) for job in done),
            failed=next(filter(None, map(self._failure, group)), ""),
        )

    def _save(self) -> None:
        if distributed.rank() == 0:
            for name in (RESULTS, PAGE):
                _remove_parts(self.folder / name)
            write_json(self.folder / RESULTS, self.results().to_dict())

    def _late(self) -> bool:
        """Whether the time is up for any process: their clocks differ."""
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return bool(distributed.all_reduce_max(late))

    def _minutes(self) -> float | None:
        if self.deadline is None:
            return None
        return max(0.01, (self.deadline - time.monotonic()) / 60)


def _finished(point: Path) -> dict[str, Path]:
    """Folders of the stages that were finished in a point, not linked into it, by digest.

    Raises:
        ValueError: a note in it is damaged.
    """
    places = {note.with_suffix(""): noted for note, noted in run.stage_records(point).items()}
    return {
        noted.get("digest", ""): place
        for place, noted in places.items()
        if noted.get("state") == "done" and place.is_dir() and not place.is_symlink()
    }


def _remove_parts(path: Path) -> None:
    """Remove a file that a kill left half-written."""
    for part in path.parent.glob(f".{path.name}.*.part"):
        part.unlink()


def _time_left(seconds: float, done: int, left: int) -> str:
    """Expected duration of the stages that are left, from those that are finished."""
    if not done:
        return ""
    expected = seconds / done * left
    words = f"{expected:,.0f} s" if expected < 120 else f"{expected / 60:,.0f} min"
    return f", about {words} left"


# The results.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedSeed:
    """A finished training.

    Attributes:
        seed: of the repeat.
        folder: of its run, inside that of the search.
        epoch: the best one on dev.
        dev: figures of that epoch, by name.
    """

    seed: int
    folder: str
    epoch: float
    dev: Mapping[str, float]

    @classmethod
    def open(cls, job: GridJob, folder: Path) -> Self:
        """Read from the card of the trained model."""
        card = read_card(folder / job.name / job.stage / MODEL)
        epoch = float(card.provenance.get("best_epoch", 0))
        return cls(seed=job.seed, folder=job.name, epoch=epoch, dev=dict(card.metrics))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GridTest:
    """An evaluation of the best point on test.

    Attributes:
        stage: name of the evaluation.
        seed: of the repeat.
        protocol: in one sentence.
        numbers: metrics by name.
    """

    stage: str
    seed: int
    protocol: str
    numbers: Mapping[str, float]

    @classmethod
    def open(cls, stage: str, seed: int, folder: Path) -> Self:
        """Read from the folder of a run."""
        report = RetrievalEvaluation.open(folder / stage).report
        numbers = {name: round(v, 4) for name, v in zip(METRICS, report.numbers, strict=True)}
        return cls(stage=stage, seed=seed, protocol=report.setting.line(), numbers=numbers)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PointResult:
    """Result of a point.

    Attributes:
        values: one for each axis.
        select: the compared dev figure.
        seeds: number of repeats.
        trained: the finished ones, in order of the seeds.
        failed: why there will be no more; empty where there is no reason.
    """

    values: tuple[str, ...]
    select: str
    seeds: int
    trained: tuple[TrainedSeed, ...]
    failed: str = ""

    @property
    def complete(self) -> bool:
        """Whether all repeats are finished."""
        return len(self.trained) == self.seeds

    @property
    def mean(self) -> float:
        """Of the compared figure over seeds."""
        return mean(one.dev[self.select] for one in self.trained)

    @property
    def deviation(self) -> float | None:
        """Of the compared figure between seeds (n - 1); None for a single one."""
        if len(self.trained) < 2:
            return None
        return stdev(one.dev[self.select] for one in self.trained)

    def words(self) -> str:
        """Mean and deviation."""
        spread = "" if self.deviation is None else f" ± {self.deviation:.1f}"
        return f"{self.mean:.1f}{spread}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GridResults:
    """Results of a grid search.

    Attributes:
        search: the grid.
        data: name of the data.
        contents: digest of the data.
        dev: name of the split that is compared on.
        select: the compared dev figure, higher is better.
        points: in the order of the grid.
        tests: of the best point, if asked for.
    """

    search: GridSearch
    data: str
    contents: str
    dev: str
    select: str
    points: tuple[PointResult, ...]
    tests: tuple[GridTest, ...] = ()

    @property
    def ranked(self) -> tuple[PointResult, ...]:
        """Points whose seeds are all done, the best on dev first; of equals the earlier."""
        done = [point for point in self.points if point.complete]
        return tuple(sorted(done, key=lambda point: -point.mean))

    @property
    def failed(self) -> tuple[PointResult, ...]:
        """Points that cannot be trained."""
        return tuple(point for point in self.points if point.failed)

    @property
    def figure(self) -> str:
        """Title of the compared figure."""
        return "dev RSum" if self.select == "rsum" else f"dev {self.select}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        search = self.search
        return {
            "sweep": search.name,
            "recipe": search.recipe.name,
            "stage": search.compared,
            "data": {"name": self.data, "digest": self.contents},
            "split": self.dev,
            "select": self.select,
            "axes": [asdict(axis) for axis in search.axes],
            "draw": {"points": search.draw, "seed": search.seed} if search.draw else None,
            "seeds": list(search.seeds),
            "points": [
                {
                    "settings": {
                        key: value
                        for axis, value in zip(search.axes, point.values)
                        for key in axis.keys
                    },
                    "mean": point.mean if point.complete else None,
                    "deviation": point.deviation if point.complete else None,
                    "failed": point.failed or None,
                    "trained": [asdict(one) for one in point.trained],
                }
                for point in self.points
            ],
            "ranked": [self.points.index(point) for point in self.ranked],
            "tests": [asdict(test) for test in self.tests],
        }


def axis_labels(axes: Sequence[GridAxis]) -> tuple[str, ...]:
    """Names of axes, each as short as tells it from the others."""

    def endings(axis: GridAxis, many: int) -> tuple[str, ...]:
        return tuple(".".join(key.split(".")[-many:]) for key in axis.keys)

    def label(axis: GridAxis) -> str:
        for many in range(1, 1 + max(len(key.split(".")) for key in axis.keys)):
            short = endings(axis, many)
            same = any(endings(other, many) == short for other in axes if other is not axis)
            if len(set(short)) == len(short) and not same:
                return "+".join(short)
        return axis.name

    return tuple(map(label, axes))


def _page(results: GridResults) -> Analysis:
    search, best, lowest = results.search, results.ranked[0], results.ranked[-1]
    names = axis_labels(search.axes)
    reach = f"; the others go down to {lowest.mean:.1f}" if lowest.mean < best.mean else ""
    drawn = f" drawn from {search.size:,} with seed {search.seed}" if search.draw else ""
    plural = len(search.seeds) > 1
    tables = [_by_point(results, names)]
    if len(results.ranked) > 1:
        tables.append(_by_value(results, names))
    if results.tests:
        tables.append(_tested(results))
    return Analysis(
        title=f"{search.name}: {search.compared}",
        headline=(
            f"The best {results.figure} is {best.words()}, with "
            f"{search.settings(best.values)}{reach}."
        ),
        protocol=(
            f"chosen on {results.data} {results.dev}, whole split, by {results.select} of the best "
            f"epoch of {search.compared!r} ({search.recipe.name}); {len(results.ranked):,} "
            f"points{drawn}; single models; seed{'s' if plural else ''} "
            f"{', '.join(map(str, search.seeds))}"
            f"{', ± standard deviation between them' if plural else ''}"
        ),
        recipe=search.recipe.name,
        numbers=results.to_dict(),
        tables=tuple(tables),
    )


def _by_point(results: GridResults, names: Sequence[str]) -> TableBlock:
    """Points, the best first, and after them those that failed."""
    head = ("rank", *names, results.figure, "best epoch", f"in {POINTS}/")
    rows = []
    for rank, point in enumerate(results.ranked, 1):
        epochs = ", ".join(f"{one.epoch:g}" for one in point.trained)
        folders = ", ".join(Path(one.folder).name for one in point.trained)
        rows.append((str(rank), *point.values, point.words(), epochs, folders))
    rows += [(NONE, *point.values, "failed", NONE, NONE) for point in results.failed]
    reasons = [f"{', '.join(point.values)}: {point.failed}" for point in results.failed]
    keys = [
        f"{name} is {axis.name}."
        for name, axis in zip(names, results.search.axes)
        if name != axis.name
    ]
    return TableBlock(
        "Points", head, tuple(rows), "\n".join([NOTE, " ".join(keys), *reasons]).strip()
    )


def _by_value(results: GridResults, names: Sequence[str]) -> TableBlock:
    rows = []
    for place, (axis, name) in enumerate(zip(results.search.axes, names)):
        for value in axis.values:
            figures = [point.mean for point in results.ranked if point.values[place] == value]
            shown = (f"{mean(figures):.1f}", f"{max(figures):.1f}") if figures else (NONE, NONE)
            rows.append((name, value, str(len(figures)), *shown))
    head = ("key", "value", "points", f"mean {results.figure}", "best")
    return TableBlock("Values", head, tuple(rows), "Each with all points that have it.")


def _tested(results: GridResults) -> TableBlock:
    recalls = [metric for metric in METRICS if "R@" in metric or metric == METRICS[-1]]
    rows = tuple(
        (test.stage, str(test.seed), *(f"{test.numbers[metric]:.1f}" for metric in recalls))
        for test in results.tests
    )
    protocols = dict.fromkeys(
        f"{test.stage}: {without_models(test.protocol)}." for test in results.tests
    )
    head = ("stage", "seed", *recalls)
    return TableBlock("The best point on test", head, rows, "\n".join(protocols))


# Grids by name: the search that the numbers of TAGS and TAGS-DC came from (appendix A.1).
#
# The appendix gives values for the temperature, four weights (that of IRTM is 1, those of doubting
# and correcting words are equal) and the learning rate; Table 5 is what was chosen. It says neither
# which figure chose, nor whether both steps were searched together. Here it is RSum on dev: of
# step 1
# alone, "tags", or of step 2, "tags-dc", with temperature and weights the same in both steps.
#
# Departs from the paper in: for `scenes` and Flickr8k, whose models are smaller, rates stay as the
# recipe has them, and of the grid few points are drawn.


HOST: tags.Host = "uniter"
DRAWN = 6  # points on the small sets
TEMPERATURES = ("1.0", "1.5")
MASKED = ("5e-2", "1e-1")
WRITTEN = ("1e-4", "5e-4", "1e-3")
WORDS = ("5e-4", "1e-3")
RATES = ("5e-5", "4e-5", "1e-5")


def grids() -> tuple[GridSearch, ...]:
    """Every grid that has a name."""
    return tuple(make(to) for to in catalogue.SETS for make in (first_step, both_steps))


def find(name: str) -> GridSearch:
    """The grid of this name.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    known = {grid.name: grid for grid in grids()}
    if name not in known:
        raise ValueError(unknown_name(name, list(known), "a sweep"))
    return known[name]


def requested(
    name: str,
    over: Sequence[str] = (),
    *,
    stage: str | None = None,
    settings: Sequence[str] = (),
    draw: int | None = None,
    seed: int = 0,
    seeds: str = "0",
    smoke: bool = False,
) -> GridSearch:
    """The grid that a user asks for, by its name or as a recipe and axes.

    Args:
        name: of a grid, of a recipe, or a Python file.
        over: axes, each as `GridAxis.parse` reads it.
        stage: training whose dev figure is compared; none for the last one.
        settings: changed at every point.
        draw: number of points to draw; 0 for the whole grid, none for the grid's own.
        seed: of the draw.
        seeds: repeats, whole numbers between commas.
        smoke: at most 20 training steps a stage.

    Raises:
        ValueError: nothing of this name, or nothing that can be varied so.
    """
    if name.startswith(NAMED):
        if over or stage:
            raise ValueError(
                f"{name} says what is varied and compared; --over and --stage go with a recipe"
            )
        grid = find(name)
        grid = replace(grid, draw=grid.draw if draw is None else draw)
    else:
        axes = tuple(GridAxis.parse(text) for text in over)
        recipe = catalogue.find_recipe(name)
        grid = GridSearch(
            name=recipe.name, recipe=recipe, axes=axes, stage=stage or "", draw=draw or 0
        )
    try:
        repeats = tuple(int(part) for part in seeds.split(","))
    except ValueError:
        raise ValueError(
            f"--seeds {seeds}: whole numbers between commas are needed, as in 0,1,2"
        ) from None
    recipe = apply_overrides(grid.recipe, settings)
    return replace(grid, recipe=recipe, seed=seed, seeds=repeats, smoke=smoke)


def first_step(dataset: Dataset) -> GridSearch:
    """Step 1."""
    return GridSearch(
        name=f"{NAMED}tags-{dataset}",
        recipe=tags.tags(HOST, dataset),
        axes=(*_rates(dataset, tags.STEP_1), *_steps("tags")),
        stage=tags.STEP_1,
        draw=0 if dataset in LARGE else DRAWN,
        about="TAGS, appendix A.1: step 1",
    )


def both_steps(dataset: Dataset) -> GridSearch:
    """Both steps."""
    weights = tuple(f"{tags.STEP_2}.objective.{term}.weight" for term in ("doubt", "correct"))
    return GridSearch(
        name=f"{NAMED}tags-dc-{dataset}",
        recipe=tags.tags_dc(HOST, dataset),
        axes=(
            *_rates(dataset, tags.STEP_1, tags.STEP_2),
            *_steps("*"),
            GridAxis(keys=weights, values=WORDS),
        ),
        stage=tags.STEP_2,
        draw=0 if dataset in LARGE else DRAWN,
        about="TAGS-DC, appendix A.1: both steps",
    )


def _steps(stage: str) -> tuple[GridAxis, ...]:
    """The axes that both steps have."""
    return (
        GridAxis(keys=(f"{stage}.proposer.tagsgenerator.temperature",), values=TEMPERATURES),
        GridAxis(keys=(f"{stage}.objective.masked.weight",), values=MASKED),
        GridAxis(keys=(f"{stage}.objective.written.weight",), values=WRITTEN),
    )


def _rates(dataset: Dataset, *stages: str) -> tuple[GridAxis, ...]:
    if dataset not in LARGE:
        return ()
    return tuple(GridAxis(keys=(f"{stage}.rate",), values=RATES) for stage in stages)
