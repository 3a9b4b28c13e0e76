"""A registered reader is found by its pattern, and reads a file or its folder."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from PIL import Image

from counterfoil.core import registry
from counterfoil.data.readers import load_dataset
from counterfoil.data.readers.source import Format

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_parts" / "src" / "own_parts" / "reader.py"


@pytest.fixture
def pairs(monkeypatch):
    """The reader of `examples/own_parts`, registered."""
    spec = importlib.util.spec_from_file_location("own_parts_reader", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "own_parts_reader", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(registry._added, ("reader", "*.pairs"), module.FORMAT)


def folder(path, text, pictures):
    path.mkdir()
    (path / "mine.pairs").write_text(text)
    pictures.mkdir(exist_ok=True)
    for name in ("a.png", "b.png"):
        Image.new("RGB", (4, 4)).save(pictures / name)
    return path


def test_a_file_or_its_folder(pairs, tmp_path):
    place = folder(tmp_path / "d", "a.png\tred\n\na.png\tdark\nb.png\tblue\n", tmp_path / "d")
    for given in (place, place / "mine.pairs"):
        data = load_dataset(given)
        assert list(data.texts) == ["red", "dark", "blue"]
        assert data.name == "d"
        assert data.pictures.open(1).size == (4, 4)


def test_a_folder_that_another_package_reads_is_announced(pairs, tmp_path, capsys):
    """Its table of captions is not read, and that is said."""
    place = folder(tmp_path / "d", "a.png\tred\n", tmp_path / "d")
    (place / "captions.csv").write_text("image,caption\nb.png,blue\n")
    assert list(load_dataset(place).texts) == ["red"]
    said = "is read as pairs (NAME.pairs), a reader of another package"
    assert said in " ".join(capsys.readouterr().err.split())
    load_dataset(place / "mine.pairs")
    (place / "mine.pairs").unlink()
    load_dataset(place)  # the table, by a reader of ours
    assert "another package" not in capsys.readouterr().err


def test_pictures_of_another_folder(pairs, tmp_path):
    place = folder(tmp_path / "d", "a.png\tred\nb.png\tblue\n", tmp_path / "elsewhere")
    data = load_dataset(place / "mine.pairs", images=tmp_path / "elsewhere")
    assert data.pictures.open(0).size == (4, 4)


def test_a_line_without_a_tab(pairs, tmp_path):
    place = folder(tmp_path / "d", "a.png\tred\nb.png blue\n", tmp_path / "d")
    with pytest.raises(ValueError, match=r"mine\.pairs, line 2: 'b\.png blue' is no picture, tab"):
        load_dataset(place)


def test_a_format_of_folders_says_so(monkeypatch, tmp_path):
    lists = Format("lists (NAME.lst)", lambda source: source.path.is_dir(), lambda source: None)
    monkeypatch.setitem(registry._added, ("reader", "*.lst"), lists)
    (tmp_path / "train.lst").write_text("a")
    with pytest.raises(ValueError, match=r"is a file of lists \(NAME\.lst\); give its folder, "):
        load_dataset(tmp_path / "train.lst")
