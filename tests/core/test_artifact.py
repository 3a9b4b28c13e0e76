"""Artifacts come back as they were saved, or are refused in words."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.core import checksums
from counterfoil.core.artifact import (
    FILES,
    KIND,
    MANIFEST,
    ArtifactFormat,
    ArtifactManifest,
    GrowingArtifact,
)
from counterfoil.core.checksums import FileSums
from counterfoil.core.io import write_json


class Note(ArtifactManifest):
    corpus: str
    split: str = "train"
    count: int


NOTES = ArtifactFormat(
    name="notes", manifest=Note, remedy="note it again", origin="was noted on", latest=2
)
NOTE = Note(corpus="aa", count=3, version="0.1.0")
ROWS = np.arange(3, dtype=np.float32)


def test_a_folder_comes_back_as_it_was(tmp_path):
    folder = tmp_path / "n"
    NOTES.save(folder, NOTE, {"rows.npy": ROWS})
    assert NOTES.read_manifest(folder, fingerprint="aa") == NOTE
    rows = NOTES.open(folder).array("rows.npy", shape=(3,), dtype=np.float32, content="rows")
    assert rows.tolist() == [0, 1, 2]
    assert isinstance(rows, np.memmap)
    NOTES.save(folder, NOTE)
    assert [path.name for path in folder.iterdir()] == [MANIFEST]
    assert [path.name for path in tmp_path.iterdir()] == ["n"]


def test_folders_of_other_programs_open_without_a_kind_and_checksums(tmp_path):
    foreign = replace(NOTES, foreign=True)
    for plain in ({"count": 3}, {"count": 3, "format": 1}):
        write_json(tmp_path / MANIFEST, {"corpus": "aa", "version": "0.1.0", **plain})
        opened = foreign.open(tmp_path)
        assert opened.manifest == NOTE
        opened.verify()
        opened.check("rows.npy")
        assert foreign.exists(tmp_path)
        assert not NOTES.exists(tmp_path)
        with pytest.raises(ValueError, match="holds something else, not notes"):
            NOTES.open(tmp_path)


@pytest.mark.parametrize(
    "change,message",
    [
        (None, "does not exist; the manifest of notes"),
        ({"format": 3}, "has format 3 and .* up to 2; upgrade .* or note it again"),
        ({"count": "x"}, "is damaged: count: .*; note it again"),
        ({"colour": "red"}, "is damaged: colour: "),
        ({KIND: "lists"}, "holds lists, not notes; name another folder"),
        ({FILES: None}, "is damaged: the whole: .*; note it again"),
        ({FILES: {"a": {"size": 3, "sums": "xyz"}}}, r"is damaged: a\.sums: "),
        ([1], "is damaged: the whole: "),
        ({"split": "dev"}, "is damaged: its checksum does not fit; note it again"),
        (
            {"corpus": "bb"},
            r"was noted on corpus bb \(split 'train'\), but this one is aa; name the data it was "
            "noted on, with the same corrections, or note it again",
        ),
    ],
)
def test_any_other_manifest_is_refused(tmp_path, change, message):
    NOTES.write_manifest(tmp_path, NOTE)
    path = tmp_path / MANIFEST
    if change is None:
        path.unlink()
    else:
        plain = json.loads(path.read_text())
        write_json(path, {**plain, **change} if isinstance(change, dict) else change)
    with pytest.raises(ValueError, match=message):
        NOTES.read_manifest(tmp_path, fingerprint="aa")


@pytest.mark.parametrize(
    "rows,message",
    [
        (ROWS[:2], r"holds float32 of shape \(2,\), but .* promises float32 of shape \(3,\)"),
        (ROWS.astype(np.int32), "holds int32"),
        (np.full(3, np.nan, np.float32), "holds NaN or infinite numbers; note it again"),
    ],
)
def test_any_other_array_is_refused(tmp_path, rows, message):
    NOTES.save(tmp_path / "n", NOTE, {"rows.npy": rows})
    with pytest.raises(ValueError, match=message):
        NOTES.open(tmp_path / "n").array(
            "rows.npy", shape=(3,), dtype=np.float32, content="rows", finite=True
        )


def test_nothing_else_is_replaced_and_nothing_is_half_written(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    (tmp_path / "file").touch()
    (tmp_path / "page").mkdir()
    write_json(tmp_path / "page" / MANIFEST, {"name": "my web page"})
    for name in ("photos", "file", "page"):
        with pytest.raises(ValueError, match=f"{name} exists and holds no notes"):
            NOTES.save(tmp_path / name, NOTE)
    with pytest.raises(RuntimeError, match="no manifest"), NOTES.writing(tmp_path / "n"):
        pass
    assert not (tmp_path / "n").exists()


@given(
    parts=st.lists(st.binary(max_size=40), max_size=8),
    block=st.integers(1, 50),
    damage=st.integers(0, 400),
)
def test_checksums_go_on_where_a_file_is_appended_to(tmp_path_factory, parts, block, damage):
    path = tmp_path_factory.mktemp("x") / "file"
    path.write_bytes(b"".join(parts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksums, "BLOCK", block)
        sums = FileSums()
        for part in parts:
            sums = sums.extended(part)
        assert sums == FileSums.of(path)
        assert sums.fit(path)
        if content := bytearray(path.read_bytes()):
            content[damage % len(content)] ^= 1
            path.write_bytes(content)
            assert not sums.fit(path, every=True)
        path.write_bytes(content + b"x")
        assert not sums.fit(path)


def test_an_artifact_grows_by_commits(tmp_path):
    """What was appended and not committed does not count, whatever is in the files."""
    folder = tmp_path / "n"
    growing = GrowingArtifact(NOTES, folder, NOTE, ["a", "b"])
    growing.append("a", b"one")
    growing.commit(NOTE)
    growing.append("a", b"lost")
    growing.append("b", b"lost")
    growing.close()
    assert NOTES.open(folder).files["a"].size == 3
    growing = GrowingArtifact(NOTES, folder, NOTE, ["a", "b"])
    growing.append("a", b"two")
    growing.commit(NOTE.model_copy(update={"count": 4}))
    growing.close()
    opened = NOTES.open(folder)
    opened.verify()
    assert ((folder / "a").read_bytes(), (folder / "b").read_bytes()) == (b"onetwo", b"")
    assert opened.manifest.count == 4
    with pytest.raises(ValueError, match="names other files than are written here"):
        GrowingArtifact(NOTES, folder, NOTE, ["a"])


def test_another_generation_counts_with_its_manifest(tmp_path):
    kind = replace(NOTES, generations=re.compile(r"\d+\.npy"))
    kind.save(tmp_path / "n", NOTE, {"0.npy": ROWS})
    before, folder = kind.open(tmp_path / "n"), tmp_path / "n"
    for name in ("1.npy", "7.npy", "mine.npy"):
        np.save(folder / name, ROWS)
    staged = before.staged(["1.npy"])
    staged.check("0.npy", "1.npy")
    assert kind.open(folder).files.keys() == {"0.npy"}
    after = staged.changed(NOTE.model_copy(update={"count": 4}), ["1.npy"])
    after.remove_unused()
    assert {path.name for path in folder.iterdir()} == {"1.npy", "mine.npy", MANIFEST}
    assert (after.manifest, after.files) == (kind.open(folder).manifest, kind.open(folder).files)
