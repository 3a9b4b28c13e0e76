"""Finished stages of a sweep, by the digest of all that they depend on, and how points share them.

A point is the folder of a run like any other. What another point has finished is linked into it, so
that the run finds it done.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import final

from counterfoil import world
from counterfoil.files import read_json, write_json
from counterfoil.recipes.notes import notes_in
from counterfoil.recipes.recipe import Recipe

POINTS = "points"


@final
class Shelf:
    """What is finished in the folders of a sweep's points."""

    def __init__(self, folder: Path) -> None:
        """Look at what is there.

        Args:
            folder: of the sweep.

        Raises:
            ValueError: a note in it is damaged.
        """
        self._places: dict[str, Path] = {}
        for point in sorted((folder / POINTS).glob("*/")):
            for note, noted in notes_in(point).items():
                place = note.with_suffix("")
                if noted.get("state") == "done" and place.is_dir() and not place.is_symlink():
                    self._places[noted.get("digest", "")] = place

    def __contains__(self, digest: str) -> bool:
        return digest in self._places

    def add(self, recipe: Recipe, digests: Mapping[str, str], folder: Path) -> None:
        """Take in what a point has finished.

        Args:
            recipe: what was run.
            digests: of its stages.
            folder: of the point.
        """
        for stage in recipe.stages:
            if _done(folder / f"{stage.name}.json", digests[stage.name]):
                self._places.setdefault(digests[stage.name], folder / stage.name)

    def lend(self, recipe: Recipe, digests: Mapping[str, str], folder: Path) -> None:
        """Link into a point what others have finished; the first process does.

        Args:
            recipe: what is to be run.
            digests: of its stages.
            folder: of the point.
        """
        if world.rank() == 0:
            for stage in recipe.stages:
                made, place = self._places.get(digests[stage.name]), folder / stage.name
                if made is None:
                    _unlink(place)
                elif made != place:
                    _link(made, place)
        world.wait()


def sweep_up(path: Path) -> None:
    """Remove what a kill left of a file half-written."""
    for left in path.parent.glob(f".{path.name}.*.part"):
        left.unlink()


def _unlink(place: Path) -> None:
    """Forget a link to what has been removed, or one that a kill left half made."""
    if not place.is_dir():
        _note(place).unlink(missing_ok=True)
        place.unlink(missing_ok=True)


def _link(made: Path, place: Path) -> None:
    """Make a stage's folder stand for one of another point, with its note."""
    if place.is_dir() and not place.is_symlink():  # stopped here, finished there
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    sweep_up(_note(place))
    write_json(_note(place), read_json(_note(made), "the note of a stage"))
    place.symlink_to(os.path.relpath(made, place.parent), target_is_directory=True)


def _note(place: Path) -> Path:
    return place.with_name(f"{place.name}.json")


def _done(note: Path, digest: str) -> bool:
    if not note.exists():
        return False
    noted = read_json(note, "the note of a stage")
    return bool(noted.get("state") == "done" and noted.get("digest") == digest)
