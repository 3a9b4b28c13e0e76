"""How far a sweep is, kept on disk: it goes on after a kill, by any number of processes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final
from weakref import WeakKeyDictionary
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from counterfoil.core import distributed
from counterfoil.core.console import warn
from counterfoil.core.io import ensure_writable_folder
from counterfoil.core.resumable import PartsFolder, WorkStopped, check_facts

Fact = str | int
_Marks = tuple[tuple[str, int, int], ...]  # name, place and version of each tensor

EVERY = 60.0  # seconds between two saves
_SHORT, _LONG = 500, 2000  # milliseconds that a round should take
_DIGESTS: WeakKeyDictionary[nn.Module, tuple[_Marks, str]] = WeakKeyDictionary()


class ResumableReducer(Protocol):
    """A reducer that can be put away and taken up again."""

    def state(self) -> Tensor:
        """What was made of the tiles seen so far."""

    def absorb(self, state: Tensor) -> None:
        """Take in what another made of other tiles."""


@final
@dataclass(frozen=True, slots=True)
class _Found:
    """What a file holds: the packed tiles it covers, or why it cannot be used."""

    number: int
    done: bytes = b""
    damage: str = ""
    refusal: str = ""


@final
class StreamCheckpoint:
    """Saves reducers and which tiles they have seen; asks all processes whether to stop.

    Every process has one file. Whatever number of processes wrote the files, those present share
    them out, and a file is removed only after what it held is in another.

    Args:
        reducers: what to save, by name.
        facts: what is swept, in words; a folder of something else is refused.
        folder: where the files are, the same for all processes; None to keep nothing.
        every: seconds between two saves.
        stop: asked now and then; when it answers True on any process, all of them save and stop.

    Raises:
        ValueError: the folder cannot be written.
    """

    def __init__(
        self,
        reducers: Mapping[str, ResumableReducer],
        facts: Mapping[str, Fact],
        *,
        folder: Path | None = None,
        every: float = EVERY,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.reducers, self.facts, self.folder = dict(reducers), dict(facts), folder
        self.every, self.stop = every, stop
        self._old: list[Path] = []
        if folder is not None:
            self._parts = PartsFolder(folder, prefix="process-", suffix=".npz", digits=0)
            ensure_writable_folder(self._parts.path(0))

    def begin(self, shape: tuple[int, int], tile: tuple[int, int]) -> Tensor:
        """Take up what was kept: (blocks, columns) bool, the tiles that need no second visit.

        Args:
            shape: of the grid, in tiles.
            tile: images and texts of a tile.

        Raises:
            ValueError: something else was being swept, or the processes see different folders.
        """
        self.facts["tiles"] = f"{shape[0]} x {shape[1]} of {tile[0]} x {tile[1]}"
        self._done = torch.zeros(shape, dtype=torch.bool)
        if self.folder is None:
            return self._done.clone()
        mine = [n for n in self._parts.numbers() if n % distributed.size() == distributed.rank()]
        found = self._agree([self._look(number) for number in mine])
        everything = self._done.clone()
        for file in sorted(found, key=lambda file: -int(self._unpack(file.done).sum())):
            done = self._unpack(file.done)
            if not bool((done & everything).any()):  # else a later file holds all of it
                everything |= done
                self._absorb(file.number, done)
        return everything

    def mark_done(self, place: tuple[int, int]) -> None:
        """All reducers have seen this tile."""
        self._done[place] = True

    def rounds(self, tiles: int) -> Iterator[int]:
        """How many tiles to visit before coming back, until every process has visited its own.

        Args:
            tiles: how many this process has to visit.

        Raises:
            WorkStopped: one of the processes was asked to.
        """
        many, saved = 1, time.monotonic()
        while True:
            began = time.monotonic()
            yield min(many, tiles)
            tiles -= min(many, tiles)
            now = time.monotonic()
            asked = self.stop is not None and self.stop()
            due = self.folder is not None and now - saved >= self.every
            mine = tiles, int(asked), int(due), int(1000 * (now - began))
            left, stopped, late, spent = distributed.all_reduce_max_of(mine)
            if not left:
                return
            if stopped or late:
                self._save()
                saved = time.monotonic()
            if stopped:
                raise WorkStopped
            many = 2 * many if spent < _SHORT else max(1, many // 2) if spent > _LONG else many

    def _agree(self, mine: list[_Found]) -> list[_Found]:
        """Everybody's usable files."""
        found: list[_Found] = []
        for files in distributed.gather_objects(mine):
            assert isinstance(files, list)
            found += files
        for file in found:
            if file.refusal:
                raise ValueError(file.refusal)
            if file.damage and distributed.rank() == 0:
                warn(f"{file.damage}; what it held is scored again")
        self._old = [
            self._parts.path(file.number) for file in mine if file.number != distributed.rank()
        ]
        return [file for file in found if not file.damage]

    def _look(self, number: int) -> _Found:
        path = self._parts.path(number)
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                facts = json.loads(str(arrays["facts"]))
                try:
                    check_facts(path.parent, facts, self.facts)
                except ValueError as error:
                    return _Found(number, refusal=str(error))
                for name in self.reducers:
                    arrays[name]  # reading it checks it
                return _Found(number, arrays["done"].tobytes())
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            return _Found(number, damage=f"{path} is damaged ({error})")

    def _absorb(self, number: int, done: Tensor) -> None:
        if number % distributed.size() != distributed.rank():
            return
        self._done |= done
        with np.load(self._parts.path(number), allow_pickle=False) as arrays:
            for name, reducer in self.reducers.items():
                reducer.absorb(torch.from_numpy(arrays[name]))

    def _save(self) -> None:
        if self.folder is None:
            return
        arrays: dict[str, Any] = {
            "facts": np.array(json.dumps(self.facts)),
            "done": np.packbits(self._done.numpy()),
            **{name: reducer.state().cpu().numpy() for name, reducer in self.reducers.items()},
        }
        self._parts.save(distributed.rank(), lambda path: _write_arrays(path, arrays))
        while self._old:  # all that these held is in the new file, or in another process's
            self._old.pop().unlink(missing_ok=True)

    def _unpack(self, done: bytes) -> Tensor:
        bits = np.unpackbits(np.frombuffer(done, np.uint8), count=self._done.numel())
        return torch.from_numpy(bits.astype(bool)).view(self._done.shape)


def _write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


def weights_digest(module: nn.Module) -> str:
    """Sixteen hex digits of all that a module has learnt; of a frozen one they are remembered."""
    marks, known = _marks(module), _DIGESTS.get(module)
    if marks and known and known[0] == marks:
        return known[1]
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    found = digest.hexdigest()[:16]
    if marks:
        _DIGESTS[module] = marks, found
    return found


def _marks(module: nn.Module) -> _Marks:
    """By which a frozen module is known to be as it was; empty for one that may learn."""
    state: dict[str, Tensor] = module.state_dict()
    learns = any(parameter.requires_grad for parameter in module.parameters())
    if learns or any(value.is_inference() for value in state.values()):
        return ()
    return tuple((name, value.data_ptr(), value._version) for name, value in state.items())
