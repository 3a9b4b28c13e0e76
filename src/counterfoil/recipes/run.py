"""The one verb: run what is missing of a recipe.

A run is a folder with one folder a stage, and beside it ``STAGE.json``, which names the digest of
everything the result depends on: a finished stage with the same digest is kept, one with another is
never touched.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

from counterfoil import world
from counterfoil.core.console import info
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.reading import open_corpus
from counterfoil.recipes import guiding, notes, pretrain, stages, tailoring
from counterfoil.recipes.contents import contents
from counterfoil.recipes.context import Context, Stopped
from counterfoil.recipes.recipe import (
    Compare,
    Evaluate,
    Mine,
    Pretrain,
    Recipe,
    Rewrite,
    Semantics,
    Stage,
    Teach,
    Train,
    Write,
    digests,
)


@final
@dataclass(frozen=True)
class Source:
    """Where the data are.

    Attributes:
        data: what `open_corpus` opens.
        features: folder of features, if not beside the data.
        images: folder of pictures, if not beside the data.
        decisions: file of them, if not beside the data.
    """

    data: str
    features: Path | None = None
    images: Path | None = None
    decisions: Path | None = None

    def open(self) -> Corpus:
        """The corpus, read once."""
        return self._corpus

    @cached_property
    def _corpus(self) -> Corpus:
        corpus = open_corpus(
            self.data, features=self.features, images=self.images, decisions=self.decisions
        )
        if corpus.decided:
            info(f"{corpus.name}, as decided: {corpus.decided}")
        return corpus

    def split(self, name: str) -> Corpus:
        """One split of it; "all" is everything."""
        corpus = self.open()
        return corpus if name == "all" else corpus.split(name)


def execute(
    recipe: Recipe,
    source: Source,
    folder: Path,
    *,
    resume: bool = False,
    minutes: float | None = None,
) -> bool:
    """Run every stage whose result is not there yet.

    Args:
        recipe: what to run.
        source: on which data.
        folder: where results go.
        resume: go on with a stage that was stopped; without it such a stage is refused.
        minutes: stop by itself after this long, with a checkpoint.

    Returns:
        Whether all stages are done; False when the time was up first.

    Raises:
        ValueError: the folder holds results of other settings or data, or an unfinished stage and
            `resume` is not given.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    world.join()
    corpus = source.open()
    notes.check_place(folder)
    context = Context(recipe, corpus, folder, digests(recipe, contents(corpus)), deadline)
    for stage in recipe.stages:  # refuse before anything is done, not halfway
        notes.admit(context, stage, resume=resume)
        stages.check(context, stage)
    made = notes.missing_parents(folder)
    world.wait()  # nobody begins before everybody has looked
    for stage in recipe.stages:
        try:
            _perform(context, stage, made, resume=resume)
        except Stopped as stopped:
            info(f"{stage.name}: stopped, {stopped}; add --resume to go on")
            return False
    return True


def _perform(context: Context, stage: Stage, made: tuple[Path, ...], *, resume: bool) -> None:
    before = notes.state(context, stage)
    if before == "done":
        info(f"{stage.name}: kept, {context.place(stage.name)}")
        return
    if world.largest(int(context.late())):  # clocks differ
        raise Stopped("the time is up")
    notes.sweep_up(context, stage)
    notes.write(context, stage, "running")
    try:
        _do(context, stage, resume=resume)
    except (ValueError, OSError):
        if before == "absent":
            notes.forget(context, stage, made)
        raise
    world.wait()
    notes.write(context, stage, "done")


def _do(context: Context, stage: Stage, *, resume: bool) -> None:
    match stage:
        case Train():
            stages.train(context, stage, resume=resume)
        case Pretrain():
            pretrain.pretrain(context, stage, resume=resume)
        case Mine():
            stages.mine(context, stage)
        case Rewrite():
            tailoring.rewrite(context, stage)
        case Write():
            tailoring.write(context, stage)
        case Teach():
            guiding.teach(context, stage)
        case Semantics():
            guiding.mean(context, stage)
        case Evaluate():
            stages.evaluate(context, stage)
        case Compare():
            stages.compare(context, stage)
