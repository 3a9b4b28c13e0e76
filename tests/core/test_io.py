"""Reading and writing of files: folders are whole or absent, whenever their writer is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from counterfoil.core.io import atomic_folder, ensure_absent, read_text_lines


def write(path: Path, text: str) -> None:
    with atomic_folder(path) as folder:
        (folder / "text").write_text(text)


def killed_within(path: Path) -> None:
    """A process that dies while it writes the folder."""
    child = os.fork()
    if child == 0:
        with atomic_folder(path) as folder:
            (folder / "text").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


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
    assert all((tmp_path / name).is_dir() for name in others)


def test_what_is_there_is_left_alone(tmp_path):
    ensure_absent(tmp_path / "new")
    with pytest.raises(ValueError, match=r"exists and is left alone; name a new folder$"):
        ensure_absent(tmp_path)
    (tmp_path / "page.html").touch()
    with pytest.raises(ValueError, match=r"page.html exists .* name a new page with --output$"):
        ensure_absent(tmp_path / "page.html", "a new page with --output")


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
