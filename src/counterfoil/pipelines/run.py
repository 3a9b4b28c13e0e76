"""What a run's folder says about its stages.

Beside the folder of a stage lies ``STAGE.json``, which names the digest of everything the result
depends on and says whether the stage is done.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, final

from counterfoil import __version__
from counterfoil.core import distributed
from counterfoil.core.console import info
from counterfoil.core.io import ensure_writable_folder, read_json, write_json
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.readers import load_dataset
from counterfoil.pipelines.pipeline import (
    CaptionSpaceStage,
    Compare,
    ComputeTargets,
    Evaluate,
    Generate,
    Mine,
    Pretrain,
    Recipe,
    RewriteByRule,
    Stage,
    Train,
    data_contents,
    recipe_to_dict,
    stage_digests,
)
from counterfoil.pipelines.stages import generate, pretrain, teach, train
from counterfoil.pipelines.stages.mine import partial_folder
from counterfoil.pipelines.state import RunContext, RunStopped

State = Literal["absent", "running", "done", "other"]


def admit_stage(context: RunContext, stage: Stage, *, resume: bool) -> None:
    """Refuse to touch results that are not this run's.

    Raises:
        ValueError: results of other settings or data, or of a run that was stopped and is not
            resumed.
    """
    place = context.place(stage.name)
    match stage_state(context, stage):
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


def check_run_folder(folder: Path) -> None:
    """Refuse a folder of a run that cannot be one.

    Raises:
        ValueError: it is a file, or may not be written to.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder with --folder")
    ensure_writable_folder(folder / "online")


def stage_state(context: RunContext, stage: Stage) -> State:
    """How far a stage is; "other" where its folder is not of this run.

    Raises:
        ValueError: the note is damaged.
    """
    place, note = context.place(stage.name), context.note(stage.name)
    if not note.exists():
        return "other" if place.is_file() or (place.exists() and any(place.iterdir())) else "absent"
    noted = read_json(note, "the note of a stage")
    if not isinstance(noted, dict) or noted.get("digest") != context.digests[stage.name]:
        return "other"
    return "done" if noted.get("state") == "done" else "running"


def stage_records(folder: Path) -> dict[Path, Any]:
    """The notes in a run's folder by their paths; other JSON files that lie there are none.

    A note lies beside the folder of its stage, or says of which kind its stage is.

    Raises:
        ValueError: a note is damaged.
    """
    found: dict[Path, Any] = {}
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        beside = path.with_suffix("").is_dir()
        try:
            plain = read_json(path, "the note of a stage")
        except ValueError:
            if beside:
                raise
            continue
        if beside or (isinstance(plain, dict) and {"kind", "stage"} <= plain.keys()):
            found[path] = plain
    return found


def write_stage_record(context: RunContext, stage: Stage, now: Literal["running", "done"]) -> None:
    """Write the note; only the first process does."""
    if distributed.rank():
        return
    noted: dict[str, Any] = {
        "recipe": context.recipe.name,
        "kind": stage.kind,
        "state": now,
        "digest": context.digests[stage.name],
        "counterfoil": __version__,
        "stage": recipe_to_dict(stage),
        "data": {"name": context.dataset.name, "fingerprint": context.dataset.fingerprint},
    }
    write_json(context.note(stage.name), noted)


def remove_leftovers(context: RunContext, stage: Stage) -> None:
    """Remove what a kill left half-written."""
    if distributed.rank():
        return
    place = context.place(stage.name)
    beside = [f for end in ("part", "old") for f in context.folder.glob(f".{place.name}.*.{end}")]
    for path in (*beside, *place.glob(".*.part"), *place.glob(".*.old")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def missing_parents(folder: Path) -> tuple[Path, ...]:
    """A folder and those above it that are not there yet, innermost first."""
    found = []
    for path in (folder, *folder.parents):
        if path.exists():
            break
        found.append(path)
    return tuple(found)


def forget_stage(context: RunContext, stage: Stage, made: tuple[Path, ...]) -> None:
    """Take back a stage that broke off before it had anything to keep.

    Args:
        context: the run.
        stage: what broke off.
        made: folders that were not there before the run, innermost first.
    """
    place = context.place(stage.name)
    kept = place / "checkpoints" / "last.safetensors", partial_folder(place)
    if distributed.rank() or any(path.exists() for path in kept):
        return
    shutil.rmtree(place, ignore_errors=True)
    context.note(stage.name).unlink(missing_ok=True)
    for folder in made:
        with suppress(OSError):  # others' results are in there
            folder.rmdir()


# The one verb: run what is missing of a recipe.
#
# A run is a folder with one folder a stage, and beside it ``STAGE.json``, which names the digest of
# everything the result depends on: a finished stage with the same digest is kept, one with another
# is
# never touched.


@final
@dataclass(frozen=True)
class DataSource:
    """Where the data are.

    Attributes:
        data: what `load_dataset` opens.
        features: folder of features, if not beside the data.
        images: folder of pictures, if not beside the data.
        decisions: file of them, if not beside the data.
    """

    data: str
    features: Path | None = None
    images: Path | None = None
    decisions: Path | None = None

    def open(self) -> ImageTextDataset:
        """The data set, read once."""
        return self._corpus

    @cached_property
    def _corpus(self) -> ImageTextDataset:
        dataset = load_dataset(
            self.data, features=self.features, images=self.images, decisions=self.decisions
        )
        if dataset.corrections:
            info(f"{dataset.name}, as decided: {dataset.corrections}")
        return dataset

    def split(self, name: str) -> ImageTextDataset:
        """One split of it; "all" is everything."""
        dataset = self.open()
        return dataset if name == "all" else dataset.split(name)


def run_pipeline(
    recipe: Recipe,
    source: DataSource,
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
    distributed.init()
    dataset = source.open()
    check_run_folder(folder)
    context = RunContext(
        recipe, dataset, folder, stage_digests(recipe, data_contents(dataset)), deadline
    )
    for stage in recipe.stages:  # refuse before anything is done, not halfway
        admit_stage(context, stage, resume=resume)
        train.check_stage(context, stage)
    made = missing_parents(folder)
    distributed.barrier()  # nobody begins before everybody has looked
    for stage in recipe.stages:
        try:
            _perform(context, stage, made, resume=resume)
        except RunStopped as stopped:
            info(f"{stage.name}: stopped, {stopped}; add --resume to go on")
            return False
    return True


def _perform(context: RunContext, stage: Stage, made: tuple[Path, ...], *, resume: bool) -> None:
    before = stage_state(context, stage)
    if before == "done":
        info(f"{stage.name}: kept, {context.place(stage.name)}")
        return
    if distributed.all_reduce_max(int(context.late())):  # clocks differ
        raise RunStopped("the time is up")
    remove_leftovers(context, stage)
    write_stage_record(context, stage, "running")
    try:
        _do(context, stage, resume=resume)
    except (ValueError, OSError):
        if before == "absent":
            forget_stage(context, stage, made)
        raise
    distributed.barrier()
    write_stage_record(context, stage, "done")


def _do(context: RunContext, stage: Stage, *, resume: bool) -> None:
    match stage:
        case Train():
            train.run_train(context, stage, resume=resume)
        case Pretrain():
            pretrain.run_pretrain(context, stage, resume=resume)
        case Mine():
            train.run_mine(context, stage)
        case RewriteByRule():
            generate.run_rewrite(context, stage)
        case Generate():
            generate.run_generate(context, stage)
        case ComputeTargets():
            teach.run_compute_targets(context, stage)
        case CaptionSpaceStage():
            teach.run_caption_space(context, stage)
        case Evaluate():
            train.run_evaluate(context, stage)
        case Compare():
            train.run_compare(context, stage)
