"""Artifacts: folders with a JSON manifest and numpy arrays, written whole or not at all.

An `ArtifactFormat` is declared once for each kind of folder. It writes the folder atomically,
refuses to replace anything that is no such folder, and checks on opening that the manifest can be
read, is of this kind, of a known version and for these data, and that every array has the dtype
and shape that the manifest promises. Every error is one sentence that ends in a remedy.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, final

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from counterfoil.core.checksums import checksums, fits
from counterfoil.core.io import (
    atomic_folder,
    is_given,
    read_array,
    read_json,
    write_array,
    write_json,
)

CHECKSUMS = "checksums.json"  # of the arrays
MANIFEST = "manifest.json"
KIND = "artifact"  # key of the manifest file that names the format; absent where others write it

Model = TypeVar("Model", bound=BaseModel)
Checked = TypeVar("Checked")


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

    def exists(self, folder: Path) -> bool:
        """Return True if the folder has a manifest."""
        return (folder / self.file).is_file()

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

    def write_manifest(self, folder: Path, manifest: Model) -> None:
        """Write checksums of the arrays, and the manifest, which makes the folder complete."""
        if sums := {path.name: [*checksums(path)] for path in sorted(folder.glob("*.npy"))}:
            write_json(folder / CHECKSUMS, sums)
        write_json(folder / self.file, {KIND: self.name, **manifest.model_dump(mode="json")})

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
            self.write_manifest(temporary, manifest)

    def read_manifest(self, folder: Path, *, fingerprint: str | None = None) -> Model:
        """The checked manifest of a folder, made from the data of the fingerprint if one is given.

        Raises:
            ValueError: there is none, it is damaged, of another kind, of other data, or of a newer
                version.
        """
        path = folder / self.file
        plain = read_json(path, f"the manifest of {self.name}")
        if isinstance(plain, dict):
            kind, version = plain.pop(KIND, self.name), plain.get("format")
            if kind != self.name:
                raise ValueError(f"{folder} holds {kind}, not {self.name}; name another folder")
            if isinstance(version, int) and version > self.latest:
                raise ValueError(
                    f"{folder} has format {version} and this version of counterfoil reads up to "
                    f"{self.latest}; upgrade counterfoil or {self.remedy}"
                )
        manifest = validated(self.manifest, plain, path, self.remedy)
        if fingerprint is not None:
            self._check_data(folder, manifest, fingerprint)
        return manifest

    def array(
        self,
        folder: Path,
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
        path = folder / name
        array = read_array(path, content)
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(
                f"{path} holds {array.dtype} of shape {array.shape}, but its manifest promises "
                f"{np.dtype(dtype)} of shape {shape}; {self.remedy}"
            )
        self.check_sums(folder, name)
        if finite and not bool(np.isfinite(array).all()):
            raise ValueError(f"{path} holds NaN or infinite numbers; {self.remedy}")
        return array

    def check_sums(self, folder: Path, *names: str) -> None:
        """Compare arrays with their checksums; folders of other programs have none.

        Raises:
            ValueError: an array is damaged.
        """
        if not is_given(folder / CHECKSUMS):
            return
        sums = read_json(folder / CHECKSUMS, "checksums")
        for name in names:
            if not isinstance(sums, dict) or not fits(folder / name, sums.get(name)):
                raise ValueError(
                    f"{folder / name} is damaged: its checksum does not fit; {self.remedy}"
                )

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


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)  # which compiles the schema of a dataclass


def validated(
    kind: type[Checked], plain: object, path: Path, remedy: str, *, strict: bool | None = None
) -> Checked:
    """Plain JSON of a file as a pydantic model or a dataclass.

    Args:
        kind: class of the result.
        plain: what `read_json` returned, or a part of it.
        path: of the file, for errors.
        remedy: end of errors.
        strict: refuse numbers and texts in place of each other; None for what the class says.

    Raises:
        ValueError: the first thing that is wrong, in one sentence that ends in the remedy.
    """
    try:
        # as JSON: in Python's own values a strict tuple is no list
        adapter: TypeAdapter[Checked] = _adapter(cast(Any, kind))
        checked = adapter.validate_json(json.dumps(plain), strict=strict)
        if is_dataclass(kind) and isinstance(plain, dict):  # pydantic passes over unknown keys
            inspect.signature(kind).bind(**plain)
        return checked
    except (TypeError, OverflowError) as error:
        raise ValueError(f"{path} is damaged: {error}; {remedy}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise ValueError(f"{path} is damaged: {where}: {first['msg'].lower()}; {remedy}") from None
