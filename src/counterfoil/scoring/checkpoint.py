"""Checkpoints of a streaming pass: after a kill it resumes, with any number of processes.

A checkpoint holds which tiles of the grid are done and what the reducers made of them. Results of
reducers do not depend on which process folded in which tile, so the files of three processes can be
resumed by two: each file is absorbed by one of the processes, and its tiles are skipped by all.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast, final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from counterfoil.core import distributed
from counterfoil.core.console import warn
from counterfoil.core.io import ensure_writable_folder
from counterfoil.core.resumable import PartsFolder, WorkStopped, check_facts
from counterfoil.core.tensors import read_tensors, write_tensors

Fact = str | int
_Marks = tuple[tuple[str, int, int], ...]  # name, address and version of each tensor

EVERY = 60.0  # seconds between two checkpoints
_APART = 10  # times what saving took, at least: lists of millions of items are gigabytes
_SHORT, _LONG = 500, 2000  # a round of tiles should take between these, in milliseconds
_DIGESTS: WeakKeyDictionary[nn.Module, tuple[_Marks, str]] = WeakKeyDictionary()


class ResumableReducer(Protocol):
    """A reducer whose state can be saved and restored."""

    def state(self) -> Tensor:
        """Return the result of the tiles so far."""

    def absorb(self, state: Tensor) -> None:
        """Add the result of other tiles."""


@final
@dataclass(frozen=True, slots=True)
class _SavedFile:
    """The tiles that a checkpoint file covers, packed; or why it cannot be used."""

    number: int
    done: bytes = b""
    damage: str = ""
    refusal: str = ""


@final
class StreamCheckpoint:
    """Saves the reducers of a pass and its finished tiles; lets all processes agree to stop.

    Every process writes one file. On resuming, the present processes share the files out, however
    many wrote them, and a file is removed only after its content is in another one.

    Args:
        reducers: the reducers to save, by name.
        facts: description of the pass; a folder of another pass is refused.
        folder: folder of the files, the same for all processes; None to save nothing.
        every: seconds between two checkpoints; more where saving one takes long.
        stop: polled now and then; once it returns True on any process, all of them save and stop.
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
            self._parts = PartsFolder(folder, prefix="process-", suffix=".safetensors", digits=0)
            ensure_writable_folder(self._parts.path(0))

    def begin(self, shape: tuple[int, int], tile: tuple[int, int]) -> Tensor:
        """Resume a pass over a grid of so many tiles: return (blocks, columns) bool, those done.

        A `tile` has so many images and texts.

        Raises:
            ValueError: the folder is of another pass, or the processes see different folders.
        """
        self.facts["tiles"] = f"{shape[0]} x {shape[1]} of {tile[0]} x {tile[1]}"
        self._done = torch.zeros(shape, dtype=torch.bool)
        if self.folder is None:
            return self._done.clone()
        numbers = [n for n in self._parts.numbers() if n % distributed.size() == distributed.rank()]
        files = self._exchange([self._read(number) for number in numbers])
        all_done = self._done.clone()
        # Two files that share a tile are an old one and the newer one that replaced it, written
        # just before a kill. The newer one covers more tiles, so it comes first, and the old one is
        # skipped: absorbing both would count tiles twice.
        for file in sorted(files, key=lambda file: -int(self._unpack(file.done).sum())):
            done = self._unpack(file.done)
            if not bool((done & all_done).any()):
                all_done |= done
                self._absorb(file.number, done)
        return all_done

    def mark_done(self, place: tuple[int, int]) -> None:
        """Mark a tile that all reducers have folded in."""
        self._done[place] = True

    def rounds(self, tiles: int) -> Iterator[int]:
        """Yield how many tiles to visit in each round, until every process has visited its own.

        Between two rounds the processes agree whether to save or stop. The exchange costs time, so
        rounds grow and shrink to last about a second.

        Raises:
            WorkStopped: `stop` returned True on one of the processes.
        """
        count, saved, pause = 1, time.monotonic(), self.every
        while True:
            began = time.monotonic()
            yield min(count, tiles)
            tiles -= min(count, tiles)
            now = time.monotonic()
            stop = self.stop is not None and self.stop()
            due = self.folder is not None and now - saved >= pause
            status = tiles, int(stop), int(due), int(1000 * (now - began))
            left, stopped, late, spent = distributed.all_reduce_max_of(status)
            if not left:
                return
            if stopped or late:
                before = time.monotonic()
                self._save()
                saved = time.monotonic()
                pause = self.every and max(self.every, _APART * (saved - before))
            if stopped:
                raise WorkStopped
            count = 2 * count if spent < _SHORT else max(1, count // 2) if spent > _LONG else count

    def _exchange(self, mine: list[_SavedFile]) -> list[_SavedFile]:
        """Return the usable files of all processes; refuse those of another pass."""
        everyone = cast("list[list[_SavedFile]]", distributed.gather_objects(mine))
        all_files = [file for files in everyone for file in files]
        for file in all_files:
            if file.refusal:
                raise ValueError(file.refusal)
            if file.damage and distributed.rank() == 0:
                warn(f"{file.damage}; its tiles are scored again")
        self._old = [
            self._parts.path(file.number) for file in mine if file.number != distributed.rank()
        ]
        return [file for file in all_files if not file.damage]

    def _read(self, number: int) -> _SavedFile:
        path = self._parts.path(number)
        try:
            tensors, facts = read_tensors(path, "a checkpoint of a pass")
        except ValueError:
            return _SavedFile(number, damage=f"{path} is damaged")
        try:
            check_facts(path.parent, facts, self.facts)
        except ValueError as error:
            return _SavedFile(number, refusal=str(error))
        return _SavedFile(number, tensors["done"].numpy().tobytes())

    def _absorb(self, number: int, done: Tensor) -> None:
        if number % distributed.size() != distributed.rank():
            return
        self._done |= done
        tensors, _ = read_tensors(self._parts.path(number), "a checkpoint of a pass")
        for name, reducer in self.reducers.items():
            reducer.absorb(tensors[f"reducer/{name}"])

    def _save(self) -> None:
        if self.folder is None:
            return
        done = torch.from_numpy(np.packbits(self._done.numpy()))
        states = {f"reducer/{name}": reducer.state() for name, reducer in self.reducers.items()}
        path = self._parts.path(distributed.rank())
        write_tensors(path, {"done": done, **states}, self.facts)
        while self._old:  # their content is in the new file, or in another process's
            self._old.pop().unlink(missing_ok=True)

    def _unpack(self, done: bytes) -> Tensor:
        bits = np.unpackbits(np.frombuffer(done, np.uint8), count=self._done.numel())
        return torch.from_numpy(bits.astype(bool)).view(self._done.shape)


def weights_digest(module: nn.Module) -> str:
    """Return sixteen hex digits of a module's state; those of a frozen module are cached."""
    marks, known = _marks(module), _DIGESTS.get(module)
    if marks and known and known[0] == marks:
        return known[1]
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    short = digest.hexdigest()[:16]
    if marks:
        _DIGESTS[module] = marks, short
    return short


def _marks(module: nn.Module) -> _Marks:
    """Identify the tensors of a frozen module; empty for one that may change.

    A write in place raises a tensor's version; a replaced tensor has another address.
    """
    state: dict[str, Tensor] = module.state_dict()
    trainable = any(parameter.requires_grad for parameter in module.parameters())
    if trainable or any(value.is_inference() for value in state.values()):
        return ()
    return tuple((name, value.data_ptr(), value._version) for name, value in state.items())
