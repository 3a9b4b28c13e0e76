"""Artifacts come back as they were saved, or are refused in words."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from counterfoil.core.artifact import FILES, KIND, MANIFEST, ArtifactFormat, ArtifactManifest
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
