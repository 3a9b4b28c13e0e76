"""Resumable work: numbered parts on disk, each complete or absent after any SIGKILL.

Work is cut into parts that do not depend on each other. A part is one file, written under a
temporary name and renamed, so that a kill costs the part in progress and nothing else. Any number
of processes shares the missing parts, and another number may resume later. Everything that the
parts depend on is stored beside them as *facts*, in a manifest: parts with other facts are refused,
never mixed. The manifest does not name the parts: processes that share the work would have to wait
for each other to write it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from counterfoil import __version__
from counterfoil.core import distributed
from counterfoil.core.artifact import ArtifactFormat, ArtifactManifest
from counterfoil.core.console import progress
from counterfoil.core.io import atomic_write


@final
class WorkManifest(ArtifactManifest):
    """The manifest of unfinished work: what it depends on, as plain JSON."""

    facts: dict[str, Any]


WORK = ArtifactFormat(
    name="unfinished work",
    manifest=WorkManifest,
    remedy="delete the folder, and begin again",
    file="facts.json",  # beside the manifest of what the folder is to become
)


class WorkStopped(Exception):
    """Resumable work was asked to stop; completed parts are on disk."""


def partial_folder(folder: Path) -> Path:
    """Return the folder beside `folder` that holds its unfinished work."""
    return folder.with_name(f"{folder.name}.partial")


def check_facts(folder: Path, known: object, facts: Mapping[str, Any]) -> None:
    """Refuse to resume the work of a folder that depends on other facts, given as plain JSON.

    Raises:
        ValueError: they differ; the first difference is named.
    """
    if known == facts:
        return
    found = difference(known if isinstance(known, dict) else {}, facts)
    raise ValueError(
        f"{folder} was begun otherwise: {found}; continue with the settings and data of that run, "
        "name another folder, or delete it"
    )


def difference(before: object, now: object, name: str = "") -> str:
    """Say where two values of plain JSON differ first: "a.b is 1 there and 2 here"; "" for nowhere.

    >>> difference({"plan": {"lr": 0.1, "seed": 0}}, {"plan": {"lr": 0.2, "seed": 0}})
    'plan.lr is 0.1 there and 0.2 here'
    """
    if before == now:
        return ""
    if isinstance(before, dict) and isinstance(now, Mapping):
        names = {**now, **before}
        each = ((f"{name}.{n}" if name else n, before.get(n), now.get(n)) for n in names)
        return next(found for n, one, other in each if (found := difference(one, other, n)))
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        places = enumerate(zip(before, now, strict=True))
        each = ((f"{name}[{n}]", one, other) for n, (one, other) in places)
        return next(found for n, one, other in each if (found := difference(one, other, n)))
    return f"{name or 'it'} is {_short(before)} there and {_short(now)} here"


def begin_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Store what the work in a folder depends on, or compare it with what is stored there.

    Every process calls this. `facts` are plain values.

    Raises:
        ValueError: the work was begun with other facts.
    """
    check_begun(folder, facts)
    distributed.barrier()  # no process writes before all have looked
    if distributed.rank() == 0:
        write_facts(folder, facts)
    distributed.barrier()


def is_begun(folder: Path) -> bool:
    """Return True if work was begun in a folder, with whatever facts."""
    return (folder / WORK.file).exists()


def check_begun(folder: Path, facts: Mapping[str, Any]) -> None:
    """Refuse to resume work that was begun with other facts; there may be none yet."""
    if is_begun(folder):
        check_facts(folder, WORK.read_manifest(folder).facts, json.loads(json.dumps(facts)))


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Store what the work in a folder depends on, where nothing is stored yet."""
    if not is_begun(folder):
        WORK.write_manifest(folder, WorkManifest(facts=dict(facts), version=__version__))


@final
class PartsFolder:
    """Numbered files of one piece of work, in a folder that is the same for all processes.

    A name is the prefix, the number padded with zeros to so many digits, and the suffix.
    """

    def __init__(self, folder: Path, *, suffix: str, prefix: str = "", digits: int = 6) -> None:
        self.folder, self.suffix, self.prefix, self.digits = folder, suffix, prefix, digits

    def path(self, number: int) -> Path:
        """File of a part."""
        return self.folder / f"{self.prefix}{str(number).zfill(self.digits)}{self.suffix}"

    def numbers(self) -> list[int]:
        """Numbers of the parts that exist; every process calls this, and all get the same.

        No process returns before all have listed the folder, so that all list the same parts.
        Half-written files of killed processes are removed.

        Raises:
            ValueError: processes see different files.
        """
        if distributed.rank() == 0:
            for path in self.folder.glob(f".{self.prefix}*{self.suffix}.*.part"):
                path.unlink()
        names = (
            path.name.removeprefix(self.prefix).removesuffix(self.suffix)
            for path in self.folder.glob(f"{self.prefix}*{self.suffix}")
        )
        present = sorted(int(name) for name in names if name.isdecimal())
        if any(others != present for others in distributed.gather_objects(present)):
            raise ValueError(
                f"{self.folder} does not hold the same files for every process; name a folder that "
                "all machines share"
            )
        return present

    def begin(self, facts: Mapping[str, Any], count: int) -> list[int]:
        """Begin or resume the work of `count` parts; every process calls this.

        `facts` are plain values, everything that the parts depend on. Returned are the numbers of
        the parts that are missing.

        Raises:
            ValueError: the folder holds parts of other facts.
        """
        begin_facts(self.folder, facts)
        present = set(self.numbers())
        return [number for number in range(count) if number not in present]

    def save(self, number: int, write: Callable[[Path], object]) -> None:
        """Save a part atomically; `write` is given its temporary path."""
        with atomic_write(self.path(number)) as temporary:
            write(temporary)

    def remove(self) -> None:
        """Remove all parts and the folder."""
        if self.folder.exists():
            shutil.rmtree(self.folder)


def work_through(
    missing: Sequence[int],
    work: Callable[[int], object],
    sizes: Sequence[int],
    *,
    description: str,
    stop: Callable[[], bool] | None = None,
) -> None:
    """Deal the missing parts out to all processes; every process calls this.

    `work` does and saves one part. `sizes` are the numbers of items of all parts, for the progress
    bar. `stop` is called after every round; if it returns True on any process, all of them stop.

    Raises:
        WorkStopped: a process was asked to stop before the last round.
    """
    completed = sum(sizes) - sum(sizes[number] for number in missing)
    with progress(description, sum(sizes), completed) as advance:
        for first in range(0, len(missing), distributed.size()):
            this_round = missing[first : first + distributed.size()]
            if distributed.rank() < len(this_round):
                work(this_round[distributed.rank()])
            advance(sum(sizes[number] for number in this_round))
            last = first + distributed.size() >= len(missing)
            if stop is not None and distributed.all_reduce_max(int(stop())) and not last:
                raise WorkStopped
    distributed.barrier()


def _short(value: object) -> str:
    """A value of an error message, without quotes around plain text."""
    text = "none" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
