"""The trainings of a sweep on given data, and what is refused before the first of them begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from counterfoil.corpus.corpus import Corpus
from counterfoil.recipes import notes, stages
from counterfoil.recipes.context import DEV, Context
from counterfoil.recipes.recipe import Evaluate, Recipe, Train, digests
from counterfoil.recipes.sweep.grid import Point, Sweep, behind
from counterfoil.recipes.sweep.shelf import POINTS


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """A point with one seed.

    Attributes:
        values: of the point.
        seed: which of the repeats.
        recipe: the compared training and all that it depends on.
        stage: the compared training.
        digests: of the stages.
        tests: what measures it on test.
    """

    values: tuple[str, ...]
    seed: int
    recipe: Recipe
    stage: str
    digests: Mapping[str, str]
    tests: tuple[Evaluate, ...]

    @property
    def digest(self) -> str:
        """Of the compared training."""
        return self.digests[self.stage]

    @property
    def needed(self) -> tuple[str, ...]:
        """Digests of all stages but those that measure on test, in order."""
        return tuple(self.digests[stage.name] for stage in self.recipe.stages)

    @property
    def name(self) -> str:
        """Its folder, inside that of the sweep."""
        return f"{POINTS}/{self.digest}"

    @property
    def plan(self) -> Train:
        """The compared training."""
        found = self.recipe.stage(self.stage)
        assert isinstance(found, Train)
        return found

    def tested(self) -> Recipe:
        """With what measures it on test."""
        return replace(self.recipe, stages=(*self.recipe.stages, *self.tests))


def jobs(sweep: Sweep, points: Sequence[Point], data: str) -> tuple[Job, ...]:
    """All trainings, the seeds of a point one after another.

    Args:
        sweep: what is varied.
        points: of the sweep.
        data: digest of the data.

    Raises:
        ValueError: two points train the same, or choose epochs by different figures.
    """
    found = [
        _job(sweep, point, seed, recipe, data)
        for point in points
        for seed, recipe in zip(sweep.seeds, point.recipes)
    ]
    known: dict[str, Job] = {}
    for job in found:
        other = known.setdefault(job.digest, job)
        if other is not job:
            raise ValueError(
                f"{said(sweep, other)} and {said(sweep, job)} train the same {job.stage!r}; vary "
                "what it depends on, or name another training with --stage"
            )
    selects = sorted({job.plan.plan.select for job in found})
    if len(selects) > 1:
        raise ValueError(
            f"points that choose their epochs by different figures, {' and '.join(selects)}, "
            "cannot be compared; leave select as it is"
        )
    return tuple(found)


def said(sweep: Sweep, job: Job) -> str:
    """Its settings, as ``--set`` has them."""
    words = [f"{axis.name}={value}" for axis, value in zip(sweep.axes, job.values)]
    if len(sweep.seeds) > 1:
        words.append(f"seed {job.seed}")
    return ", ".join(words)


def check(found: Sequence[Job], corpus: Corpus, folder: Path, *, resume: bool, test: bool) -> None:
    """Refuse what would fail only after hours.

    Args:
        found: what is to be trained.
        corpus: the data.
        folder: of the sweep.
        resume: whether trainings that were stopped are gone on with.
        test: whether the best point is to be measured on test.

    Raises:
        ValueError: there is no dev split, a training was stopped and is not to be resumed, or data
            and a stage do not fit.
    """
    if not set(DEV) & set(corpus.split_names):
        raise ValueError(f"{corpus.name} has no dev split, and a sweep compares on nothing else")
    seen: set[str] = set()
    for job in found:
        recipe = job.tested() if test else job.recipe
        context = Context(recipe, corpus, folder / job.name, job.digests)
        for stage in job.recipe.stages:
            notes.admit(context, stage, resume=resume)
        for stage in recipe.stages:
            digest = job.digests[stage.name]
            if digest not in seen:
                stages.check(context, stage)
            seen.add(digest)


def _job(sweep: Sweep, point: Point, seed: int, recipe: Recipe, data: str) -> Job:
    needed = replace(recipe, stages=behind(recipe, sweep.compared))
    tests = _tests(recipe, sweep.compared, {stage.name for stage in needed.stages})
    whole = replace(needed, stages=(*needed.stages, *tests))
    return Job(
        values=point.values,
        seed=seed,
        recipe=needed,
        stage=sweep.compared,
        digests=digests(whole, data),
        tests=tests,
    )


def _tests(recipe: Recipe, stage: str, there: set[str]) -> tuple[Evaluate, ...]:
    """What the recipe measures the training alone with on test, or all of test as it is."""
    found = tuple(
        one
        for one in recipe.stages
        if isinstance(one, Evaluate)
        and (one.using, one.split) == ((stage,), "test")
        and there.issuperset(one.reads)
    )
    return found or (Evaluate(name=f"test-{stage}", using=(stage,)),)
