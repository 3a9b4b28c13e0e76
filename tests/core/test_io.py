"""Reading and writing of files: folders are whole or absent, whenever their writer is killed."""

from __future__ import annotations

import errno
import math
import os
import re
import resource
import shutil
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from counterfoil.core import io
from counterfoil.core.io import (
    DEEPEST_JSON,
    LARGEST_TEXT,
    InUse,
    NoRoom,
    atomic_folder,
    atomic_write,
    check_room,
    ensure_absent,
    ensure_writable_file,
    holding,
    in_bytes,
    new_array,
    parse_json,
    parsing,
    read_array,
    read_json,
    read_text,
    read_text_lines,
    room_for,
    write_array,
    write_json,
    write_lock,
    write_text,
)
from processes import ended, forked


def write(path: Path, text: str) -> None:
    with atomic_folder(path) as folder:
        (folder / "text").write_text(text)


def outcome(act: Callable[[], object]) -> int:
    """The exit code of a process of its own, which is what the function returns."""
    return ended(forked(act))


def killed_within(path: Path) -> None:
    """A process that dies while it writes the folder."""

    def dies() -> None:
        with atomic_folder(path) as folder:
            (folder / "text").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    assert outcome(dies) == -signal.SIGKILL


@pytest.mark.parametrize("name", ["lists", "run [1] of *"])
def test_the_next_writer_removes_what_a_killed_one_left(name, tmp_path):
    path = tmp_path / name
    killed_within(path)
    assert len(list(tmp_path.iterdir())) == 1
    assert not path.exists()
    write(path, "whole")
    assert [f.name for f in tmp_path.iterdir()] == [name]
    assert (path / "text").read_text() == "whole"


def test_what_a_killed_writer_moved_aside_is_put_back(tmp_path):
    path = tmp_path / "lists"
    killed_within(path)
    write(tmp_path / "old", "before")
    left = next(tmp_path.glob(".lists.*"))
    (tmp_path / "old").rename(left.with_suffix(".old"))  # killed between the two renames
    with pytest.raises(KeyboardInterrupt), atomic_folder(path):
        raise KeyboardInterrupt
    assert (path / "text").read_text() == "before"
    assert [f.name for f in tmp_path.iterdir()] == ["lists"]


def test_the_folders_of_others_are_left_alone(tmp_path):
    path = tmp_path / "lists"
    others = [".lists.notes.part", f".lists.{os.getpid()}@elsewhere.x.part", ".lists.2.x.1.part"]
    for name in others:
        (tmp_path / name).mkdir()
    with atomic_folder(path) as outer:
        write(path, "inner")
        assert outer.is_dir()
        with pytest.raises(InUse), holding(outer):
            pass
    assert all((tmp_path / name).is_dir() for name in others)


def test_what_is_there_is_left_alone(tmp_path):
    ensure_absent(tmp_path / "new")
    with pytest.raises(ValueError, match=r"exists and is left alone; name a new folder$"):
        ensure_absent(tmp_path)
    (tmp_path / "page.html").touch()
    with pytest.raises(ValueError, match=r"page.html exists .* name a new page with --output$"):
        ensure_absent(tmp_path / "page.html", "a new page with --output")
    ensure_writable_file(tmp_path / "new.html")
    with pytest.raises(ValueError, match=r"page.html exists .* name another file$"):
        ensure_writable_file(tmp_path / "page.html")


def test_only_line_feeds_end_a_line(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes("a\u2028b\x0bc\x85d\r\n\nlast".encode())
    assert read_text_lines(path, "captions") == ["a\u2028b\x0bc\x85d", "", "last"]


def test_byte_order_mark_is_no_word(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xef\xbb\xbfa dog\n")
    assert read_text_lines(path, "captions") == ["a dog"]


def test_bad_files_in_words(tmp_path):
    with pytest.raises(ValueError, match="does not exist; captions are needed there"):
        read_text_lines(tmp_path / "x.txt", "captions")
    (tmp_path / "x.txt").write_bytes(b"ol\xe9\n")
    with pytest.raises(ValueError, match=r"is not UTF-8 text \(byte 2 is 0xe9\)"):
        read_text_lines(tmp_path / "x.txt", "captions")
    with pytest.raises(ValueError, match="cannot be read"):
        read_text_lines(tmp_path, "captions")


# JSON and .npy files from anybody.


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 100_000, f"nested more than {DEEPEST_JSON} deep"),
        (b'{"a":' * 500 + b"1" + b"}" * 500, f"nested more than {DEEPEST_JSON} deep"),
        (b"1" * 5000, "limit"),
        (b'{"a": 1', "Expecting"),
        (b'"ol\xe9"', "0xe9"),
        (b"", "Expecting value"),
    ],
)
def test_json_that_cannot_be_read_is_an_error_in_one_sentence(tmp_path, content, reason):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^\S*x.json cannot be read as a card: ") as caught:
        read_json(path, "a card")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_json_as_deep_as_allowed_is_read():
    text = "[" * DEEPEST_JSON + "1" + "]" * DEEPEST_JSON
    assert str(parse_json(text, "line 1")).count("[") == DEEPEST_JSON
    with pytest.raises(ValueError, match=r"^line 1 is not JSON: it is nested more than"):
        parse_json(f"[{text}]", "line 1")


def test_other_types_than_unpacked_are_errors_that_name_the_file():
    missing = r"^x.json cannot be read as a card: no 'a'; do it again$"
    with pytest.raises(ValueError, match=missing), parsing("x.json", "a card", "do it again"):
        {}["a"]
    for wrong in (None, 1, []):
        with pytest.raises(ValueError, match=r"^x.json cannot"), parsing("x.json", "a card"):
            wrong["a"]


def special(path: Path, kind: str) -> None:
    """Something at a path that is no regular file, or is none that fits into memory."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    else:
        with path.open("wb") as file:
            file.truncate(LARGEST_TEXT + 1)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "loop", "large"])
@pytest.mark.parametrize("read", [read_json, read_text, read_array])
def test_only_regular_files_that_fit_are_read(tmp_path, kind, read):
    path = tmp_path / "x"
    special(path, kind)
    with pytest.raises(ValueError, match="x cannot be read"):
        read(path, "a card")


def with_header(path: Path, header: str, data: bytes = b"") -> None:
    """A file of format 1.0 with any header."""
    text = header.encode().ljust(117) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data)


@pytest.mark.parametrize(
    ("dtype", "shape", "reason"),
    [
        ("<f4", "(-1, 4)", "shape"),
        ("<f4", "(1099511627776, 7)", "promises 30,786,325,577,728 bytes and 64 follow"),
        ("<f4", f"({2**40}, {2**40}, {2**40})", "promises"),
        ("<f4", "(0, -1)", "shape"),
        ("<f4", "()", "at least one axis"),
        ("<f4", "(8, 2", "header"),
        ("<f4", "(" * 500, "header"),
        ("<f4", "8", "not valid"),
        ("<f4", "(8.0, 2)", "not valid"),
        ("<f4", "(2, 2)", "promises 16 bytes and 64 follow"),
        ("|O", "(16,)", "object"),
        ("<U4", "(4,)", "numbers of up to 64 bits"),
        ("<c8", "(8,)", "numbers of up to 64 bits"),
        (">f4", "(16,)", "numbers of up to 64 bits"),
        ("nonsense", "(16,)", "descr"),
    ],
)
@pytest.mark.parametrize("mapped", [True, False])
def test_headers_of_arrays_are_checked_before_numpy_allocates(
    tmp_path, dtype, shape, reason, mapped
):
    path = tmp_path / "x.npy"
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    with_header(path, header, bytes(64))
    with pytest.raises(ValueError, match=r"^\S*x.npy cannot be read as vectors: ") as caught:
        read_array(path, "vectors", mapped=mapped)
    assert reason in str(caught.value)


def test_whole_arrays_are_read(tmp_path):
    for values in (np.arange(6.0).reshape(2, 3), np.zeros(3, np.float16), np.ones(2, bool)):
        np.save(tmp_path / "x.npy", values)
        for mapped in (True, False):
            assert np.array_equal(read_array(tmp_path / "x.npy", "x", mapped=mapped), values)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY", b"\x93NUMPY\x09\x00"])
def test_other_files_are_no_arrays(tmp_path, content):
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"x.npy cannot be read as vectors"):
        read_array(tmp_path / "x.npy", "vectors")


# Locks, and what killed processes leave.


def test_one_process_at_a_time_writes_and_others_hear_which(tmp_path):
    lock = tmp_path / "new" / "run" / ".lock"

    def refused() -> int:
        holder = f"process {os.getppid()} on {socket.gethostname()} since "
        sentence = re.escape(f"runs/a is being written by {holder}") + r"\d{4}-"
        with pytest.raises(InUse, match=sentence), write_lock(lock, "runs/a"):
            pass
        return 7

    with write_lock(lock, "runs/a"):
        assert set(read_json(lock, "a lock")) == {"pid", "host", "boot", "since"}
        assert outcome(refused) == 7
        with pytest.raises(InUse), write_lock(lock, "runs/a"):
            pass
    assert not list(tmp_path.iterdir()), "the lock's folders were left"


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    refused = pytest.raises(ValueError, match="is a link, which is not followed")
    with refused, write_lock(tmp_path / ".lock", "x"):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_lock_ends_with_its_process_though_a_child_lives_on(tmp_path):
    lock, reads, writes = tmp_path / "lock", *os.pipe()

    def killed() -> None:
        with write_lock(lock, "it"):
            if os.fork() == 0:  # outlives it
                os.read(reads, 1)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)

    assert outcome(killed) == -signal.SIGKILL
    with write_lock(lock, "it"):
        pass
    os.write(writes, b"x")


def test_a_dead_writer_with_the_number_of_a_live_process_is_dead(tmp_path):
    """In a container every writer is process 1."""
    path = tmp_path / "lists"
    killed_within(path)
    (left,) = tmp_path.iterdir()
    pid = left.name.split(".")[2].partition("@")[0]
    left.rename(left.with_name(left.name.replace(pid, str(os.getpid()))))
    write(path, "whole")
    assert [f.name for f in tmp_path.iterdir()] == ["lists"]


def test_files_and_folders_have_the_modes_of_the_umask(tmp_path):
    """Whatever writes them: safetensors makes files of mode 600, copies keep other modes."""
    source = tmp_path / "source"
    source.mkdir(mode=0o700)
    (source / "open").touch(mode=0o666)
    (source / "closed").touch(mode=0o600)
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "x.json", 1)
        with atomic_write(tmp_path / "x.safetensors") as temporary:
            save_file({"a": torch.ones(1)}, temporary)
        with atomic_folder(tmp_path / "folder") as temporary:
            shutil.copytree(source, temporary / "copy")
            save_file({"a": torch.ones(1)}, temporary / "x.safetensors")
            (temporary / "link").symlink_to(source / "open")
    finally:
        os.umask(before)
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("*")}
    assert modes[source / "open"] == 0o666 & ~before
    for path, mode in modes.items():
        if source not in (path, *path.parents) and not path.is_symlink():
            assert mode == (0o750 if path.is_dir() else 0o640), path


# Full disks, and durability.


def with_files_of(most: int, act) -> int:
    """The exit code of an action in a process whose files have so many bytes at most."""

    def limited() -> object:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        return act()

    return outcome(limited)


def test_a_full_disk_is_one_sentence(tmp_path):
    def arrays() -> int:
        large = np.zeros(50_000, np.uint8)
        sentence = r"takes 50.0 kB, and files have at most 4.1 kB here \(ulimit -f\); make room"
        for write_large in (
            lambda: write_array(tmp_path / "x.npy", large),
            lambda: new_array(tmp_path / "x.npy", large.shape, np.uint8),
            lambda: write_text(tmp_path / "x", "x" * 50_000),
        ):
            with pytest.raises(NoRoom, match=sentence):
                write_large()
        with pytest.raises(NoRoom, match="files have at most"), atomic_write(tmp_path / "x") as to:
            to.write_bytes(bytes(large))
        with pytest.raises(NoRoom, match="files have at most"), atomic_folder(tmp_path / "f") as to:
            save_file({"x": torch.zeros(9_000)}, to / "x")  # has an exception of its own
        return 7

    assert with_files_of(4096, arrays) == 7
    assert not list(tmp_path.iterdir())


def test_a_disk_with_less_than_is_needed_is_refused_before(tmp_path):
    with pytest.raises(NoRoom, match=r"it takes 1000000.0 TB, and .* are free on its disk"):
        check_room(tmp_path / "x", 10**18)
    assert new_array(tmp_path / "x.npy", (3, 2), np.float16).shape == (3, 2)


def test_files_and_their_folders_are_synced_before_they_count(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append(Path(f"/dev/fd/{number}").readlink())
    )
    write_json(tmp_path / "x.json", 1)
    assert [path.suffix for path in synced] == [".part", ""]
    assert synced[-1] == tmp_path
    synced.clear()
    with atomic_folder(tmp_path / "lists") as folder:
        write_json(folder / "y.json", 1)
        assert not synced  # once, at the end
    assert [path.suffix for path in synced] == [".json", ".part", ""]


def test_a_refusal_within_a_lock_keeps_its_own_sentence(tmp_path):
    inner, outer = tmp_path / "inner", tmp_path / "outer"

    def refused() -> int:
        with (
            pytest.raises(InUse, match=r"^the inner is"),
            write_lock(outer, "the outer"),
            write_lock(inner, "the inner"),
        ):
            pass
        return 7

    with write_lock(inner, "the inner"):
        assert outcome(refused) == 7


def test_sizes_in_words():
    words = {0: "0 bytes", 999: "999 bytes", 1000: "1.0 kB", 10**6: "1.0 MB", 10**12: "1.0 TB"}
    assert {size: in_bytes(size) for size in words} == words


def test_a_full_disk_of_unknown_size_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(io, "_free", lambda path: math.inf)
    with pytest.raises(NoRoom, match="its disk is full"), room_for(tmp_path / "x"):
        raise OSError(errno.ENOSPC, "No space left on device")
