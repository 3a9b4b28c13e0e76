"""Runs a sweep: what points share runs once, and one that was stopped goes on to the same table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import final

from counterfoil import world
from counterfoil.core.console import info
from counterfoil.corpus.corpus import Corpus
from counterfoil.evaluate.result import METRICS
from counterfoil.files import read_json, write_json
from counterfoil.recipes import notes
from counterfoil.recipes.contents import contents
from counterfoil.recipes.context import DEV, Context
from counterfoil.recipes.measured import Measured
from counterfoil.recipes.model import MODEL
from counterfoil.recipes.run import Source, execute
from counterfoil.recipes.sweep.grid import Sweep, points
from counterfoil.recipes.sweep.jobs import Job, check, jobs, said
from counterfoil.recipes.sweep.results import Scored, Swept, Tested, Trained
from counterfoil.recipes.sweep.shelf import Shelf, sweep_up
from counterfoil.recipes.sweep.shown import PAGE, RESULTS, show
from counterfoil.train.saved import read_card

SECONDS = 120  # above it, time is told in minutes


def run(
    sweep: Sweep,
    source: Source,
    folder: Path,
    *,
    resume: bool = False,
    minutes: float | None = None,
    test: bool = False,
) -> bool:
    """Train what is missing of a sweep, and say which point is best on dev.

    A point that cannot be trained, as where the loss is not finite, is told and left out. A wider
    grid of the same recipe and data may use the same folder.

    Args:
        sweep: what is varied.
        source: on which data.
        folder: where points go, and ``sweep.json`` and ``sweep.html``.
        resume: go on with trainings that were stopped.
        minutes: stop by itself after this long.
        test: measure the best point, and nothing else, on test.

    Returns:
        Whether all was done before the time was up.

    Raises:
        ValueError: a key or value that the recipe does not take, points that train the same, data
            without a dev split, a folder of another sweep, a training that was stopped and is not
            to be resumed, or nothing can be trained.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    world.join()
    corpus = source.open()
    data = contents(corpus)
    todo = jobs(sweep, points(sweep), data)
    _check_folder(sweep, data, folder)
    check(todo, corpus, folder, resume=resume, test=test)
    running = _Running(sweep, source, folder, todo, corpus, data, deadline)
    world.wait()  # nobody begins before everybody has looked
    if not running.train(resume=resume):
        return False
    found = running.found()
    if not found.ranked:
        raise ValueError(f"no point can be trained; of the first: {found.failed[0].failed}")
    if test:
        tests = running.test(found)
        if tests is None:
            return False
        found = running.found(tests)
    show(found, folder)
    return True


@final
class _Running:
    """The trainings of one sweep, one after another."""

    def __init__(
        self,
        sweep: Sweep,
        source: Source,
        folder: Path,
        todo: Sequence[Job],
        corpus: Corpus,
        data: str,
        deadline: float | None,
    ) -> None:
        self._sweep, self._source, self._folder = sweep, source, folder
        self._todo, self._corpus, self._data = todo, corpus, data
        self._deadline = deadline
        self._shelf = Shelf(folder)
        self._failed: dict[str, str] = {}  # why, by the digest of the stage

    def train(self, *, resume: bool) -> bool:
        """Train what is missing; whether the time sufficed."""
        every = {digest for job in self._todo for digest in job.needed}
        began, before = time.monotonic(), self._finished(every)
        self._save()
        for number, job in enumerate(self._todo, 1):
            if job.digest in self._shelf or self._hopeless(job):
                continue
            if self._late():
                return False
            there = self._finished(every)
            left = _eta(time.monotonic() - began, there - before, len(every) - there)
            info(
                f"{self._sweep.name}, {number} of {len(self._todo)}: {said(self._sweep, job)} "
                f"({there} of {len(every)} stages done{left})"
            )
            done = self._one(job, resume=resume)
            self._save()
            if not done:
                return False
        return True

    def test(self, found: Swept) -> tuple[Tested, ...] | None:
        """Measure the best point on test; None where the time did not suffice."""
        best = [job for job in self._todo if job.values == found.ranked[0].values]
        tests: list[Tested] = []
        for job in best:
            place = self._folder / job.name
            if self._late():
                return None
            left = self._minutes()
            if not execute(job.tested(), self._source, place, resume=True, minutes=left):
                return None
            world.wait()
            tests += [_tested(one.name, job.seed, place) for one in job.tests]
        return tuple(tests)

    def found(self, tests: tuple[Tested, ...] = ()) -> Swept:
        """What is there."""
        many = len(self._sweep.seeds)
        groups = [self._todo[start : start + many] for start in range(0, len(self._todo), many)]
        return Swept(
            sweep=self._sweep,
            data=self._corpus.name,
            contents=self._data,
            dev=next(name for name in DEV if name in self._corpus.split_names),
            select=self._todo[0].plan.plan.select,
            points=tuple(self._scored(group) for group in groups),
            tests=tests,
        )

    def _one(self, job: Job, *, resume: bool) -> bool:
        place = self._folder / job.name
        self._shelf.lend(job.recipe, job.digests, place)
        done = True
        try:
            done = execute(job.recipe, self._source, place, resume=resume, minutes=self._minutes())
        except ValueError as error:
            self._failed[self._broken(job, place)] = str(error)
            info(f"{said(self._sweep, job)}: {error}")
        world.wait()
        self._shelf.add(job.recipe, job.digests, place)
        return done

    def _broken(self, job: Job, place: Path) -> str:
        """Digest of the stage that a point broke off at."""
        context = Context(job.recipe, self._corpus, place, job.digests)
        open_ones = [s.name for s in job.recipe.stages if notes.state(context, s) != "done"]
        return job.digests[open_ones[0]]

    def _hopeless(self, job: Job) -> str:
        """Why a point will not be trained, if it will not."""
        return next((self._failed[d] for d in job.needed if d in self._failed), "")

    def _scored(self, group: Sequence[Job]) -> Scored:
        done = [job for job in group if job.digest in self._shelf]
        trained = tuple(_trained(job, self._folder) for job in done)
        return Scored(
            values=group[0].values,
            dev=tuple(one.dev[job.plan.plan.select] for one, job in zip(trained, done)),
            trained=trained,
            failed=next(filter(None, map(self._hopeless, group)), ""),
        )

    def _save(self) -> None:
        if world.rank() == 0:
            for name in (RESULTS, PAGE):
                sweep_up(self._folder / name)
            write_json(self._folder / RESULTS, self.found().plain())

    def _finished(self, every: set[str]) -> int:
        return sum(digest in self._shelf for digest in every)

    def _late(self) -> bool:
        """Whether the time is up for any process."""
        late = self._deadline is not None and time.monotonic() >= self._deadline
        return bool(world.largest(late))

    def _minutes(self) -> float | None:
        if self._deadline is None:
            return None
        return max(0.01, (self._deadline - time.monotonic()) / 60)


def _check_folder(sweep: Sweep, data: str, folder: Path) -> None:
    """Refuse the folder of another sweep.

    Raises:
        ValueError: it is one.
    """
    notes.check_place(folder)
    if not (folder / RESULTS).exists():
        return
    noted = read_json(folder / RESULTS, "the results of a sweep")
    now = sweep.recipe.name, sweep.compared, data
    if not isinstance(noted, dict) or now != (
        noted.get("recipe"),
        noted.get("stage"),
        noted.get("data", {}).get("digest"),
    ):
        raise ValueError(
            f"{folder} holds a sweep of another recipe, training or data; choose another --folder"
        )


def _eta(seconds: float, done: int, left: int) -> str:
    """How long it may still take, by the stages that are finished."""
    if not done:
        return ""
    expected = seconds / done * left
    told = f"{expected:,.0f} s" if expected < SECONDS else f"{expected / 60:,.0f} min"
    return f", about {told} left"


def _trained(job: Job, folder: Path) -> Trained:
    card = read_card(folder / job.name / job.stage / MODEL)
    epoch = float(card.provenance.get("best_epoch", 0))
    return Trained(seed=job.seed, folder=job.name, epoch=epoch, dev=dict(card.metrics))


def _tested(stage: str, seed: int, folder: Path) -> Tested:
    report = Measured.open(folder / stage).report
    numbers = {name: round(value, 4) for name, value in zip(METRICS, report.numbers, strict=True)}
    return Tested(stage=stage, seed=seed, protocol=report.setting.line(), numbers=numbers)
