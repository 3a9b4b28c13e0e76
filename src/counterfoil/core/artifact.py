"""Artifacts: folders with a JSON manifest and files, written whole or not at all.

An `ArtifactFormat` is declared once for each kind of folder. The manifest says what the folder is,
of which version, what it was made from, and the size and checksums of its files and its own. A
manifest without files is a whole artifact, too, as a calibration within an index. There are three
ways to write one, each of which a kill leaves as it was before or as it is after:

- whole (`ArtifactFormat.save`, `ArtifactFormat.writing`): a new folder takes the name of the old;
- by another generation of files (`Artifact.changed`): new files are written beside the old ones,
  and the manifest that names them is swapped by one rename. Readers see one or the other;
- by appending (`GrowingArtifact`): the manifest says how much of each file counts.

It is opened in one place, `ArtifactFormat.open`, which checks that the manifest can be read, is of
this kind, of a known version and for these data; files are compared with their checksums when they
are used. Every error is one sentence that ends in a remedy.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from counterfoil import __version__
from counterfoil.core.checksums import FileSums
from counterfoil.core.config import digest
from counterfoil.core.io import (
    atomic_folder,
    commit,
    is_given,
    read_array,
    read_json,
    room_for,
    write_array,
    write_json,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MANIFEST = "manifest.json"
# keys of the manifest file beside the fields of its class
KIND, FILES, CHECKSUM = "artifact", "files", "checksum"

Model = TypeVar("Model", bound=BaseModel)
Checked = TypeVar("Checked")
Record = TypeVar("Record", bound="DataclassInstance")


class ArtifactManifest(BaseModel):
    """Fields of every manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: int = Field(default=1, ge=1)  # version of the layout
    version: str  # the counterfoil that wrote it


@final
@dataclass(frozen=True, kw_only=True)
class ArtifactFormat(Generic[Model]):
    """A kind of folder."""

    name: str  # the contents in words, as in "mined negatives"; also written into the manifest
    manifest: type[Model]
    remedy: str  # how the user gets a new folder, as in "mine again"
    origin: str = ""  # how it depends on its data, as in "was mined from"; "" where it does not
    latest: int = 1  # newest version of the layout that can be read
    file: str = MANIFEST  # name of the manifest file
    foreign: bool = False  # other programs write such folders, without a kind and checksums
    generations: re.Pattern[str] | None = None  # names of the files of `Artifact.changed`

    def exists(self, folder: Path) -> bool:
        """Return True if the folder has a manifest of this kind."""
        path = folder / self.file
        return path.is_file() if self.foreign else kind_of(path) == self.name

    def check_replaceable(self, folder: Path) -> None:
        """Refuse to write where a file, or a folder with other contents, is."""
        other = folder.is_dir() and any(folder.iterdir()) and not self.exists(folder)
        if folder.is_file() or other:
            raise ValueError(
                f"{folder} exists and holds no {self.name}; it is left alone, name another"
            )

    @contextmanager
    def writing(self, folder: Path) -> Iterator[Path]:
        """A temporary folder that takes the name when the block ends without error.

        The block has to call `write_manifest` on it.
        """
        with atomic_folder(folder) as temporary:
            yield temporary
            if not self.exists(temporary):
                raise RuntimeError(f"no manifest was written for {folder}")

    def write_manifest(self, folder: Path, manifest: Model, files: Iterable[str] = ()) -> None:
        """Write the manifest, which makes the folder complete, with the checksums of its files."""
        self._commit(folder, manifest, {name: FileSums.of(folder / name) for name in files})

    def save(
        self, folder: Path, manifest: Model, arrays: Mapping[str, npt.NDArray[Any]] | None = None
    ) -> None:
        """Write a whole folder, with arrays by file name; an older one of this kind is replaced.

        Raises:
            ValueError: something else is there.
        """
        self.check_replaceable(folder)
        with self.writing(folder) as temporary:
            for name, array in (arrays or {}).items():
                write_array(temporary / name, array)
            self.write_manifest(temporary, manifest, arrays or ())

    def finish(self, partial: Path, folder: Path) -> None:
        """Let a folder of finished work take the name; an older one of this kind is replaced.

        Raises:
            ValueError: something else is there.
        """
        self.check_replaceable(folder)
        # no second name for the old one: killed here, the work beside it is whole and goes on
        shutil.rmtree(folder, ignore_errors=True)
        commit(partial, folder)

    def open(self, folder: Path, *, fingerprint: str | None = None) -> Artifact[Model]:
        """Open a folder, made from the data of the fingerprint if one is given.

        Raises:
            ValueError: there is no manifest, or it is damaged, of another kind, of other data, or
                of a newer version.
        """
        path = folder / self.file
        plain, files, whole = read_json(path, f"the manifest of {self.name}"), None, True
        if isinstance(plain, dict):
            checksum = plain.pop(CHECKSUM, None)
            whole = self.foreign or checksum == digest(plain)
            kind, version = plain.pop(KIND, None), plain.get("format")
            if kind != self.name and not (self.foreign and kind is None):
                holds = kind if isinstance(kind, str) else "something else"
                raise ValueError(
                    f"{path} holds {holds}, not {self.name}; name another folder, or {self.remedy}"
                )
            if isinstance(version, int) and version > self.latest:
                raise ValueError(
                    f"{folder} has format {version} and this version of counterfoil reads up to "
                    f"{self.latest}; upgrade counterfoil or {self.remedy}"
                )
            if kind is not None:
                files = validated(_Files, plain.pop(FILES, None), path, self.remedy)
        manifest = validated(self.manifest, plain, path, self.remedy)
        if fingerprint is not None:
            self._check_data(folder, manifest, fingerprint)
        if not whole:
            raise ValueError(f"{path} is damaged: its checksum does not fit; {self.remedy}")
        return Artifact(self, folder, manifest, files)

    def read_manifest(self, folder: Path, *, fingerprint: str | None = None) -> Model:
        """The checked manifest of a folder, see `open`."""
        return self.open(folder, fingerprint=fingerprint).manifest

    def write_record(self, folder: Path, record: DataclassInstance) -> None:
        """Write a dataclass as a manifest of the same fields, without files."""
        self.write_manifest(folder, self.manifest(**asdict(record), version=__version__))

    def read_record(self, folder: Path, kind: type[Record]) -> Record | None:
        """The dataclass that `write_record` wrote; None for none.

        Raises:
            ValueError: the file is damaged or of a later version.
        """
        if not is_given(folder / self.file):
            return None
        stored = self.read_manifest(folder)
        return kind(**{each.name: getattr(stored, each.name) for each in fields(kind)})

    def _commit(self, folder: Path, manifest: Model, files: Mapping[str, FileSums]) -> None:
        """Write the manifest: one rename, after which what it says counts."""
        sums = {name: files[name].model_dump() for name in sorted(files)}
        plain = {KIND: self.name, FILES: sums, **manifest.model_dump(mode="json")}
        write_json(folder / self.file, {**plain, CHECKSUM: digest(plain)})

    def _check_data(self, folder: Path, manifest: Model, fingerprint: str) -> None:
        made_from = getattr(manifest, "corpus")  # noqa: B009  (only some manifests have it)
        if made_from == fingerprint:
            return
        split = getattr(manifest, "split", None)
        part = "" if split is None else f" (split {split!r})"
        raise ValueError(
            f"{folder} {self.origin} corpus {made_from}{part}, but this one is {fingerprint}; name "
            f"the data it {self.origin}, with the same corrections, or {self.remedy}"
        )


_Files = dict[str, FileSums]


def kind_of(manifest: Path) -> str | None:
    """The kind that a manifest names; "" for a damaged one, None for none or another program's."""
    if not manifest.is_file():
        return None
    try:
        plain = read_json(manifest, "a manifest")
    except ValueError:
        return ""
    kind = plain.get(KIND) if isinstance(plain, dict) else None
    return kind if isinstance(kind, str) else None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Artifact(Generic[Model]):
    """An opened folder: its checked manifest, and its files.

    Attributes:
        kind: of the folder.
        folder: the folder.
        manifest: the manifest.
        files: size and checksums of every file, by name; None where another program wrote it.
    """

    kind: ArtifactFormat[Model]
    folder: Path
    manifest: Model
    files: Mapping[str, FileSums] | None

    def array(
        self,
        name: str,
        *,
        shape: tuple[int, ...],
        dtype: type[np.generic],
        content: str,
        finite: bool = False,
    ) -> npt.NDArray[Any]:
        """A memory-mapped array that has to be as the manifest promises.

        `content` names it in errors; `finite` refuses NaN and infinities, which reads the whole
        array.

        Raises:
            ValueError: it is missing, damaged, or other than promised.
        """
        path, remedy = self.folder / name, self.kind.remedy
        array = read_array(path, content)
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(
                f"{path} holds {array.dtype} of shape {array.shape}, but its manifest promises "
                f"{np.dtype(dtype)} of shape {shape}; {remedy}"
            )
        self.check(name)
        if finite and not bool(np.isfinite(array).all()):
            raise ValueError(f"{path} holds NaN or infinite numbers; {remedy}")
        return array

    def check(self, *names: str, every: bool = False) -> None:
        """Compare files with their checksums; those of other programs have none.

        Args:
            names: of the files.
            every: read whole files; else 16 blocks of a large one, spread evenly with both ends.

        Raises:
            ValueError: a file is missing or damaged; it is named.
        """
        if self.files is None:
            return
        for name in names:
            path, sums = self.folder / name, self.files.get(name)
            if not path.is_file():
                raise ValueError(
                    f"{path} does not exist, but its manifest names it; restore this file, or "
                    f"{self.kind.remedy}"
                )
            if sums is None or not sums.fit(path, every=every):
                raise ValueError(
                    f"{path} is damaged: its checksum does not fit; restore this file, or "
                    f"{self.kind.remedy}"
                )

    def verify(self) -> None:
        """Read every file whole and compare it with its checksums; see `check`."""
        self.check(*(self.files or ()), every=True)

    def staged(self, names: Iterable[str]) -> Artifact[Model]:
        """The folder with new files beside its own, to be read before they count.

        Their names are of `ArtifactFormat.generations`, and no file had them before.
        """
        new = {name: FileSums.of(self.folder / name) for name in names}
        return Artifact(self.kind, self.folder, self.manifest, {**(self.files or {}), **new})

    def changed(self, manifest: Model, files: Iterable[str]) -> Artifact[Model]:
        """Commit another generation, by one rename of the manifest.

        Args:
            manifest: of the folder from now on.
            files: that count from now on, staged or not.
        """
        known = self.files or {}
        sums = {name: known.get(name) or FileSums.of(self.folder / name) for name in files}
        self.kind._commit(self.folder, manifest, sums)
        return Artifact(self.kind, self.folder, manifest, sums)

    def remove_unused(self) -> None:
        """Remove files of other generations, as replaced and killed changes leave them.

        Files whose names are not of `ArtifactFormat.generations` are left alone.
        """
        assert self.kind.generations is not None
        for path in self.folder.iterdir():
            own = self.kind.generations.fullmatch(path.name)
            if own and path.name not in (self.files or ()) and path.is_file():
                path.unlink()


@final
class GrowingArtifact(Generic[Model]):
    """A folder whose files are appended to; a kill costs what was appended since the last commit.

    Args:
        kind: of the folder.
        folder: is made if needed; one that exists is continued after its last commit.
        manifest: of a new folder.
        names: of the files.

    Raises:
        ValueError: the folder is damaged or of another kind.
    """

    def __init__(
        self, kind: ArtifactFormat[Model], folder: Path, manifest: Model, names: Iterable[str]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.kind, self.folder = kind, folder
        self._sums = dict.fromkeys(names, FileSums())
        self.manifest = manifest
        if (folder / kind.file).exists():
            known = kind.open(folder)
            self.manifest = known.manifest
            self._continue(known.files or {})
        self._files = {name: (folder / name).open("ab") for name in self._sums}
        for name, sums in self._sums.items():
            self._files[name].truncate(sums.size)  # what a killed process wrote after the commit

    def _continue(self, known: Mapping[str, FileSums]) -> None:
        note = self.folder / self.kind.file
        if known.keys() != self._sums.keys():
            raise ValueError(
                f"{note} names other files than are written here; delete {self.folder}"
            )
        for name, sums in known.items():
            path = self.folder / name
            if (path.stat().st_size if path.is_file() else 0) < sums.size:
                raise ValueError(f"{path} is shorter than {note} says; delete {self.folder}")
        self._sums = dict(known)

    def append(self, name: str, data: bytes) -> None:
        """Append to a file."""
        with room_for(self.folder):
            self._files[name].write(data)
        self._sums[name] = self._sums[name].extended(data)

    def commit(self, manifest: Model) -> None:
        """Let everything count that has been appended so far."""
        with room_for(self.folder):
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
        self.kind._commit(self.folder, manifest, self._sums)
        self.manifest = manifest

    def close(self) -> None:
        """Close the files; what was not committed does not count."""
        for file in self._files.values():
            with suppress(OSError):  # on a full disk it cannot write its buffer, but it closes
                file.close()


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)  # which compiles the schema of a dataclass


def _unknown_fields(kind: type[Any], plain: object) -> list[str]:
    """The keys that a dataclass does not have, which pydantic passes over."""
    if not is_dataclass(kind) or not isinstance(plain, dict):
        return []
    known = inspect.signature(kind).parameters
    return [key for key in plain if key not in known]


def validated(
    kind: type[Checked],
    plain: object,
    path: Path,
    remedy: str,
    *,
    strict: bool | None = None,
    version: str = "",
) -> Checked:
    """Plain JSON of a file as a pydantic model or a dataclass.

    Args:
        kind: class of the result.
        plain: what `read_json` returned, or a part of it.
        path: of the file, for errors.
        remedy: end of errors.
        strict: refuse numbers and texts in place of each other; None for what the class says.
        version: of the counterfoil that wrote the file, for errors.

    Raises:
        ValueError: the first thing that is wrong, in one sentence that ends in the remedy.
    """
    try:
        # as JSON: in Python's own values a strict tuple is no list
        adapter: TypeAdapter[Checked] = _adapter(cast(Any, kind))
        checked = adapter.validate_json(json.dumps(plain), strict=strict)
        if unknown := _unknown_fields(kind, plain):
            by = f"another version of counterfoil{version and f' ({version})'}"
            raise ValueError(
                f"{path} was written by {by}: it has the fields {', '.join(unknown)}, which this "
                f"one does not know; {remedy}"
            )
        return checked
    except (TypeError, OverflowError) as error:
        raise ValueError(f"{path} is damaged: {error}; {remedy}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        if version and first["type"] == "missing":
            raise ValueError(
                f"{path} lacks {where}: it is damaged, or was written by another version of "
                f"counterfoil ({version}); {remedy}"
            ) from None
        raise ValueError(f"{path} is damaged: {where}: {first['msg'].lower()}; {remedy}") from None
