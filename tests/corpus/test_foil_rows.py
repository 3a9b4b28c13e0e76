"""Entries of files, whatever holds them, and what each is called in a message."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.corpus.foil_rows import read_rows

ENTRIES = [{"image": "a.jpg", "caption": "a dog"}, {"image": "b.jpg", "caption": "ein Hündchen"}]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text", "called"),
    [
        ("a.json", json.dumps(ENTRIES), ["entry 0", "entry 1"]),
        ("a.json", json.dumps(dict(zip("xy", ENTRIES))), ["entry 'x'", "entry 'y'"]),
        (
            "a.json",
            json.dumps({"images": [], "annotations": ENTRIES}),
            ["annotations[0]", "annotations[1]"],
        ),
        ("a.jsonl", "\n\n".join(map(json.dumps, ENTRIES)), ["line 1", "line 3"]),
        ("a.jsonl", "\ufeff" + "\r\n".join(map(json.dumps, ENTRIES)), ["line 1", "line 2"]),
        ("a.csv", "image,caption\na.jpg,a dog\nb.jpg,ein Hündchen\n", ["line 2", "line 3"]),
        ("a.tsv", "image\tcaption\na.jpg\ta dog\nb.jpg\tein Hündchen\n", ["line 2", "line 3"]),
    ],
)
def test_every_file_holds_the_same_entries(name, text, called, tmp_path):
    rows = read_rows(written(tmp_path, name, text))
    assert [row for row, _ in rows] == called
    assert [plain for _, plain in rows] == ENTRIES


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1)))
def test_captions_come_out_of_tables_as_they_went_in(tmp_path_factory, captions):
    table = io.StringIO(newline="")
    writer = csv.writer(table)
    writer.writerows([("image", "caption"), *(("a", caption) for caption in captions)])
    path = tmp_path_factory.mktemp("table") / "a.csv"
    path.write_text(table.getvalue(), encoding="utf-8", newline="")
    assert [plain["caption"] for _, plain in read_rows(path)] == captions


def test_only_lists_of_foils_are_unpacked(tmp_path):
    text = "caption\tfoils\tneg_caption\n['a']\t['b', \"the c's\"]\td\n"
    ((_, plain),) = read_rows(written(tmp_path, "a.tsv", text))
    assert plain == {"caption": "['a']", "foils": ["b", "the c's"], "neg_caption": "d"}


def test_columns_that_a_short_line_lacks_are_not_there(tmp_path):
    ((_, plain),) = read_rows(written(tmp_path, "a.csv", "image,caption,foil\na.jpg,a dog\n"))
    assert plain == {"image": "a.jpg", "caption": "a dog"}


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.json", "3", "holds no entries"),
        ("a.json", "[", "cannot be read as a set of foils"),
        ("a.jsonl", '{"image": 1}\n{"image"\n', "line 2 is no JSON"),
        ("a.tsv", "caption\tfoils\na dog\t['a cat'\n", "line 2: foils is no list of foils: ['a c"),
        ("a.tsv", "caption\tfoils\na dog\t[cat()]\n", "line 2: foils is no list of foils"),
        ("a.csv", 'image,caption\na.jpg,"' + "dog " * 40_000, "is no table: field larger than"),
    ],
)
def test_what_is_refused(name, text, told, tmp_path):
    path = written(tmp_path, name, text)
    with pytest.raises(ValueError) as refusal:
        read_rows(path)
    assert str(path) in str(refusal.value)
    assert told in str(refusal.value)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.tsv"])
def test_a_file_that_is_not_there(name, tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        read_rows(tmp_path / name)
