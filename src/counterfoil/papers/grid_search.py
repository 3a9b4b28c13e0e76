"""Grid search: train a recipe at many settings and rank them on dev.

A point with a seed is the folder of a run, ``points/DIGEST/``, named by the digest of everything
that its compared training depends on. Stages that another point has finished are read from there:
shared stages run once, a stopped search continues, and a wider grid may use the same folder.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Self, final

import torch

from counterfoil.core import distributed
from counterfoil.core.config import parse_choice
from counterfoil.core.console import console, output
from counterfoil.core.io import parsing, read_json, write_json, write_lock
from counterfoil.core.resumable import difference
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.metrics import METRICS, without_models
from counterfoil.model import MODEL, read_card
from counterfoil.papers.systems import DATASETS, LARGE
from counterfoil.papers.tags import recipe as tags
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
from counterfoil.pipelines.stages.evaluate import RetrievalEvaluation
from counterfoil.pipelines.state import DEV, RunContext
from counterfoil.recipes.catalogue import find_recipe
from counterfoil.report.page import TableBlock
from counterfoil.report.tables import terminal_table

PREFIX = "sweeps/"  # of the names of the built-in grids
POINTS, RESULTS, PAGE = "points", "sweep.json", "sweep.html"
MAX_POINTS = 10_000
NOTE = "The best of many points looks better on dev than it is; only test tells how good it is."


@final
@dataclass(frozen=True, kw_only=True)
class GridAxis:
    """Values of one key of a recipe, or of several keys together, as ``--set`` takes them."""

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

        Commas inside brackets belong to a value: ``betas=(0.9, 0.98),(0.9, 0.999)``.
        """
        keys, _, rest = text.partition("=")
        values, depth = [""], 0
        for letter in rest:
            depth += (letter in "([{") - (letter in ")]}")
            if letter == "," and not depth:
                values.append("")
            else:
                values[-1] += letter
        return cls(
            keys=tuple(key.strip() for key in keys.split("+")),
            values=tuple(value.strip() for value in values),
        )

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
        about: one sentence.
    """

    name: str
    recipe: Recipe
    axes: tuple[GridAxis, ...]
    stage: str = ""
    draw: int = 0
    seed: int = 0
    seeds: tuple[int, ...] = (0,)
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
            seeds = ",".join(map(str, self.seeds))
            raise ValueError(f"--seeds {seeds}: different whole numbers from 0 on are needed")
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

    def points(self) -> list[tuple[str, ...]]:
        """Values of the axes at every point; those of the last axis change first."""
        points = list(itertools.product(*(axis.values for axis in self.axes)))
        if self.draw:  # a prefix of one permutation: a longer draw holds the shorter ones
            rng = torch.Generator().manual_seed(self.seed)
            numbers = torch.randperm(self.size, generator=rng)[: self.draw].tolist()
            points = [points[number] for number in sorted(numbers)]
        return points

    def recipes(self, values: Sequence[str]) -> tuple[Recipe, ...]:
        """The recipe at a point, once for each seed."""
        settings = [text for axis, value in zip(self.axes, values) for text in axis.settings(value)]
        recipe = apply_overrides(self.recipe, settings)

        def seeded(stage: Train, seed: int) -> Train:
            return replace(stage, plan=replace(stage.plan, seed=stage.plan.seed + seed))

        return tuple(recipe.with_changed(Train, partial(seeded, seed=n)) for n in self.seeds)

    def describe(self, values: Sequence[str]) -> str:
        """Keys and values of a point."""
        return ", ".join(f"{axis.name}={value}" for axis, value in zip(self.axes, values))


@final
@dataclass(frozen=True, kw_only=True)
class GridJob:
    """A point with one seed.

    Attributes:
        label: values and seed, in words.
        values: one for each axis.
        seed: of the repeat.
        recipe: the compared training and the stages it depends on.
        compared: the compared training.
        digests: of the stages, by name.
        tests: evaluations of the training on test.
    """

    label: str
    values: tuple[str, ...]
    seed: int
    recipe: Recipe
    compared: Train
    digests: Mapping[str, str]
    tests: tuple[Evaluate, ...]

    @property
    def needed(self) -> tuple[str, ...]:
        """Digests of all stages but the tests, in order."""
        return tuple(self.digests[stage.name] for stage in self.recipe.stages)

    @property
    def folder(self) -> str:
        """Folder of the run, inside that of the search."""
        return f"{POINTS}/{self.digests[self.compared.name]}"

    def with_tests(self) -> Recipe:
        """The recipe with the evaluations on test."""
        return replace(self.recipe, stages=(*self.recipe.stages, *self.tests))


def grid_jobs(search: GridSearch, data: str) -> tuple[GridJob, ...]:
    """All trainings, the seeds of a point one after another."""
    for axis in search.axes:  # report a wrong value before many right ones are built
        for value in axis.values:
            apply_overrides(search.recipe, axis.settings(value))
    jobs: dict[str, GridJob] = {}
    for values in search.points():
        for seed, recipe in zip(search.seeds, search.recipes(values)):
            job = _job(search, values, seed, recipe, data)
            other = jobs.setdefault(job.folder, job)
            if other is not job:
                raise ValueError(
                    f"{other.label} and {job.label} train the same {search.compared!r}; "
                    "vary what it depends on, or name another training with --stage"
                )
    selects = sorted({job.compared.plan.select for job in jobs.values()})
    if len(selects) > 1:
        raise ValueError(
            f"points that choose their epochs by different figures, {' and '.join(selects)}, "
            "cannot be compared; leave select as it is"
        )
    return tuple(jobs.values())


def _job(
    search: GridSearch, values: tuple[str, ...], seed: int, recipe: Recipe, data: str
) -> GridJob:
    compared = recipe.stage(search.compared)
    assert isinstance(compared, Train)
    needed = dependencies(recipe, compared.name)
    names = {stage.name for stage in needed}
    tests = tuple(  # the recipe's own tests of this training alone, or all of test as it is
        stage
        for stage in recipe.stages
        if isinstance(stage, Evaluate)
        and (stage.using, stage.split) == ((compared.name,), "test")
        and names.issuperset(stage.reads)
    ) or (Evaluate(name=f"test-{compared.name}", using=(compared.name,)),)
    return GridJob(
        label=search.describe(values) + (f", seed {seed}" if len(search.seeds) > 1 else ""),
        values=values,
        seed=seed,
        recipe=replace(recipe, stages=needed),
        compared=compared,
        digests=stage_digests(replace(recipe, stages=(*needed, *tests)), data),
        tests=tests,
    )


def dependencies(recipe: Recipe, *names: str) -> tuple[Stage, ...]:
    """Stages and all that they depend on, in order."""
    wanted = list(names)
    for name in wanted:  # grows by the inputs of each stage
        wanted += [read for read in recipe.stage(name).reads if read not in wanted]
    return tuple(stage for stage in recipe.stages if stage.name in wanted)


def show_grid(search: GridSearch) -> None:
    """Print the points of a grid and count their stages."""
    jobs = grid_jobs(search, "")
    points = dict.fromkeys(job.values for job in jobs)
    rows = tuple((str(number), *values) for number, values in enumerate(points, 1))
    head = ("point", *_axis_labels(search.axes))
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


def run_grid(
    search: GridSearch,
    source: run.DataSource,
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
        ValueError: as `grid_jobs`; data without a dev split, a folder of another search, a training
            that was stopped and is not to be resumed, or no point can be trained.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    distributed.init()
    dataset = source.open()
    data = data_contents(dataset)
    grid = _GridRun(search, source, folder, grid_jobs(search, data), dataset, data, deadline)
    run.check_run_folder(folder)
    # of two searches in one folder the second is refused
    with distributed.on_rank_0(write_lock(folder / ".lock", folder)):
        grid.check(resume=resume, test=test)
        distributed.barrier()  # no process starts before all have checked the folder
        if not grid.train(resume=resume):
            return False
        results = grid.results()
        if not results["ranked"]:
            reason = next(iter(grid.failed.values()))
            raise ValueError(f"no point can be trained; of the first: {reason}")
        if test:
            best = results["points"][results["ranked"][0]]
            results["tests"] = tests = grid.test(_values(search, best))
            if tests is None:
                return False
        _analysis(search, results).publish(folder / PAGE)
    return True


@final
@dataclass(eq=False)
class _GridRun:
    """The trainings of a grid, one after another."""

    search: GridSearch
    source: run.DataSource
    folder: Path
    jobs: Sequence[GridJob]
    dataset: ImageTextDataset
    data: str
    deadline: float | None
    done: dict[str, Path] = field(default_factory=dict)  # folders of finished stages, by digest
    failed: dict[str, str] = field(default_factory=dict)  # reasons, by the digest of the stage

    def check(self, *, resume: bool, test: bool) -> None:
        """Refuse a folder of another search, and any stage that cannot run, before the first."""
        if (self.folder / RESULTS).exists():
            saved = read_json(self.folder / RESULTS, "the results of a sweep")
            current = self.search.recipe.name, self.search.compared, self.data
            with parsing(self.folder / RESULTS, "the results of a sweep"):
                stored = saved["recipe"], saved["stage"], saved["data"]["digest"]
            if current != stored:
                names = ("recipe", "training", "digest of the data")
                before, now = (dict(zip(names, side, strict=True)) for side in (stored, current))
                raise ValueError(
                    f"{self.folder} holds a sweep of another recipe, training or data: "
                    f"{difference(before, now)}; choose another --output"
                )
        if not set(DEV) & set(self.dataset.split_names):
            raise ValueError(
                f"{self.dataset.name} has no dev split, and a sweep compares on nothing else"
            )
        for point in sorted((self.folder / POINTS).glob("*/")):
            self.done |= _finished_stages(point)
        checked = set[str]()
        for job in self.jobs:
            recipe = job.with_tests() if test else job.recipe
            context = self._context(job, recipe)
            for stage in recipe.stages:
                run.admit_stage(context, stage, resume=resume or stage in job.tests)
                if job.digests[stage.name] not in checked:
                    stage.check(context)
                checked.add(job.digests[stage.name])

    def train(self, *, resume: bool) -> bool:
        """Train the missing points; False where the time was up first."""
        self._save()
        for number, job in enumerate(self.jobs, 1):
            if job.digests[job.compared.name] in self.done or self._failure(job):
                continue
            output(f"{self.search.name}, {number} of {len(self.jobs)}: {job.label}")
            finished = True
            try:
                finished = self._run(job, job.recipe, resume=resume)
            except ValueError as error:
                context, stages = self._context(job, job.recipe), job.recipe.stages
                broken = next(s for s in stages if run.stage_state(context, s) != "done")
                self.failed[job.digests[broken.name]] = str(error)
                output(f"{job.label}: {error}")
            distributed.barrier()
            self.done |= _finished_stages(self.folder / job.folder)
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
            if not self._run(job, job.with_tests(), resume=True):
                return None
            distributed.barrier()
            for stage in job.tests:
                report = RetrievalEvaluation.open(self.folder / job.folder / stage.name).report
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
            "select": self.jobs[0].compared.plan.select,
            "axes": [asdict(axis) for axis in search.axes],
            "draw": {"points": search.draw, "seed": search.seed} if search.draw else None,
            "seeds": list(search.seeds),
            "points": points,
            "ranked": sorted(done, key=lambda number: -points[number]["mean"]),
            "tests": [],
        }

    def _context(self, job: GridJob, recipe: Recipe) -> RunContext:
        place = self.folder / job.folder
        return RunContext(recipe, self.dataset, place, job.digests, shared=self.done)

    def _run(self, job: GridJob, recipe: Recipe, *, resume: bool) -> bool:
        minutes = None if self.deadline is None else (self.deadline - time.monotonic()) / 60
        place = self.folder / job.folder
        return run.run_pipeline(
            recipe, self.source, place, resume=resume, minutes=minutes, shared=self.done
        )

    def _failure(self, job: GridJob) -> str:
        """Return the reason why a point cannot be trained; "" if it can."""
        return next((self.failed[d] for d in job.needed if d in self.failed), "")

    def _point(self, jobs: Sequence[GridJob]) -> dict[str, Any]:
        """Results of the seeds of a point; mean and deviation once all are finished."""
        trained: list[dict[str, Any]] = []
        for job in jobs:
            if job.digests[job.compared.name] in self.done:
                card = read_card(self.folder / job.folder / job.compared.name / MODEL)
                epoch, dev = float(card.provenance.get("best_epoch", 0)), dict(card.metrics)
                one = {"seed": job.seed, "folder": job.folder, "epoch": epoch, "dev": dev}
                trained.append(one)
        figures = [training["dev"][jobs[0].compared.plan.select] for training in trained]
        complete = len(figures) == len(jobs)
        axes = zip(self.search.axes, jobs[0].values)
        return {
            "settings": {key: value for axis, value in axes for key in axis.keys},
            "mean": mean(figures) if complete else None,
            "deviation": stdev(figures) if complete and len(figures) > 1 else None,
            "failed": next(filter(None, map(self._failure, jobs)), None),
            "trained": trained,
        }

    def _save(self) -> None:
        if distributed.rank() == 0:
            write_json(self.folder / RESULTS, self.results())


def _finished_stages(point: Path) -> dict[str, Path]:
    """Folders of the finished stages of a point, by digest."""
    return {
        record.get("digest", ""): path.with_suffix("")
        for path, record in run.stage_records(point).items()
        if record.get("state") == "done" and path.with_suffix("").is_dir()
    }


def _axis_labels(axes: Sequence[GridAxis]) -> tuple[str, ...]:
    """The last two parts of each key of an axis; the whole keys where two axes would be alike."""
    short = ["+".join(".".join(key.split(".")[-2:]) for key in axis.keys) for axis in axes]
    return tuple(
        label if short.count(label) == 1 else axis.name for label, axis in zip(short, axes)
    )


def _analysis(search: GridSearch, results: Mapping[str, Any]) -> Analysis:
    """The page of the results; `results` as in ``sweep.json``, with at least one ranked point."""
    ranked = [results["points"][number] for number in results["ranked"]]
    best, lowest = ranked[0], ranked[-1]
    worse = f"; the others go down to {lowest['mean']:.1f}" if lowest["mean"] < best["mean"] else ""
    draw_note = f" drawn from {search.size:,} with seed {search.seed}" if search.draw else ""
    plural = len(search.seeds) > 1
    figure = "dev RSum" if results["select"] == "rsum" else f"dev {results['select']}"
    tables = [_point_table(search, results, ranked, figure)]
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
            f"{len(ranked):,} points{draw_note}; single models; seed{'s' if plural else ''} "
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
    rows = []
    for rank, point in enumerate(ranked, 1):
        epochs = ", ".join(f"{training['epoch']:g}" for training in point["trained"])
        folders = ", ".join(Path(training["folder"]).name for training in point["trained"])
        rows.append((str(rank), *_values(search, point), _mean_text(point), epochs, folders))
    failed = [(_values(search, p), p["failed"]) for p in results["points"] if p["failed"]]
    rows += [(MISSING, *values, "failed", MISSING, MISSING) for values, _ in failed]
    note = "\n".join([NOTE, *(f"{', '.join(values)}: {reason}" for values, reason in failed)])
    head = ("rank", *_axis_labels(search.axes), figure, "best epoch", f"in {POINTS}/")
    return TableBlock("Points", head, tuple(rows), note)


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
        recipe=find_recipe(f"{kind}/uniter-{dataset}"),
        axes=tuple(map(GridAxis.parse, axes)),
        stage=steps[-1],
        draw=0 if dataset in LARGE else DRAWN,
        about=f"{kind.upper()}, appendix A.1: {'both steps' if both else 'step 1'}",
    )


def named_grids() -> dict[str, GridSearch]:
    """Every built-in grid by name."""
    grids = [_tags_grid(kind, dataset) for dataset in DATASETS for kind in ("tags", "tags-dc")]
    return {grid.name: grid for grid in grids}


def find_grid(name: str, over: Sequence[str] = (), stage: str = "") -> GridSearch:
    """A built-in grid, or one over a recipe."""
    if not name.startswith(PREFIX):
        recipe, axes = find_recipe(name), tuple(map(GridAxis.parse, over))
        return GridSearch(name=recipe.name, recipe=recipe, axes=axes, stage=stage)
    if over or stage:
        raise ValueError(
            f"{name} sets what is varied and compared; --over and --stage need a recipe"
        )
    grids = named_grids()
    return grids[parse_choice(grids, name, "a sweep")]
