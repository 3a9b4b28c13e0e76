"""Read and write files; a written file is complete or absent, never half-written."""

from __future__ import annotations

import errno
import glob
import itertools
import json
import math
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
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


LARGEST_TEXT = 4 << 30  # bytes of a JSON or text file, which is held in memory whole
DEEPEST_JSON = 100  # lists and objects in one another; what walks the value recurses
# what numpy's header parser raises beside ValueError, depending on the bytes
_BAD_HEADER = (TokenError, SyntaxError, TypeError, KeyError, OverflowError, MemoryError)


def check_file(path: Path) -> None:
    """Refuse what cannot be read to its end: a pipe without a writer would hang, a device too.

    Pipes under ``/dev`` are open already, as in ``<(command)`` of a shell.

    Raises:
        OSError: it is no regular file, or there is none.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode) and not path.is_relative_to("/dev"):
        raise OSError("it is no regular file")


def parse_json(text: str | bytes, where: object) -> Any:
    """Parse JSON; the error names where it is from.

    Raises:
        ValueError: it is no JSON, or nested more than `DEEPEST_JSON` deep.
    """
    try:
        return _parsed(text)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None


def _parsed(text: str | bytes) -> Any:
    deep = f"it is nested more than {DEEPEST_JSON} deep"
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(deep) from None
    level, depth = [value], 0
    while level := [
        inner
        for outer in level
        if isinstance(outer, dict | list)
        for inner in (outer.values() if isinstance(outer, dict) else outer)
    ]:
        depth += 1
        if depth > DEEPEST_JSON:
            raise ValueError(deep)
    return value


@contextmanager
def parsing(where: object, what: str, remedy: str = "") -> Iterator[None]:
    """Report JSON of other types than the block unpacks: a `ValueError` that says where it is.

    `remedy` follows a semicolon.
    """
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        end = f"; {remedy}" if remedy else ""
        raise ValueError(f"{where} cannot be read as {what}: {reason}{end}") from error


def read_json(path: Path, what: str) -> Any:
    """Read JSON; the error for a missing or damaged file names what it should be."""
    try:
        _check_text(path)
        return _parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; {what} is needed there") from None
    except (OSError, ValueError) as error:  # ValueError also for a number of 5,000 digits
        raise ValueError(f"{path} cannot be read as {what}: {error}") from error


def read_array(path: Path, what: str, *, mapped: bool = True) -> npt.NDArray[Any]:
    """Open a `.npy` file of numbers, memory-mapped by default.

    Raises:
        ValueError: there is none, it holds something else than numbers, such as pickled objects, or
            another number of bytes than its header promises.
    """
    try:
        check_file(path)
        _check_header(path)
        array: npt.NDArray[Any] = np.load(
            path, mmap_mode="r" if mapped else None, allow_pickle=False
        )
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; {what} is needed there") from None
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as {what}: {error}") from error
    return array


def _check_header(path: Path) -> None:
    """Refuse a header that numpy would choke on, or that promises more than the file has."""
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            if version == (1, 0):
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            else:
                shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        except _BAD_HEADER as error:
            raise ValueError(f"its header is damaged ({error})") from None
        size = os.fstat(file.fileno()).st_size - file.tell()
    if dtype.kind not in "biuf" or dtype.itemsize > 8 or not dtype.isnative:
        raise ValueError(f"it holds {dtype}, and numbers of up to 64 bits are read")
    if not shape or min(shape) < 0:
        raise ValueError(f"it has shape {shape}, and an array with at least one axis is needed")
    if math.prod(shape) * dtype.itemsize != size:
        raise ValueError(
            f"its header promises {math.prod(shape) * dtype.itemsize:,} bytes and {size:,} follow"
        )


def _check_text(path: Path) -> None:
    check_file(path)
    if (size := path.stat().st_size) > LARGEST_TEXT:
        raise OSError(f"it has {size:,} bytes, and at most {LARGEST_TEXT:,} are read")


def read_text(path: Path, what: str) -> str:
    """Read a text file in UTF-8, with or without a byte order mark."""
    try:
        _check_text(path)
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
