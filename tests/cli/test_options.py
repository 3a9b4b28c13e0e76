"""Settings of data sets, said with their names; options of several commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterfoil.cli.options import data_source
from counterfoil.data.readers.settings import split_settings
from counterfoil.pipelines.run import DataSource


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("photos/", DataSource("photos/")),
        ("hf:me/photos", DataSource("hf:me/photos")),
        ("hf:me/photos:image-column=foto", DataSource("hf:me/photos", image_column="foto")),
        (
            "a.csv:caption-column=Titel, deutsch,images=a,b/",
            DataSource("a.csv", images=Path("a,b/"), caption_column="Titel, deutsch"),
        ),
        ("a:features=f:g/", DataSource("a", features=Path("f:g/"))),
        ("a:unreadable=skip", DataSource("a", skip_unreadable=True)),
        ("a:half=2", DataSource("a", half=2)),
        ("scenes:images=9,half=1", DataSource("scenes:images=9", half=1)),
        ("scenes", DataSource("scenes")),
        ("scenes:images=9,features=regions", DataSource("scenes:images=9,features=regions")),
        ("scenes:corrections=c", DataSource("scenes", corrections=Path("c"))),
        (
            "scenes:images=9,features=/,seed=2",
            DataSource("scenes:images=9,seed=2", features=Path("/")),
        ),
    ],
)
def test_settings_follow_the_name_of_data(text, source):
    assert DataSource.of(text) == source
    assert DataSource.of(source.typed) == source


def test_a_path_that_exists_has_no_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a:images=b").mkdir()
    assert split_settings("a:images=b") == ("a:images=b", {})


def test_settings_of_a_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/anna")
    assert split_settings("a:images=~/b") == ("a", {"images": Path("/home/anna/b")})


def test_the_halves_of_data():
    """What one trains on, dev included, is the test of the other; with seeded draws by the ids."""
    first, second = (DataSource.of(f"scenes:images=40,half={n}").open() for n in (1, 2))
    assert [first.splits.count(name) for name in ("train", "dev", "test")] == [18, 2, 20]
    tested = [split == "test" for split in first.splits]
    assert [split == "test" for split in second.splits] == [not each for each in tested]
    with pytest.raises(ValueError, match="half=3 is no half of the images; give half=1 or half=2"):
        DataSource.of("scenes:half=3")


def test_data_of_a_verb():
    assert data_source(None, "scenes") == DataSource("scenes")
    assert data_source("a", skip_unreadable=True).skip_unreadable
    assert not data_source("a:unreadable=stop", skip_unreadable=True).skip_unreadable
    assert data_source("a", image_column="foto", caption_column=None).image_column == "foto"
    with pytest.raises(ValueError, match=r"no data set is given; add --data"):
        data_source(None)
