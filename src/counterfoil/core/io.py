"""Read and write files; a written file is complete or absent, never half-written."""

from __future__ import annotations

import errno
import glob
import hashlib
import itertools
import json
import math
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import cache
from itertools import takewhile
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
def atomic_write(path: Path, *, size: int = 0) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends without error.

    The file has the mode that the user's umask gives, whatever writes it.

    Args:
        path: of the file.
        size: bytes that it will have at least, if known; there has to be room for them.

    Raises:
        NoRoom: the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    check_room(path, size)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    with room_for(path, size):
        os.close(os.open(temporary, flags, 0o666))
        mode = temporary.stat().st_mode
        try:
            yield temporary
            temporary.chmod(mode)  # safetensors puts a file of its own there, for the user alone
            commit(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place when the block ends without error.

    The writer holds a lock on the temporary folder, which tells one in use from one that a killed
    process left: the kernel lets go of a lock when its process ends, and numbers of processes mean
    nothing across containers.

    Raises:
        NoRoom: the disk is full.
    """
    _check_link(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    with room_for(path), _new_folder(path) as temporary:
        old = temporary.with_suffix(".old")
        try:
            yield temporary
            _give_modes(temporary)
            _swap(temporary, path, old)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


def _swap(temporary: Path, path: Path, old: Path) -> None:
    """Put a folder in the place of another one; the last of several processes wins."""
    while True:
        with suppress(FileNotFoundError):
            path.rename(old)
        try:
            commit(temporary, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shutil.rmtree(old, ignore_errors=True)  # another process was quicker
        else:
            return


def _give_modes(folder: Path) -> None:
    """Give what is in a new folder the modes of the umask, which the folder has.

    Libraries write files for the user alone, and copies bring the modes of their sources.
    """
    mode = stat.S_IMODE(folder.stat().st_mode)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(mode if path.is_dir() else mode & 0o666)


def commit(temporary: Path, path: Path) -> None:
    """Rename a complete file or folder to its final name, durably: a power cut leaves it whole.

    In a folder of `atomic_folder` nothing is synced yet: all of it is when the folder is committed.
    """
    within = any(parent.suffix == ".part" for parent in path.parents)
    if not within:
        for file in (*temporary.rglob("*"), temporary):
            _sync(file)
    temporary.replace(path)
    if not within:
        _sync(path.parent)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if os.name == "nt" or path.is_symlink():  # Windows opens no folder; a link is a name
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks sync no folders
            raise
    finally:
        os.close(descriptor)


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """A new temporary folder beside `path`, which this process locks."""
    # the name says on which boot of which machine the lock means anything
    prefix = f".{path.name}.{os.getpid()}@{socket.gethostname()}+{boot_id()[:8]}"
    while True:
        temporary = path.with_name(f"{prefix}.{secrets.token_hex(4)}.part")
        temporary.mkdir()
        with holding(temporary):
            if temporary.exists():  # else another process took it for a leftover before the lock
                yield temporary
                return


def _remove_leftovers(path: Path) -> None:
    """Remove temporary folders that killed processes left behind.

    An old folder that was moved aside and never replaced is restored.
    """
    prefix = f".{path.name}."
    # ".old" first: a folder has to be restored before its unfinished successor is deleted
    matches = [path.parent.glob(f"{glob.escape(prefix)}*.{end}") for end in ("old", "part")]
    for left in itertools.chain(*matches):
        owner = left.stem.removeprefix(prefix).rpartition(".")[0]
        pid, _, place = owner.partition("@")
        host, _, boot = place.partition("+")
        # locks of other machines need not be visible here
        if not pid.isdigit() or (host != socket.gethostname() and boot != boot_id()[:8]):
            continue
        with suppress(InUse), holding(left.with_suffix(".part")):
            if left.suffix == ".old" and not path.exists():
                left.rename(path)
            else:
                shutil.rmtree(left, ignore_errors=True)


# Locks.


class InUse(ValueError):
    """Another process holds a lock."""


_held: set[int] = set()  # descriptors of locks


def _let_go() -> None:
    """Close the locks of a parent process: a child that outlives it must not keep them."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


@cache
def boot_id() -> str:
    """Name of this start of this machine, the same in all its containers; "" if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@contextmanager
def holding(path: Path, *, wait: bool = False) -> Iterator[int]:
    """Hold the lock of an existing file or folder; it is let go when the process ends, however.

    Where the system has no such locks nothing is held. A path that does not exist is not locked.

    Yields:
        The open descriptor, or -1.

    Raises:
        InUse: another process holds it, and this one is not to wait.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR
    descriptor = -1
    try:
        import fcntl

        descriptor = os.open(path, flags)
        _held.add(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except (ImportError, FileNotFoundError):
        pass
    except BlockingIOError:
        _close(descriptor)
        raise InUse(f"{path} is in use") from None
    except OSError as error:  # network disks without locks
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EBADF):
            _close(descriptor)
            raise
    try:
        yield descriptor
    finally:
        _close(descriptor)


def _close(descriptor: int) -> None:
    if descriptor in _held:  # not so in a child process
        _held.remove(descriptor)
        os.close(descriptor)


@contextmanager
def write_lock(lock: Path, name: object, *, wait: bool = False) -> Iterator[None]:
    """Let one process at a time write; the lock's file says which.

    The file is removed afterwards, and so are folders that were made for it and stay empty.

    Args:
        lock: the lock's file.
        name: of what is written, for the error.
        wait: wait for the other process.

    Raises:
        InUse: another process is writing; the sentence says which, and since when.
    """
    made = tuple(takewhile(lambda folder: not folder.exists(), lock.parents))
    try:
        with _lock_file(lock, name, wait=wait):
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
    finally:
        for folder in made:
            with suppress(OSError):  # it has become something
                folder.rmdir()


@contextmanager
def _lock_file(lock: Path, name: object, *, wait: bool) -> Iterator[None]:
    with ExitStack() as stack:
        while True:
            lock.parent.mkdir(parents=True, exist_ok=True)
            if lock.is_symlink():  # a folder may be untrusted; the holder is written there
                raise ValueError(f"{lock} is a link, which is not followed; remove it")
            flags = os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)
            os.close(os.open(lock, flags, 0o666))
            try:
                descriptor = stack.enter_context(holding(lock, wait=wait))
            except InUse:
                raise InUse(
                    f"{name} is being written by {_holder(lock)}; wait until that ends, or name "
                    "another place"
                ) from None
            if descriptor < 0 or _is_open_as(descriptor, lock):
                break
            stack.close()  # its last holder removed the file meanwhile
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "boot": boot_id()}
        with suppress(OSError):  # on a full disk the lock holds all the same, unnamed
            lock.write_text(json.dumps({**holder, "since": since}), encoding="utf-8")
        yield


def _is_open_as(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _holder(lock: Path) -> str:
    """Description of the process that holds a lock."""
    try:
        known = json.loads(lock.read_text(encoding="utf-8"))
        return f"process {known['pid']} on {known['host']} since {known['since']}"
    except (OSError, ValueError, LookupError, TypeError):  # it is just being written
        return "another process"


# Room on the disk.


class NoRoom(OSError):
    """A disk has no room for a file."""

    def __init__(self, path: Path, size: int, free: str) -> None:
        needed = f"it takes {in_bytes(size)}, and " if size else ""
        super().__init__(
            f"{path} cannot be written: {needed}{free}; make room or name another place, and run "
            "the command again"
        )


_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
# libraries that write themselves report a full disk in words only
_FULL_IN_WORDS = re.compile(
    rf"os error ({'|'.join(map(str, _FULL))})\b|requested and \d+ written|"
    "No space left on device|File too large|Disk quota exceeded"
)


def in_bytes(size: float) -> str:
    """A number of bytes in words.

    >>> in_bytes(1_234_567)
    '1.2 MB'
    """
    units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")]
    for factor, unit in units:
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} bytes"


def check_room(path: Path, size: int) -> None:
    """Refuse to write a file of this many bytes where there is no room.

    Raises:
        NoRoom: the disk has less, or files may not be so large.
    """
    most, free = _largest_file(), _free(path)
    if size > most:
        raise NoRoom(path, size, f"files have at most {in_bytes(most)} here (ulimit -f)")
    if size > free:
        raise NoRoom(path, size, f"{in_bytes(free)} are free on its disk")


@contextmanager
def room_for(path: Path, size: int = 0) -> Iterator[None]:
    """Report a full disk in one sentence."""
    try:
        yield
    except NoRoom:
        raise
    except Exception as error:  # safetensors, faiss and numpy have exceptions of their own
        code = error.errno if isinstance(error, OSError) else None
        if code not in _FULL and not _FULL_IN_WORDS.search(str(error)):
            raise
        left = _free(path)
        free = "its disk is full" if left == math.inf else f"{in_bytes(left)} are free on its disk"
        if (most := _largest_file()) < left:
            free = f"files have at most {in_bytes(most)} here (ulimit -f)"
        raise NoRoom(path, size, free) from error


def _free(path: Path) -> float:
    """Bytes that this user may write on the disk of a path; infinite if unknown."""
    above = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not hasattr(os, "statvfs"):
        return shutil.disk_usage(above).free
    disk = os.statvfs(above)
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else math.inf


def _largest_file() -> float:
    """Bytes that a file of this process may have."""
    try:
        import resource
    except ImportError:  # Windows
        return math.inf
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return math.inf if most == resource.RLIM_INFINITY else most


def is_given(path: Path) -> bool:
    """True if something has this name, and be it a link to nothing, which is refused when read."""
    return os.path.lexists(path)


def in_words(error: OSError) -> str:
    """An error of the system as a sentence."""
    if error.errno is None or error.filename is None:
        return str(error)
    place = Path(os.fsdecode(error.filename))
    remedy = "set COUNTERFOIL_CACHE to" if _is_cached(place) else "name"
    reason = (error.strerror or "the system refuses it").lower()
    return f"{place} cannot be used: {reason}; {remedy} another place"


def _is_cached(place: Path) -> bool:
    return cache_folder() in (place, *place.parents) or place in cache_folder().parents


def ensure_absent(path: Path, instead: str = "a new folder") -> None:
    """Refuse a path that exists; the error ends in "name", and then what to name instead."""
    if is_given(path):
        raise ValueError(f"{path} exists and is left alone; name {instead}")


def _check_link(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        raise ValueError(f"{path} is a link to nothing, or to itself; name another place")


def ensure_writable_file(path: Path, *, exist_ok: bool = False) -> None:
    """Refuse a file that exists or cannot be written, before long work is done for it."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file")
    if not exist_ok:
        ensure_absent(path, "another file")
    ensure_writable_folder(path)


def ensure_writable_folder(path: Path) -> None:
    """Refuse a folder that cannot be written, before long work is done for it."""
    _check_link(path)
    above = next(place for place in path.absolute().parents if place.exists())
    if not above.is_dir():
        raise ValueError(f"{path} cannot be written: {above} is a file; name another place")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(
            f"{path} cannot be written: {above} may not be written to; name another place"
        )


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_write(path, size=len(text)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON with sorted keys, atomically."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write a `.npy` file atomically."""
    with atomic_write(path, size=array.nbytes) as temporary, temporary.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def new_array(
    path: Path, shape: tuple[int, ...], dtype: npt.DTypeLike
) -> np.memmap[Any, np.dtype[Any]]:
    """A new ``.npy`` file of zeros, mapped into memory, whose room on the disk is reserved.

    Without it a full disk would end the process with SIGBUS when a page is written.

    Raises:
        NoRoom: there is no room; the file is removed.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    check_room(path, size)
    try:
        with room_for(path, size):
            array = np.lib.format.open_memmap(path, "w+", dtype, shape)
            if hasattr(os, "posix_fallocate"):  # not on macOS
                with path.open("r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return array


LARGEST_TEXT = 4 << 30  # bytes of a JSON or text file, which is held in memory whole
DEEPEST_JSON = 100  # lists and objects in one another; what walks the value recurses
# what numpy's header parser raises beside ValueError, depending on the bytes
_BAD_HEADER = (TokenError, SyntaxError, TypeError, KeyError, OverflowError, MemoryError)


def files_digest(path: Path) -> str:
    """Return sixteen hex digits, the hash of a file, or of all files below a folder."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    for file in filter(Path.is_file, files):
        digest.update(file.relative_to(path).as_posix().encode())
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:16]


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

    `remedy` follows a semicolon. An error that says already where it is stays as it is.
    """
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        if isinstance(error, ValueError) and str(error).startswith(f"{where} "):
            raise
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


def read_text(path: Path, what: str, *, exact: bool = False) -> str:
    """Read a text file in UTF-8, with or without a byte order mark.

    If `exact`, line ends stay as they are; by default each is a line feed.
    """
    try:
        _check_text(path)
        if exact:
            return path.read_bytes().decode("utf-8-sig")
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
