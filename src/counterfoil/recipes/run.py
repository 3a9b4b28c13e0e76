"""The one verb: run what is missing of a recipe.

A run is a folder with one folder a stage, and beside it ``STAGE.json``, which names the digest of
everything the result depends on: a finished stage with the same digest is kept, one with another is
never touched.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

from counterfoil import __version__, world
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.reading import open_corpus
from counterfoil.files import read_json, write_json
from counterfoil.recipes import stages
from counterfoil.recipes.contents import contents
from counterfoil.recipes.context import Context, Stopped
from counterfoil.recipes.recipe import (
    Compare,
    Evaluate,
    Mine,
    Recipe,
    Stage,
    Train,
    digests,
    plain,
)
from counterfoil.recipes.show import say

State = Literal["absent", "running", "done", "other"]


@final
@dataclass(frozen=True, slots=True)
class Source:
    """Where the data are.

    Attributes:
        data: what `open_corpus` opens.
        features: folder of features, if not beside the data.
        images: folder of pictures, if not beside the data.
    """

    data: str
    features: Path | None = None
    images: Path | None = None

    def open(self) -> Corpus:
        """The corpus."""
        return open_corpus(self.data, features=self.features, images=self.images)

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
    context = Context(recipe, corpus, folder, digests(recipe, contents(corpus)), deadline)
    for stage in recipe.stages:  # refuse before anything is done, not halfway
        _admit(context, stage, resume=resume)
    world.wait()  # nobody begins before everybody has looked
    for stage in recipe.stages:
        try:
            _perform(context, stage, resume=resume)
        except Stopped as stopped:
            say(f"{stage.name}: stopped, {stopped}; add --resume to go on")
            return False
    return True


def _perform(context: Context, stage: Stage, *, resume: bool) -> None:
    place = context.place(stage.name)
    if _state(context, stage) == "done":
        say(f"{stage.name}: kept, {place}")
        return
    if context.late():
        raise Stopped("the time is up")
    _note(context, stage, "running")
    match stage:
        case Train():
            stages.train(context, stage, resume=resume)
        case Mine():
            stages.mine(context, stage)
        case Evaluate():
            stages.evaluate(context, stage)
        case Compare():
            stages.compare(context, stage)
    world.wait()
    _note(context, stage, "done")


def _admit(context: Context, stage: Stage, *, resume: bool) -> None:
    place = context.place(stage.name)
    match _state(context, stage):
        case "other":
            raise ValueError(
                f"{place} was made with other settings or other data; choose another --folder, "
                "or move it away"
            )
        case "running" if not resume:
            raise ValueError(
                f"{place} holds a run that was stopped; add --resume to go on with it, or choose "
                "another --folder"
            )


def _state(context: Context, stage: Stage) -> State:
    place, note = context.place(stage.name), context.note(stage.name)
    if not note.exists():
        return "other" if place.is_file() or (place.exists() and any(place.iterdir())) else "absent"
    noted = read_json(note, "the note of a stage")
    if not isinstance(noted, dict) or noted.get("digest") != context.digests[stage.name]:
        return "other"
    return "done" if noted.get("state") == "done" else "running"


def _note(context: Context, stage: Stage, state: str) -> None:
    if world.rank():
        return
    noted: dict[str, Any] = {
        "recipe": context.recipe.name,
        "kind": stage.kind,
        "state": state,
        "digest": context.digests[stage.name],
        "counterfoil": __version__,
        "stage": plain(stage),
        "data": {"name": context.corpus.name, "fingerprint": context.corpus.fingerprint},
    }
    write_json(context.note(stage.name), noted)
