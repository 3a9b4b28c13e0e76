"""Links to nothing and in a circle where a file may be, and places that cannot be written."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from corpus_cases import write_picture
from counterfoil.core.io import in_words
from counterfoil.data.corrections import corrections_beside, read_corrections
from counterfoil.data.features import FEATURES, FeaturesManifest, open_features
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.exchanges import EXCHANGES, WordExchanges
from counterfoil.search.calibrate import CALIBRATION, Calibration
from counterfoil.search.hubness import HUBNESS, HubnessCorrection
from recipes_cases import pixel_model, run


def circle(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


def nothing(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("gone")


def features(folder: Path):
    told = FeaturesManifest(ids=["a", "b"])
    FEATURES.save(folder / "f", told, {"features.npy": np.ones((2, 1, 3), np.float32)})
    return folder / "f", lambda: open_features(folder / "f")


def vectors(folder: Path):
    for name in ("images", "texts"):
        np.save(folder / f"{name}.npy", np.ones((2, 3), np.float32))
    return folder, lambda: load_dataset(folder)


def corrections(folder: Path):
    return folder, lambda: read_corrections(corrections_beside(str(folder)) or folder / "none")


def of_an_index(read):
    return lambda folder: (folder, lambda: read(folder))


OPTIONAL = [
    (vectors, "captions.json"),
    (vectors, "captions.txt"),
    (vectors, "owner.npy"),
    (vectors, "owner.json"),
    (vectors, "image_ids.json"),
    (vectors, "text_ids.json"),
    (vectors, "splits.json"),
    (features, "boxes.npy"),
    (features, "lengths.npy"),
    (corrections, "corrections.jsonl"),
    (of_an_index(Calibration.read), CALIBRATION),
    (of_an_index(WordExchanges.read), EXCHANGES),
    (of_an_index(lambda folder: HubnessCorrection.read(folder, 2)), HUBNESS),
]


@pytest.mark.parametrize("link", [circle, nothing])
@pytest.mark.parametrize(("made", "name"), OPTIONAL)
def test_a_broken_link_is_not_taken_for_no_file(made, name, link, tmp_path):
    folder, opened = made(tmp_path)
    link(folder / name)
    with pytest.raises(ValueError, match=name):
        opened()


DATA = "scenes:images=6"
WRITERS = {
    "index": ("index", "{model}", DATA, "--output"),
    "convert": ("data", "convert", DATA, "--output"),
    "rules": ("papers", "write", "rules", DATA, "--output"),
    "mine": ("mine", "{model}", "--data", DATA, "--output"),
    "audit": ("audit", DATA, "--output"),
    "foils": ("foils", "{model}", "scenes:images=12", "--json"),
}


@pytest.mark.papers
@pytest.mark.parametrize("link", [circle, nothing])
@pytest.mark.parametrize("verb", WRITERS)
def test_a_broken_link_as_output_is_left_alone(verb, link, tmp_path, capsys):
    out, model = tmp_path / "out.json", pixel_model(tmp_path / "model")
    link(out)
    assert run(*(word.format(model=model) for word in WRITERS[verb]), out) == 2
    told = capsys.readouterr().err
    assert "Errno" not in told
    assert str(out) in told
    assert out.is_symlink()


@pytest.mark.parametrize("place", ["file/cache", "circle/cache", "/proc/cache"])
def test_a_cache_that_cannot_be_made_is_said(place, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    circle(tmp_path / "circle")
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / place))
    model = pixel_model(tmp_path / "model")
    assert run("evaluate", model, "--data", DATA) in (0, 2)
    assert run("cache") in (0, 2)
    told = capsys.readouterr().err
    assert "Errno" not in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/a/b"), "/a/b cannot be used: perm"),
        (OSError(errno.ELOOP, "Too many levels", b"/a/\xff"), "cannot be used: too many levels"),
        (OSError("in words already"), "in words already"),
    ],
)
def test_errors_of_the_system_are_sentences(error, told):
    assert told in in_words(error)
    assert "Errno" not in in_words(error)


def test_the_variable_of_the_cache_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))
    error = OSError(errno.ENOTDIR, "Not a directory", str(tmp_path / "cache" / "states"))
    assert "set COUNTERFOIL_CACHE to another place" in in_words(error)
    error = OSError(errno.ENOTDIR, "Not a directory", "/elsewhere")
    assert "; name another place" in in_words(error)


NO_UTF8 = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}


@pytest.mark.papers
@pytest.mark.parametrize("verb", WRITERS)
def test_a_folder_that_may_not_be_written_is_refused_first(verb, tmp_path, monkeypatch, capsys):
    """As for anybody but the administrator, who may write everywhere."""
    model, closed = pixel_model(tmp_path / "model"), tmp_path / "closed"
    closed.mkdir()
    allowed = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path) != closed and allowed(path, mode)
    )
    words = (word.format(model=model) for word in WRITERS[verb])
    assert run(*words, closed / "out.json") == 2
    told = capsys.readouterr().err
    assert "cannot be written: " in told
    assert "name another place" in told
    assert list(closed.iterdir()) == []


@pytest.mark.slow
def test_names_that_the_locale_cannot_write_are_no_damage(tmp_path):
    write_picture(tmp_path / "photos" / "犬.png", seed=0)
    line = {"file_name": "犬.png", "text": "a café"}
    (tmp_path / "photos" / "metadata.jsonl").write_text(json.dumps(line), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "counterfoil.cli", "data", "check", str(tmp_path / "photos")],
        env=os.environ | NO_UTF8,
        capture_output=True,
        check=False,
    )
    told = " ".join((done.stdout + done.stderr).decode("ascii").split())  # printable anywhere
    assert done.returncode == 2
    assert "damaged" not in told
    assert "Traceback" not in told
