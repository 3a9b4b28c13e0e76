"""Grid search: train a recipe at many settings and rank them on dev.

A point of the grid is the folder of a run, ``points/DIGEST/``, named by the digest of everything
that its compared training depends on. Stages that another point has finished are linked into it
with their records, so that the run skips them: shared stages run once, a stopped search continues,
and a wider grid may use the same folder.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Self, final

import torch

from counterfoil.core import distributed
from counterfoil.core.config import parse_choice
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
from counterfoil.pipelines.publishing import MISSING, Analysis
from counterfoil.pipelines.run import DataSource, run_pipeline
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.pipelines.state import DEV, RunContext
from counterfoil.recipes import catalogue, tags
from counterfoil.recipes.models import DATASETS, LARGE
from counterfoil.report.page import TableBlock
from counterfoil.report.tables import terminal_table

PREFIX = "sweeps/"  # of the names of the built-in grids
POINTS, RESULTS, PAGE = "points", "sweep.json", "sweep.html"
MAX_POINTS = 10_000
NOTE = "The best of many points looks better on dev than it is; only test tells how good it is."


@final
@dataclass(frozen=True, kw_only=True)
class GridAxis:
    """Values of one key of a recipe, or of several keys together.

    Attributes:
        keys: as ``--set`` names them.
        values: as ``--set`` reads them.

    Raises:
        ValueError: no value, or a value twice.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        if not all(self.values) or not all(self.keys):
            raise ValueError(
                f"{self.name}={','.join(self.values)} is no axis of a sweep; write "
                "stage.key=value,value, as in online.margin=0.1,0.2"
            )
        for value, count in Counter(self.values).items():
            if count > 1:
                raise ValueError(f"{self.name} has the value {value} twice; name each value once")

    @classmethod
    def parse(cls, text: str) -> Self:
        """An axis written ``key=value,value``, or ``key+key=…`` for keys with equal values.

        Commas inside brackets and quotes belong to a value: ``betas=(0.9, 0.98),(0.9, 0.999)``.

        Raises:
            ValueError: it is not written so.
        """
        keys, _, values = text.partition("=")
        return cls(keys=tuple(key.strip() for key in keys.split("+")), values=_split(values))

    @property
    def name(self) -> str:
        """The keys, joined by +."""
        return "+".join(self.keys)

    def settings(self, value: str) -> tuple[str, ...]:
        """The ``--set`` arguments of one of the values."""
        return tuple(f"{key}={value}" for key in self.keys)


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
        ValueError: no axis, a key twice, more points to draw than there are, a seed twice or
            below 0, or no such training.
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
        for key, count in Counter(key for axis in self.axes for key in axis.keys).items():
            if count > 1:
                raise ValueError(f"{key} is varied twice; name each key once")
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
        if self.stage:
            parse_choice(self._trainings, self.stage, f"a training of {self.recipe.name}")

    @property
    def _trainings(self) -> list[str]:
        return [stage.name for stage in self.recipe.stages if isinstance(stage, Train)]

    @property
    def size(self) -> int:
        """Number of points of the whole grid."""
        return math.prod(len(axis.values) for axis in self.axes)

    @property
    def compared(self) -> str:
        """Training whose dev figure is compared."""
        return self.stage or self._trainings[-1]

    def points(self) -> dict[tuple[str, ...], tuple[Recipe, ...]]:
        """Recipes of every point, one for each seed, by the values of the axes.

        In the order of the grid: the values of the last axis change first.

        Raises:
            ValueError: a key or value that the recipe does not take.
        """
        for axis in self.axes:  # report a wrong value before many right ones are built
            for value in axis.values:
                apply_overrides(self.recipe, axis.settings(value))
        points = list(itertools.product(*(axis.values for axis in self.axes)))
        if self.draw:  # a prefix of one permutation: a longer draw holds the shorter ones
            rng = torch.Generator().manual_seed(self.seed)
            numbers = torch.randperm(self.size, generator=rng)[: self.draw].tolist()
            points = [points[number] for number in sorted(numbers)]
        return {values: self._recipes(values) for values in points}

    def _recipes(self, values: Sequence[str]) -> tuple[Recipe, ...]:
        settings = [text for axis, value in zip(self.axes, values) for text in axis.settings(value)]
        recipe = apply_overrides(self.recipe, settings)
        recipe = catalogue.smoke_recipe(recipe) if self.smoke else recipe
        return tuple(
            replace(recipe, stages=tuple(_with_seed(stage, seed) for stage in recipe.stages))
            for seed in self.seeds
        )

    def describe(self, values: Sequence[str]) -> str:
        """Keys and values of a point."""
        return ", ".join(f"{axis.name}={value}" for axis, value in zip(self.axes, values))


def _with_seed(stage: Stage, seed: int) -> Stage:
    """The stage, with a number added to the seed if it is a training."""
    if not isinstance(stage, Train):
        return stage
    return replace(stage, plan=replace(stage.plan, seed=stage.plan.seed + seed))


@final
@dataclass(frozen=True, kw_only=True)
class GridJob:
    """A point with one seed.

    Attributes:
        label: values and seed, in words.
        values: one for each axis.
        seed: of the repeat.
        recipe: the compared training and the stages it depends on.
        stage: the compared training.
        digests: of the stages, by name.
        tests: evaluations of the training on test.
    """

    label: str
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
    def folder(self) -> str:
        """Folder of the run, inside that of the search."""
        return f"{POINTS}/{self.digests[self.stage]}"

    @property
    def select(self) -> str:
        """Dev figure that chooses the epoch of the compared training."""
        stage = self.recipe.stage(self.stage)
        assert isinstance(stage, Train)
        return stage.plan.select

    def with_tests(self) -> Recipe:
        """The recipe with the evaluations on test."""
        return replace(self.recipe, stages=(*self.recipe.stages, *self.tests))


def grid_jobs(search: GridSearch, data: str) -> tuple[GridJob, ...]:
    """All trainings, the seeds of a point one after another.

    Args:
        search: the grid.
        data: digest of the data.

    Raises:
        ValueError: two points train the same, or choose epochs by different figures.
    """
    jobs: dict[str, GridJob] = {}
    for values, recipes in search.points().items():
        for seed, recipe in zip(search.seeds, recipes):
            job = _job(search, values, seed, recipe, data)
            other = jobs.setdefault(job.folder, job)
            if other is not job:
                raise ValueError(
                    f"{other.label} and {job.label} train the same {job.stage!r}; "
                    "vary what it depends on, or name another training with --stage"
                )
    selects = sorted({job.select for job in jobs.values()})
    if len(selects) > 1:
        raise ValueError(
            f"points that choose their epochs by different figures, {' and '.join(selects)}, "
            "cannot be compared; leave select as it is"
        )
    return tuple(jobs.values())


def _job(
    search: GridSearch, values: tuple[str, ...], seed: int, recipe: Recipe, data: str
) -> GridJob:
    stage = search.compared
    needed = dependencies(recipe, stage)
    names = {one.name for one in needed}
    tests = tuple(  # the recipe's own tests of this training alone, or all of test as it is
        one
        for one in recipe.stages
        if isinstance(one, Evaluate)
        and (one.using, one.split) == ((stage,), "test")
        and names.issuperset(one.reads)
    ) or (Evaluate(name=f"test-{stage}", using=(stage,)),)
    return GridJob(
        label=search.describe(values) + (f", seed {seed}" if len(search.seeds) > 1 else ""),
        values=values,
        seed=seed,
        recipe=replace(recipe, stages=needed),
        stage=stage,
        digests=stage_digests(replace(recipe, stages=(*needed, *tests)), data),
        tests=tests,
    )


def dependencies(recipe: Recipe, *names: str) -> tuple[Stage, ...]:
    """Stages and all that they depend on, in order."""
    wanted = list(names)
    for name in wanted:  # grows by the inputs of each stage
        wanted += [read for read in recipe.stage(name).reads if read not in wanted]
    return tuple(stage for stage in recipe.stages if stage.name in wanted)


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
        resume: continue trainings that were stopped.
        minutes: stop after this long.
        test: evaluate the best point, and nothing else, on test.

    Returns:
        Whether everything was done before the time was up.

    Raises:
        ValueError: a key or value that the recipe does not take, points that train the same, data
            without a dev split, a folder of another search, a training that was stopped and is not
            to be resumed, or no point can be trained.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    distributed.init()
    dataset = source.open()
    data = data_contents(dataset)
    jobs = grid_jobs(search, data)
    _check_folder(search, data, folder)
    _check_jobs(jobs, dataset, folder, resume=resume, test=test)
    grid = _GridRun(search, source, folder, jobs, dataset, data, deadline)
    distributed.barrier()  # no process starts before all have checked the folder
    if not grid.train(resume=resume):
        return False
    results = grid.results()
    if not results["ranked"]:
        first = next(point["failed"] for point in results["points"] if point["failed"])
        raise ValueError(f"no point can be trained; of the first: {first}")
    if test:
        tests = grid.test(_values(search, results["points"][results["ranked"][0]]))
        if tests is None:
            return False
        results["tests"] = tests
    _analysis(search, results).publish(folder / PAGE)
    return True


def show_grid(search: GridSearch) -> None:
    """Print the points of a grid and count their stages.

    Raises:
        ValueError: a key or value that the recipe does not take, or points that train the same.
    """
    jobs = grid_jobs(search, "")
    points = dict.fromkeys(job.values for job in jobs)
    rows = tuple((str(number), *values) for number, values in enumerate(points, 1))
    head = ("point", *axis_labels(search.axes))
    console().print(terminal_table(TableBlock(search.name, head, rows, search.about)))
    kinds = {d: s.kind for job in jobs for d, s in zip(job.needed, job.recipe.stages)}
    counts = ", ".join(f"{count:,} {kind}" for kind, count in Counter(kinds.values()).items())
    unshared = sum(len(job.needed) for job in jobs)
    shared = f" ({unshared:,} if none were shared)" if unshared > len(kinds) else ""
    repeats = f" × {len(search.seeds)} seeds" if len(search.seeds) > 1 else ""
    output(
        f"{len(points):,} points{repeats}, compared on dev by {search.compared!r}: "
        f"{len(kinds):,} stages, {counts}{shared}"
    )


def _check_folder(search: GridSearch, data: str, folder: Path) -> None:
    """Refuse the folder of another search."""
    run.check_run_folder(folder)
    if not (folder / RESULTS).exists():
        return
    saved = read_json(folder / RESULTS, "the results of a sweep")
    own = search.recipe.name, search.compared, data
    if not isinstance(saved, dict) or own != (
        saved.get("recipe"),
        saved.get("stage"),
        saved.get("data", {}).get("digest"),
    ):
        raise ValueError(
            f"{folder} holds a sweep of another recipe, training or data; choose another --output"
        )


def _check_jobs(
    jobs: Sequence[GridJob], dataset: ImageTextDataset, folder: Path, *, resume: bool, test: bool
) -> None:
    """Check every stage of every job before the first is run."""
    if not set(DEV) & set(dataset.split_names):
        raise ValueError(f"{dataset.name} has no dev split, and a sweep compares on nothing else")
    checked: set[str] = set()
    for job in jobs:
        recipe = job.with_tests() if test else job.recipe
        context = RunContext(recipe, dataset, folder / job.folder, job.digests)
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
    jobs: Sequence[GridJob]
    dataset: ImageTextDataset
    data: str
    deadline: float | None
    done: dict[str, Path] = field(default_factory=dict)  # folders of finished stages, by digest
    failed: dict[str, str] = field(default_factory=dict)  # reasons, by the digest of the stage

    def __post_init__(self) -> None:
        for point in sorted((self.folder / POINTS).glob("*/")):
            self.done |= _finished_stages(point)

    def train(self, *, resume: bool) -> bool:
        """Train the missing points; False where the time was up first."""
        needed = {digest for job in self.jobs for digest in job.needed}
        began, before = time.monotonic(), len(needed & self.done.keys())
        self._save()
        for number, job in enumerate(self.jobs, 1):
            if job.digests[job.stage] in self.done or self._failure(job):
                continue
            done = len(needed & self.done.keys())
            left = _time_left(time.monotonic() - began, done - before, len(needed) - done)
            output(
                f"{self.search.name}, {number} of {len(self.jobs)}: {job.label} "
                f"({done} of {len(needed)} stages done{left})"
            )
            finished = self._run(job, resume=resume)
            self._save()
            if not finished:
                return False
        return True

    def test(self, values: tuple[str, ...]) -> list[dict[str, Any]] | None:
        """Evaluate a point on test; None where the time was up first."""
        tests: list[dict[str, Any]] = []
        for job in self.jobs:
            if job.values != values:
                continue
            place = self.folder / job.folder
            if not run_pipeline(
                job.with_tests(), self.source, place, resume=True, minutes=self._minutes()
            ):
                return None
            distributed.barrier()
            for stage in job.tests:
                report = RetrievalEvaluation.open(place / stage.name).report
                numbers = zip(METRICS, report.numbers, strict=True)
                tests.append(
                    {
                        "stage": stage.name,
                        "seed": job.seed,
                        "protocol": report.setting.line(),
                        "numbers": {name: round(value, 4) for name, value in numbers},
                    }
                )
        return tests

    def results(self) -> dict[str, Any]:
        """The results so far, as ``sweep.json`` holds them."""
        search, repeats = self.search, len(self.search.seeds)
        points = [
            self._point(self.jobs[start : start + repeats])
            for start in range(0, len(self.jobs), repeats)
        ]
        done = [number for number, point in enumerate(points) if point["mean"] is not None]
        return {
            "sweep": search.name,
            "recipe": search.recipe.name,
            "stage": search.compared,
            "data": {"name": self.dataset.name, "digest": self.data},
            "split": next(name for name in DEV if name in self.dataset.split_names),
            "select": self.jobs[0].select,
            "axes": [asdict(axis) for axis in search.axes],
            "draw": {"points": search.draw, "seed": search.seed} if search.draw else None,
            "seeds": list(search.seeds),
            "points": points,
            "ranked": sorted(done, key=lambda number: -points[number]["mean"]),
            "tests": [],
        }

    def _run(self, job: GridJob, *, resume: bool) -> bool:
        place, finished = self.folder / job.folder, True
        if distributed.rank() == 0:
            self._link_shared(job, place)
        distributed.barrier()
        try:
            finished = run_pipeline(
                job.recipe, self.source, place, resume=resume, minutes=self._minutes()
            )
        except ValueError as error:
            context = RunContext(job.recipe, self.dataset, place, job.digests)
            broken = [s.name for s in job.recipe.stages if run.stage_state(context, s) != "done"]
            self.failed[job.digests[broken[0]]] = str(error)
            output(f"{job.label}: {error}")
        distributed.barrier()
        for digest, made in _finished_stages(place).items():
            self.done.setdefault(digest, made)
        return finished

    def _link_shared(self, job: GridJob, place: Path) -> None:
        """Link stages that other points have finished into a point.

        The record is written before the link: a record without a folder, which a kill in between
        leaves, is removed or linked anew the next time.
        """
        for stage in job.recipe.stages:
            made = self.done.get(job.digests[stage.name])
            here, record = place / stage.name, place / f"{stage.name}.json"
            if made == here or (made is None and here.is_dir()):
                continue
            if here.is_dir() and not here.is_symlink():  # stopped here, finished there
                shutil.rmtree(here)
            here.unlink(missing_ok=True)
            if made is None:
                record.unlink(missing_ok=True)
                continue
            _remove_parts(record)
            write_json(record, read_json(made.with_name(record.name), "the note of a stage"))
            target = os.path.relpath(made, place)  # the folder of the search may be moved
            here.symlink_to(target, target_is_directory=True)

    def _failure(self, job: GridJob) -> str:
        """Why a point will not be trained; empty if it may be."""
        return next((self.failed[d] for d in job.needed if d in self.failed), "")

    def _point(self, jobs: Sequence[GridJob]) -> dict[str, Any]:
        """Results of the seeds of a point; mean and deviation once all are finished."""
        done = [job for job in jobs if job.digests[job.stage] in self.done]
        trained = [_dev_result(job, self.folder) for job in done]
        dev = [one["dev"][jobs[0].select] for one in trained]
        complete = len(dev) == len(jobs)
        axes = zip(self.search.axes, jobs[0].values)
        return {
            "settings": {key: value for axis, value in axes for key in axis.keys},
            "mean": mean(dev) if complete else None,
            "deviation": stdev(dev) if complete and len(dev) > 1 else None,
            "failed": next(filter(None, map(self._failure, jobs)), None),
            "trained": trained,
        }

    def _save(self) -> None:
        if distributed.rank() == 0:
            for name in (RESULTS, PAGE):
                _remove_parts(self.folder / name)
            write_json(self.folder / RESULTS, self.results())

    def _minutes(self) -> float | None:
        """Minutes left, or None for no limit."""
        return None if self.deadline is None else (self.deadline - time.monotonic()) / 60


def _finished_stages(point: Path) -> dict[str, Path]:
    """Folders of the stages that were finished in a point, not linked into it, by digest."""
    records = {path.with_suffix(""): record for path, record in run.stage_records(point).items()}
    return {
        record.get("digest", ""): place
        for place, record in records.items()
        if record.get("state") == "done" and place.is_dir() and not place.is_symlink()
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


# Results


def _dev_result(job: GridJob, folder: Path) -> dict[str, Any]:
    """Best epoch and dev figures of a finished training, from the card of its model."""
    card = read_card(folder / job.folder / job.stage / MODEL)
    epoch = float(card.provenance.get("best_epoch", 0))
    return {"seed": job.seed, "folder": job.folder, "epoch": epoch, "dev": dict(card.metrics)}


def axis_labels(axes: Sequence[GridAxis]) -> tuple[str, ...]:
    """Names of axes, shortened to the last parts of their keys that tell them apart."""

    def endings(axis: GridAxis, parts: int) -> tuple[str, ...]:
        return tuple(".".join(key.split(".")[-parts:]) for key in axis.keys)

    def label(axis: GridAxis) -> str:
        for parts in range(1, 1 + max(len(key.split(".")) for key in axis.keys)):
            short = endings(axis, parts)
            same = any(endings(other, parts) == short for other in axes if other is not axis)
            if len(set(short)) == len(short) and not same:
                return "+".join(short)
        return axis.name

    return tuple(map(label, axes))


def _analysis(search: GridSearch, results: Mapping[str, Any]) -> Analysis:
    """The page of the results; `results` as in ``sweep.json``, with at least one ranked point."""
    ranked = [results["points"][number] for number in results["ranked"]]
    best, lowest = ranked[0], ranked[-1]
    worse = f"; the others go down to {lowest['mean']:.1f}" if lowest["mean"] < best["mean"] else ""
    drawn = f" drawn from {search.size:,} with seed {search.seed}" if search.draw else ""
    plural = len(search.seeds) > 1
    figure = "dev RSum" if results["select"] == "rsum" else f"dev {results['select']}"
    tables = [_point_table(search, results, ranked, figure)]
    if len(ranked) > 1:
        tables.append(_value_table(search, ranked, figure))
    if results["tests"]:
        tables.append(_test_table(results["tests"]))
    return Analysis(
        title=f"{search.name}: {search.compared}",
        headline=(
            f"The best {figure} is {_mean_text(best)}, with "
            f"{search.describe(_values(search, best))}{worse}."
        ),
        protocol=(
            f"chosen on {results['data']['name']} {results['split']}, whole split, by "
            f"{results['select']} of the best epoch of {search.compared!r} ({search.recipe.name}); "
            f"{len(ranked):,} points{drawn}; single models; seed{'s' if plural else ''} "
            f"{', '.join(map(str, search.seeds))}"
            f"{', ± standard deviation between them' if plural else ''}"
        ),
        recipe=search.recipe.name,
        numbers=results,
        tables=tuple(tables),
    )


def _values(search: GridSearch, point: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(point["settings"][axis.keys[0]] for axis in search.axes)


def _mean_text(point: Mapping[str, Any]) -> str:
    spread = "" if point["deviation"] is None else f" ± {point['deviation']:.1f}"
    return f"{point['mean']:.1f}{spread}"


def _point_table(
    search: GridSearch, results: Mapping[str, Any], ranked: Sequence[Mapping[str, Any]], figure: str
) -> TableBlock:
    """Points, the best first, and after them those that failed."""
    names = axis_labels(search.axes)
    rows = []
    for rank, point in enumerate(ranked, 1):
        epochs = ", ".join(f"{one['epoch']:g}" for one in point["trained"])
        folders = ", ".join(Path(one["folder"]).name for one in point["trained"])
        rows.append((str(rank), *_values(search, point), _mean_text(point), epochs, folders))
    failed = [(_values(search, p), p["failed"]) for p in results["points"] if p["failed"]]
    rows += [(MISSING, *values, "failed", MISSING, MISSING) for values, _ in failed]
    reasons = [f"{', '.join(values)}: {reason}" for values, reason in failed]
    long = [f"{name} is {a.name}." for name, a in zip(names, search.axes) if name != a.name]
    note = "\n".join([NOTE, " ".join(long), *reasons]).strip()
    head = ("rank", *names, figure, "best epoch", f"in {POINTS}/")
    return TableBlock("Points", head, tuple(rows), note)


def _value_table(
    search: GridSearch, ranked: Sequence[Mapping[str, Any]], figure: str
) -> TableBlock:
    rows = []
    for axis, name in zip(search.axes, axis_labels(search.axes)):
        for value in axis.values:
            means = [p["mean"] for p in ranked if p["settings"][axis.keys[0]] == value]
            shown = (f"{mean(means):.1f}", f"{max(means):.1f}") if means else (MISSING, MISSING)
            rows.append((name, value, str(len(means)), *shown))
    head = ("key", "value", "points", f"mean {figure}", "best")
    return TableBlock("Values", head, tuple(rows), "Each with all points that have it.")


def _test_table(tests: Sequence[Mapping[str, Any]]) -> TableBlock:
    recalls = [metric for metric in METRICS if "R@" in metric or metric == METRICS[-1]]
    rows = [
        (test["stage"], str(test["seed"]), *(f"{test['numbers'][name]:.1f}" for name in recalls))
        for test in tests
    ]
    protocols = dict.fromkeys(f"{t['stage']}: {without_models(t['protocol'])}." for t in tests)
    head = ("stage", "seed", *recalls)
    return TableBlock("The best point on test", head, tuple(rows), "\n".join(protocols))


# Grids by name: the search of appendix A.1, from which the numbers of TAGS and TAGS-DC come.
#
# The appendix gives values for the temperature, four weights (that of IRTM is 1, those of doubting
# and correcting words are equal) and the learning rate; Table 5 has the chosen ones. It says
# neither which figure chose them, nor whether both steps were searched together. Here it is RSum on
# dev: of step 1 alone, "tags", or of step 2, "tags-dc", with temperature and weights the same in
# both steps.
#
# Departs from the paper in: for `scenes` and Flickr8k, whose models are smaller, rates stay as the
# recipe has them, and few points of the grid are drawn.

DRAWN = 6  # points on the small sets


def _tags_grid(kind: str, dataset: str) -> GridSearch:
    """The grid of step 1, "tags", or of both steps, "tags-dc"."""
    both = kind == "tags-dc"
    steps = (tags.STEP_1, tags.STEP_2) if both else (tags.STEP_1,)
    varied = "*" if both else tags.STEP_1
    axes = [f"{step}.rate=5e-5,4e-5,1e-5" for step in steps if dataset in LARGE]
    axes += [
        f"{varied}.proposer.tagsgenerator.temperature=1.0,1.5",
        f"{varied}.objective.masked.weight=5e-2,1e-1",
        f"{varied}.objective.written.weight=1e-4,5e-4,1e-3",
    ]
    if both:
        weights = (f"{tags.STEP_2}.objective.{term}.weight" for term in ("doubt", "correct"))
        axes.append(f"{'+'.join(weights)}=5e-4,1e-3")
    return GridSearch(
        name=f"{PREFIX}{kind}-{dataset}",
        recipe=tags.tags_recipe(f"{kind}/", "uniter", dataset),
        axes=tuple(map(GridAxis.parse, axes)),
        stage=steps[-1],
        draw=0 if dataset in LARGE else DRAWN,
        about=f"{kind.upper()}, appendix A.1: {'both steps' if both else 'step 1'}",
    )


def named_grids() -> dict[str, GridSearch]:
    """Every built-in grid by name."""
    grids = [_tags_grid(kind, dataset) for dataset in DATASETS for kind in ("tags", "tags-dc")]
    return {grid.name: grid for grid in grids}


def grid_from_options(
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
    """Build the grid for the options of ``counterfoil sweep``.

    Args:
        name: of a grid, of a recipe, or a Python file.
        over: axes, each as `GridAxis.parse` reads it.
        stage: training whose dev figure is compared; None for the last one.
        settings: changed at every point.
        draw: number of points to draw; 0 for the whole grid, None for the grid's own.
        seed: of the draw.
        seeds: repeats, whole numbers between commas.
        smoke: at most 20 training steps a stage.

    Raises:
        ValueError: no such grid or recipe, or a setting that it does not take.
    """
    if name.startswith(PREFIX):
        if over or stage:
            raise ValueError(
                f"{name} says what is varied and compared; --over and --stage go with a recipe"
            )
        grids = named_grids()
        grid = grids[parse_choice(grids, name, "a sweep")]
        grid = grid if draw is None else replace(grid, draw=draw)
    else:
        axes = tuple(map(GridAxis.parse, over))
        recipe = catalogue.find_recipe(name)
        grid = GridSearch(
            name=recipe.name, recipe=recipe, axes=axes, stage=stage or "", draw=draw or 0
        )
    try:
        repeats = tuple(map(int, seeds.split(",")))
    except ValueError:
        raise ValueError(
            f"--seeds {seeds}: whole numbers between commas are needed, as in 0,1,2"
        ) from None
    recipe = apply_overrides(grid.recipe, settings)
    return replace(grid, recipe=recipe, seed=seed, seeds=repeats, smoke=smoke)
