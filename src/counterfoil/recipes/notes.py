"""What a run's folder says about its stages.

Beside the folder of a stage lies ``STAGE.json``, which names the digest of everything the result
depends on and says whether the stage is done.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from counterfoil import __version__, world
from counterfoil.files import check_folder, read_json, write_json
from counterfoil.recipes.context import Context
from counterfoil.recipes.mining import partial
from counterfoil.recipes.recipe import Stage, plain

State = Literal["absent", "running", "done", "other"]


def admit(context: Context, stage: Stage, *, resume: bool) -> None:
    """Refuse to touch results that are not this run's.

    Raises:
        ValueError: results of other settings or data, or of a run that was stopped and is not
            resumed.
    """
    place = context.place(stage.name)
    match state(context, stage):
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


def check_place(folder: Path) -> None:
    """Refuse a folder of a run that cannot be one.

    Raises:
        ValueError: it is a file, or may not be written to.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder with --folder")
    check_folder(folder / "online")


def state(context: Context, stage: Stage) -> State:
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


def notes_in(folder: Path) -> dict[Path, Any]:
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


def write(context: Context, stage: Stage, now: Literal["running", "done"]) -> None:
    """Write the note; only the first process does."""
    if world.rank():
        return
    noted: dict[str, Any] = {
        "recipe": context.recipe.name,
        "kind": stage.kind,
        "state": now,
        "digest": context.digests[stage.name],
        "counterfoil": __version__,
        "stage": plain(stage),
        "data": {"name": context.corpus.name, "fingerprint": context.corpus.fingerprint},
    }
    write_json(context.note(stage.name), noted)


def sweep_up(context: Context, stage: Stage) -> None:
    """Remove what a kill left half-written."""
    if world.rank():
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


def forget(context: Context, stage: Stage, made: tuple[Path, ...]) -> None:
    """Take back a stage that broke off before it had anything to keep.

    Args:
        context: the run.
        stage: what broke off.
        made: folders that were not there before the run, innermost first.
    """
    place = context.place(stage.name)
    kept = place / "checkpoints" / "last.safetensors", partial(place)
    if world.rank() or any(path.exists() for path in kept):
        return
    shutil.rmtree(place, ignore_errors=True)
    context.note(stage.name).unlink(missing_ok=True)
    for folder in made:
        with suppress(OSError):  # others' results are in there
            folder.rmdir()
