"""Read and write files; a written file is complete or absent, never half-written."""

from __future__ import annotations

import glob
import itertools
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def cache_folder() -> Path:
    """Folder of cached files: ``$COUNTERFOIL_CACHE``, or ``~/.cache/counterfoil``."""
    configured = os.environ.get("COUNTERFOIL_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "counterfoil"


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends without error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place when the block ends without error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    owner = f"{os.getpid()}@{socket.gethostname()}"  # lets others see whether the writer is alive
    prefix = f".{path.name}.{owner}."
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=prefix, suffix=".part"))
    old = temporary.with_suffix(".old")
    try:
        yield temporary
        temporary.chmod(0o755)
        if path.exists():
            path.rename(old)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _remove_leftovers(path: Path) -> None:
    """Remove temporary folders that killed processes of this machine left behind.

    An old folder that was moved aside and never replaced is restored.
    """
    prefix, here = f".{path.name}.", socket.gethostname()
    # ".old" first: a folder has to be restored before its unfinished successor is deleted
    matches = [path.parent.glob(f"{glob.escape(prefix)}*.{end}") for end in ("old", "part")]
    for left in itertools.chain(*matches):
        pid, _, host = left.stem.removeprefix(prefix).rpartition(".")[0].partition("@")
        if host != here or not pid.isdigit() or _is_running(int(pid)):
            continue
        if left.suffix == ".old" and not path.exists():
            left.rename(path)
        else:
            shutil.rmtree(left, ignore_errors=True)


def _is_running(pid: int) -> bool:
    """Whether a process of this machine is alive."""
    if os.name == "nt":  # there os.kill would end the process
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def ensure_absent(path: Path, instead: str = "a new folder") -> None:
    """Refuse a path that exists; the error ends in "name", and then what to name instead."""
    if path.exists():
        raise ValueError(f"{path} exists and is left alone; name {instead}")


def ensure_writable_file(path: Path) -> None:
    """Refuse a file that cannot be written, before long work is done for it."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file")
    ensure_writable_folder(path)


def ensure_writable_folder(path: Path) -> None:
    """Refuse a folder that cannot be written, before long work is done for it."""
    above = next(place for place in path.absolute().parents if place.exists())
    if not above.is_dir():
        raise ValueError(f"{path} cannot be written: {above} is a file; name another place")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(
            f"{path} cannot be written: {above} may not be written to; name another place"
        )


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write JSON atomically."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write a `.npy` file atomically."""
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def read_json(path: Path, what: str) -> Any:
    """Read JSON; the error for a missing or damaged file names what it should be."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; {what} is needed there") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as {what}: {error}") from error


def read_array(path: Path, what: str, *, mapped: bool = True) -> npt.NDArray[Any]:
    """Open a `.npy` file, memory-mapped by default; pickled objects are refused."""
    try:
        array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; {what} is needed there") from None
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as {what}: {error}") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} holds several arrays; {what} is one plain .npy array")
    return array


def read_text(path: Path, what: str) -> str:
    """Read a text file in UTF-8, with or without a byte order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; {what} are needed there") from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x}); "
            "save it as UTF-8"
        ) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def read_text_lines(path: Path, what: str) -> list[str]:
    """Read the lines of a text file; only line feeds end a line, and blank lines count."""
    lines = read_text(path, what).split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
