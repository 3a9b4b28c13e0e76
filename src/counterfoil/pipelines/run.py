"""Run the missing stages of a recipe.

A run is a folder with one folder a stage, and beside it ``STAGE.json``, which holds the digest of
everything that the result depends on and whether the stage is done. A finished stage with the same
digest is not run again; one with another digest is refused, never overwritten.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, final

from counterfoil import __version__
from counterfoil.core import distributed
from counterfoil.core.console import info, warn
from counterfoil.core.io import ensure_writable_folder, read_json, write_json, write_lock
from counterfoil.core.resumable import difference, partial_folder
from counterfoil.data.checks import counted, without_unreadable
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.readers import load_dataset
from counterfoil.data.readers.settings import (
    HALVES,
    KEYS,
    SEVERAL,
    join_settings,
    split_settings,
)
from counterfoil.model import is_model_folder
from counterfoil.pipelines.pipeline import (
    Recipe,
    Stage,
    data_contents,
    recipe_to_dict,
    stage_digests,
)
from counterfoil.pipelines.state import RunContext, RunStopped

State = Literal["absent", "running", "done", "other"]


def admit_stage(context: RunContext, stage: Stage, *, resume: bool) -> None:
    """Refuse a stage whose folder holds results of another run."""
    place = context.place(stage.name)
    match stage_state(context, stage):
        case "other":
            departure = _departure(context, stage)
            going_on = ""
            longer = re.search(r"\.plan\.(epochs|steps) is ", departure)
            if longer and is_model_folder(place):
                setting, beside = f"{stage.name}.start={place}", str(next_folder(context.folder))
                words = shlex.join(["--set", setting, "--output", beside])
                going_on = f"add `{words}` to train on from its model, "
            raise ValueError(
                f"{place} was made {departure}; {going_on}choose another --output, or move it away"
            )
        case "running" if not resume:
            raise ValueError(
                f"{place} holds a run that was stopped; add --resume to continue it, or choose "
                "another --output"
            )


def _departure(context: RunContext, stage: Stage) -> str:
    """Say in what a stage's folder departs from this run: a setting, the data, or what it reads."""
    note = context.note(stage.name)
    record = read_json(note, "the note of a stage") if note.exists() else None
    if not isinstance(record, dict):
        return "by something else: it has no note of this recipe beside it"
    current = json.loads(json.dumps(_record(context, stage, "done")))
    for part, noun in (
        ("kind", "as a stage"),
        ("stage", "with other settings"),
        ("data", "from other data"),
    ):
        if found := difference(record.get(part), current[part], "kind" if part == "kind" else ""):
            place = f"{stage.name}." if part == "stage" else ""
            return f"{noun}: {place}{found}"
    earlier = ", ".join(stage.reads)
    reads = f", or of what it reads ({earlier})" if earlier else ""
    return (
        f"from other contents of the data, the same captions with other pictures or features{reads}"
    )


def next_folder(folder: Path) -> Path:
    """A new folder beside that of a run: its name with the first number that is free."""
    first = folder.with_name(re.sub(r"-\d+$", "", folder.name))  # this may be the second
    name = first.name if first.is_dir() else folder.name
    numbered = (folder.with_name(f"{name}-{number}") for number in itertools.count(2))
    return next(place for place in numbered if not place.exists())


def check_run_folder(folder: Path) -> None:
    """Refuse a path that cannot be the folder of a run."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder with --output")
    ensure_writable_folder(folder / "online")


def stage_state(context: RunContext, stage: Stage) -> State:
    """State of a stage; "other" where its folder is not of this run."""
    place, note = context.place(stage.name), context.note(stage.name)
    if not note.exists():
        return "other" if place.is_file() or (place.exists() and any(place.iterdir())) else "absent"
    record = read_json(note, "the note of a stage")
    if not isinstance(record, dict) or record.get("digest") != context.digests[stage.name]:
        return "other"
    return "done" if record.get("state") == "done" else "running"


def stage_records(folder: Path) -> dict[Path, Any]:
    """The records in a run's folder by path; other JSON files are left out.

    A record lies beside the folder of its stage, or names the kind of its stage.
    """
    records: dict[Path, Any] = {}
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        beside = path.with_suffix("").is_dir()
        try:
            record = read_json(path, "the note of a stage")
        except ValueError:
            if beside:
                raise
            continue
        if beside or (isinstance(record, dict) and {"kind", "stage"} <= record.keys()):
            records[path] = record
    return records


def write_stage_record(context: RunContext, stage: Stage, now: Literal["running", "done"]) -> None:
    """Write the record of a stage; only the first process does."""
    if distributed.rank() == 0:
        write_json(context.note(stage.name), _record(context, stage, now))


def _record(context: RunContext, stage: Stage, now: Literal["running", "done"]) -> dict[str, Any]:
    """What is written beside the folder of a stage."""
    return {
        "recipe": context.recipe.name,
        "kind": stage.kind,
        "state": now,
        "digest": context.digests[stage.name],
        "counterfoil": __version__,
        "stage": recipe_to_dict(stage),
        "data": {
            "name": context.dataset.name,
            "fingerprint": context.dataset.fingerprint,
            **({"weights": dict(weights)} if (weights := context.dataset.datasets) else {}),
        },
    }


def remove_leftovers(context: RunContext, stage: Stage) -> None:
    """Remove files that a kill left half-written; the caller holds the lock of the run.

    A folder that was moved aside and never replaced is put back.
    """
    if distributed.rank():
        return
    place = context.place(stage.name)
    beside = [f for end in ("old", "part") for f in context.folder.glob(f".{place.name}.*.{end}")]
    for path in (*beside, *place.glob(".*.part"), *place.glob(".*.old")):
        if path.suffix == ".old" and path.is_dir() and not place.exists():
            path.rename(place)
        else:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def forget_stage(context: RunContext, stage: Stage, made: tuple[Path, ...]) -> None:
    """Remove the folder of a stage that failed before it had saved any progress.

    Folders `made` by the run, innermost first, are removed too where they are empty.
    """
    place = context.place(stage.name)
    progress = place / "checkpoints" / "last.safetensors", partial_folder(place)
    if distributed.rank() or any(path.exists() for path in progress):
        return
    shutil.rmtree(place, ignore_errors=True)
    context.note(stage.name).unlink(missing_ok=True)
    for folder in made:
        with suppress(OSError):  # results of other stages are in there
            folder.rmdir()


@final
@dataclass(frozen=True)
class DataSource:
    """Location of a data set.

    Attributes:
        data: path or name that `load_dataset` opens; or several of these, with their settings and
            ``::`` between them, which `concatenate_datasets` makes one.
        features: folder of features, if not beside the data.
        images: folder of pictures, if not beside the data.
        corrections: file of corrections, if not beside the data.
        skip_unreadable: leave out images whose pictures cannot be read; all are opened to find
            them. Nothing is left out where features stand for the pictures.
        unlisted: take the pictures, too, that a table does not name.
        caption_column: column of the captions in a table, if it has no usual name.
        image_column: column of the images in a table, if it has no usual name.
        half: train on this half of the images, 1 or 2, with a tenth of it for dev, and let the
            other be test; None for the splits that the data have.
    """

    data: str
    features: Path | None = None
    images: Path | None = None
    corrections: Path | None = None
    skip_unreadable: bool = False
    unlisted: bool = False
    caption_column: str | None = None
    image_column: str | None = None
    half: int | None = None
    weight: float | None = None

    @classmethod
    def of(cls, text: str, *, skip_unreadable: bool = False, **columns: str | None) -> DataSource:
        """A data set as it is typed, with its settings, as ``photos.csv:caption-column=title``.

        Args:
            text: path or name; `counterfoil.data.readers.settings` has the settings.
            skip_unreadable: where the text does not decide.
            columns: `caption_column` and `image_column` of options; None for none.

        Raises:
            ValueError: a setting is unknown, or said twice.
        """
        given = {key: value for key, value in columns.items() if value}
        several = SEVERAL in text and not Path(text).exists()
        name, said = (text, {}) if several else split_settings(text)
        for key in given.keys() & said:
            option = key.replace("_", "-")
            raise ValueError(f"{option} is said in {text} and by --{option}; say it once")
        return cls(name, **{"skip_unreadable": skip_unreadable} | given | said)

    @cached_property
    def parts(self) -> dict[str, DataSource]:
        """The data sets by name, where there are several; equal names are numbered."""
        if SEVERAL not in self.data or Path(self.data).exists():
            return {}
        if self.features or self.images or self.corrections:
            raise ValueError(
                "each of several data sets has its own features, images and corrections; write "
                "them with its name, as in photos.csv:images=pictures/::coco/"
            )
        from counterfoil.pipelines.scorers import check_different  # few have several

        columns = {"caption_column": self.caption_column, "image_column": self.image_column}
        texts = self.data.split(SEVERAL)
        if not all(map(str.strip, texts)):
            raise ValueError(
                f"{self.data!r} names an empty data set; write a name on each side of {SEVERAL} "
                "and after each --data"
            )
        check_different(texts, "data set")
        each = [
            replace(
                DataSource.of(text, skip_unreadable=self.skip_unreadable, **columns),
                unlisted=self.unlisted,
            )
            for text in texts
        ]
        for text, part in zip(texts, each, strict=True):
            if part.features:
                raise ValueError(
                    f"{text}: features are not read of several data sets, their pictures are; "
                    "leave features out, or name one data set"
                )
        names = [part.open().name for part in each]
        named: dict[str, DataSource] = {}
        for part, name in zip(each, names, strict=True):
            numbered = (f"{name}-{number}" for number in itertools.count(2))
            free = (other for other in numbered if other not in {*names, *named})
            named[next(free) if name in named else name] = part
        return named

    @property
    def typed(self) -> str:
        """The data set with its settings as it is typed: one word of a command, which `of` reads.

        Pictures that a table does not name have no setting.
        """
        return join_settings(self.data, {name: getattr(self, name) for name in KEYS.values()})

    def open(self) -> ImageTextDataset:
        """The data set, read once."""
        return self._dataset

    @cached_property
    def _dataset(self) -> ImageTextDataset:
        if self.parts:
            from counterfoil.data.concatenate import concatenate_datasets  # few have several

            for name, part in self.parts.items():
                if part.open().features is not None:
                    warn(f"features of {name} are not read beside other data sets, pictures are")
            return concatenate_datasets(
                {name: part.open() for name, part in self.parts.items()},
                weights={name: part.weight or 1.0 for name, part in self.parts.items()},
            )
        dataset = load_dataset(
            self.data,
            features=self.features,
            images=self.images,
            corrections=self.corrections,
            caption_column=self.caption_column,
            image_column=self.image_column,
            fractions=HALVES[self.half] if self.half else None,
        )
        if dataset.corrections:
            info(f"{dataset.name}, as decided: {dataset.corrections}")
        if self.unlisted:
            dataset = dataset.with_unlisted()
        return self._readable(dataset)

    def _readable(self, dataset: ImageTextDataset) -> ImageTextDataset:
        """The images of a data set whose pictures can be read, if others are to be left out."""
        if not self.skip_unreadable or dataset.features is not None:
            return dataset
        dataset, unreadable = without_unreadable(dataset)
        if unreadable:
            error, number = next(iter(unreadable.values())), len(unreadable)
            whole = shlex.quote(replace(self, skip_unreadable=False).typed)
            warn(
                f"left out {counted(number, 'unreadable picture')} of {dataset.name}, such as: "
                f"{error}; `counterfoil data check {whole}` lists all"
            )
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
    """Run every stage whose result is missing.

    Args:
        recipe: the recipe.
        source: the data.
        folder: of the results.
        resume: continue a stage that was stopped; without it such a stage is refused.
        minutes: stop after this long, with a checkpoint.

    Returns:
        Whether all stages are done; False when the time was up first.

    Raises:
        ValueError: the folder holds results of other settings or data, or an unfinished stage and
            `resume` is not given.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    distributed.init()
    dataset = source.open()
    dataset.check_captions("to train on")
    for name, part in source.parts.items():
        if "train" not in part.open().split_names:
            warn(f"{name} has no train split, so nothing is trained on it")
    digests = stage_digests(recipe, data_contents(dataset))
    context = RunContext(recipe, dataset, folder, digests, deadline)
    missing = any(stage_state(context, stage) != "done" for stage in recipe.stages)
    if not distributed.all_reduce_max(int(missing)):  # a finished run may be read-only
        return _run_stages(context, resume=resume)
    check_run_folder(folder)
    # rank 0 writes for all; of two commands on one folder the second is refused
    with distributed.on_rank_0(write_lock(folder / ".lock", folder)):
        return _run_stages(context, resume=resume)


def _run_stages(context: RunContext, *, resume: bool) -> bool:
    recipe, folder = context.recipe, context.folder
    for stage in recipe.stages:  # refuse before anything is done, not halfway
        admit_stage(context, stage, resume=resume)
        stage.check(context)
    # folders that the run makes, innermost first
    made = tuple(takewhile(lambda path: not path.exists(), (folder, *folder.parents)))
    distributed.barrier()  # a process that began early would change what others still check
    for stage in recipe.stages:
        try:
            _run_stage(context, stage, made, resume=resume)
        except RunStopped as stopped:
            info(f"{stage.name}: stopped, {stopped}; add --resume to continue")
            return False
    return True


def _run_stage(context: RunContext, stage: Stage, made: tuple[Path, ...], *, resume: bool) -> None:
    before = stage_state(context, stage)
    if before == "done":
        info(f"{stage.name}: kept, {context.place(stage.name)}")
        return
    if distributed.all_reduce_max(int(context.late())):  # clocks differ
        raise RunStopped("the time is up")
    remove_leftovers(context, stage)
    write_stage_record(context, stage, "running")
    try:
        stage.run(context, resume=resume)
    except (ValueError, OSError):
        if before == "absent":
            forget_stage(context, stage, made)
        raise
    distributed.barrier()
    write_stage_record(context, stage, "done")
