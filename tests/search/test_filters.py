"""Filters by columns: what holds, what is found, and what is kept when data change."""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import recipes_cases
from artifact_cases import resealed
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.readers import load_dataset
from counterfoil.model import Model, load_model
from counterfoil.search import index as index_module
from counterfoil.search.calibrate import Calibration
from counterfoil.search.filters import Condition, columns_of, matching, parse_where
from counterfoil.search.index import IndexUpdate, SearchIndex, build_index, open_index
from index_cases import filip

YEARS = [2015 + row % 9 for row in range(36)]
ALBUMS = [("holiday", "home", "Holiday 2", None)[row % 4] for row in range(36)]
DATES = [f"20{10 + row % 12}-05-{1 + row % 28:02}" for row in range(36)]


def with_columns(dataset: ImageTextDataset) -> ImageTextDataset:
    return replace(dataset, columns={"album": ALBUMS, "year": YEARS, "date": DATES})


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    return load_model(recipes_cases.pixel_model(tmp_path_factory.mktemp("model") / "m"))


@pytest.fixture(scope="module")
def dataset() -> ImageTextDataset:
    return with_columns(load_dataset("scenes:images=36"))


@pytest.fixture(scope="module")
def built(model, dataset, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("filtered") / "x"
    build_index(model, dataset, folder).close()
    return folder


ROWS = [{"n": 1, "t": "2020-05-01"}, {}, {"n": "07", "t": "A b"}, {"n": 5.5}, {"n": "unknown"}]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("n=1", [0]),
        ("n == 1.0", [0]),
        ("n=7", []),
        ("n=07", [2]),
        ("n=unknown", [4]),
        ("n=Unknown", []),
        ("n!=1", [1, 2, 3, 4]),
        ("n>1", [3]),
        ("n>=1", [0, 3]),
        ("n<5.5", [0]),
        ("n<=5.5", [0, 3]),
        ("n>a", [4]),
        ("n=", [1]),
        ("n!=", [0, 2, 3, 4]),
        ("n~.", [3]),
        ("t~a B", [2]),
        ("t>=2020", [0, 2]),
        ("t<2020", []),
        ("t<2021-01", [0]),
    ],
)
def test_conditions(text, wanted):
    columns = columns_of(ROWS)
    mask = matching(parse_where(text, list(columns)), columns, len(ROWS))
    assert mask.nonzero().flatten().tolist() == wanted


def test_large_numbers_truth_values_and_values_like_operators():
    rows = [{"id": 9007199254740993, "fav": "true", "by": "<unknown>"}, {"id": 9007199254740992}]
    columns = columns_of(rows)
    for where in ("id=9007199254740993", {"fav": True}, 'by="<unknown>"', {"by": "<unknown>"}):
        assert matching(parse_where(where, list(columns)), columns, 2).tolist() == [True, False]
    assert parse_where('by="""', ["by"]) == (Condition("by", "=", '"'),)
    with pytest.raises(ValueError, match="'==' is no operator"):
        Condition("id", "==", 1)


def test_long_conditions_are_read_at_once():
    for text in (" " * 100_000, "a" * 100_000, "=" * 100_000, "a=" + " " * 100_000 + "b"):
        with contextlib.suppress(ValueError):
            parse_where(text, ["album", "a b"])


def test_values_of_a_data_set_become_plain(dataset, model, tmp_path):
    values = [float("nan"), True, np.int64(2), np.float32(0.5), "x", *[None] * 31]
    index = build_index(model, replace(dataset, columns={"v": values}), tmp_path / "x")
    index.close()
    with open_index(tmp_path / "x") as index:
        assert [index.column_values(name) for name in dataset.image_ids[:5]] == [
            {},
            {"v": "true"},
            {"v": 2},
            {"v": 0.5},
            {"v": "x"},
        ]
        assert len(set(index.search("a dog", 3))) == 3


def test_names_that_hold_operators_and_blanks():
    known = ["a", "a=b", "of the day"]
    assert parse_where(["a=b=3", " of the day ~ x > y "], known) == (
        Condition("a=b", "=", "3"),
        Condition("of the day", "~", "x > y"),
    )


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (
            "albun=x",
            "'albun' is not a column of the images; did you mean 'album'? Known: album, year",
        ),
        ({"zzz": 1}, "'zzz' is not a column of the images; known: album, year"),
        ("album", "'album' is no condition; write a column, one of = != < <= > >= ~ and a value"),
        ("=2", "is no condition"),
        (["year>=2", "year=>3"], "'year=>3' has an operator that does not exist; known: = !="),
        ("album=~x", "has an operator that does not exist"),
    ],
)
def test_bad_filters_in_words(where, words):
    with pytest.raises(ValueError, match=words.replace("?", r"\?").replace("(", r"\(")):
        parse_where(where, ["album", "year"])


@pytest.mark.parametrize("backend", ["exact", "faiss-hnsw"])
def test_filtered_results_are_those_of_all_that_pass(model, dataset, backend, tmp_path):
    """Filtering a full ranking gives the same results and scores, for every kind of query."""
    if backend != "exact":
        pytest.importorskip("faiss")
    index = build_index(model, dataset, tmp_path / "x", backend=backend)
    image_row = {name: row for row, name in enumerate(dataset.image_ids)}

    def passes(hit) -> bool:
        row = image_row[hit.image_id]
        return ALBUMS[row] == "holiday" and YEARS[row] >= 2018

    where = ["album=holiday", "year>=2018"]
    picture = dataset.pictures.open(3)
    for search, query, find in (
        (index.search, "a red circle", "images"),
        (index.search, "a red circle", "captions"),
        (index.search_image, picture, "captions"),
        (index.search_image, picture, "images"),
        (index.search_id, dataset.image_ids[4], "images"),
    ):
        full = search(query, 180, find=find)
        wanted = [hit for hit in full if passes(hit)][:5]
        found = search(query, 5, find=find, where=where)
        assert [(hit.id, hit.score) for hit in found] == [(hit.id, hit.score) for hit in wanted]
        assert all(hit.columns["album"] == "holiday" for hit in found)
        assert [hit.rank for hit in found] == list(range(1, len(found) + 1))


def test_a_mapping_equals_its_texts_and_nothing_may_pass(built):
    with open_index(built) as index:
        by_text = index.search("a dog", 9, where=["album=holiday", "year=2019"])
        assert index.search("a dog", 9, where={"album": "holiday", "year": 2019}) == by_text
        assert by_text
        assert index.search("a dog", 9, where="album=elsewhere") == []
        with pytest.raises(ValueError, match="did you mean 'album'"):
            index.search("a dog", where="albums=holiday")


def test_deleted_images_are_not_found(model, dataset, tmp_path):
    index = build_index(model, dataset, tmp_path / "x")
    gone = index.search("a dog", 1, where="album=holiday")[0].id
    index.delete([gone])
    assert gone not in {hit.id for hit in index.search("a dog", 36, where="album=holiday")}


def test_probabilities_do_not_depend_on_the_filter(built):
    """The null distribution is that of the query with the whole index."""
    with open_index(built) as index:
        index.__dict__["calibration"] = Calibration((1.0, 0.5, 2.0), -1.0, 30)
        every = {hit.id: hit.probability for hit in index.search("a dog", 36)}
        some = index.search("a dog", 36, where="album=holiday")
        assert {hit.id: hit.probability for hit in some}.items() <= every.items()
        assert 0 < len(some) < 36


def test_a_multi_vector_model(tmp_path):
    model, data = filip()
    with build_index(model, with_columns(data), tmp_path / "x") as index:
        full = {hit.id: hit.score for hit in index.search(data.texts[0], 36)}
        found = index.search(data.texts[0], 36, where="year=2016")
        assert {hit.id for hit in found} == {
            name for name, year in zip(data.image_ids, YEARS) if year == 2016
        }
        assert {hit.id: hit.score for hit in found}.items() <= full.items()


def test_re_ranking_sees_what_passes(built, model):
    from counterfoil.search.rerank import Reranker

    with open_index(built, rerank=Reranker(model, 5)) as index:
        found = index.search("a red circle", 5, where="album=home")
        assert len(found) == 5
        assert {hit.columns["album"] for hit in found} == {"home"}


def changed(dataset: ImageTextDataset, row: int, album: str | None) -> ImageTextDataset:
    albums = [*dataset.columns["album"]]
    albums[row] = album
    return replace(dataset, columns={**dataset.columns, "album": albums})


@pytest.mark.parametrize("kind", ["pixels", "filip"])
def test_a_changed_value_is_updated_without_encoding(model, dataset, kind, tmp_path, monkeypatch):
    if kind == "filip":
        model, data = filip()
        dataset = with_columns(data)
    index: SearchIndex = build_index(model, dataset, tmp_path / "x")
    before = index.search("a red circle", 36)
    monkeypatch.setattr(index_module, "encode_images", None)  # not called
    other = changed(changed(dataset, 2, "sea"), 3, None)
    assert index.add(dataset) == IndexUpdate(0, 0, 36)
    assert index.add(other) == IndexUpdate(0, 0, 35, relabelled=1)
    assert index.add(changed(other, 2, None)) == IndexUpdate(0, 0, 35, relabelled=1)
    assert index.add(other) == IndexUpdate(0, 0, 35, relabelled=1)
    after = index.search("a red circle", 36)
    assert {hit.id: (hit.score, hit.path) for hit in after} == {
        hit.id: (hit.score, hit.path) for hit in before
    }
    with open_index(tmp_path / "x", model=model) as again:
        (hit,) = again.search("a red circle", 36, where="album=sea")
    assert hit.id == dataset.image_ids[2]
    assert hit.columns == {"album": "sea", "year": YEARS[2], "date": DATES[2]}


def test_new_and_relabelled_images_in_one_addition(model, dataset, tmp_path):
    first = dataset.subset(torch.arange(30))
    index = build_index(model, first, tmp_path / "x")
    assert index.add(changed(dataset, 1, "sea")) == IndexUpdate(6, 30, 29, relabelled=1)
    fresh = build_index(model, changed(dataset, 1, "sea"), tmp_path / "fresh")
    for where in ("album=sea", "year>=2020", "album~holiday"):
        one, two = (i.search("a dog", 36, where=where) for i in (index, fresh))
        assert [(h.id, h.score, h.columns) for h in one] == [
            (h.id, h.score, h.columns) for h in two
        ]


def test_data_without_columns_leave_those_of_the_index(model, dataset, tmp_path):
    index = build_index(model, dataset, tmp_path / "x")
    assert index.add(replace(dataset, columns={})) == IndexUpdate(0, 0, 36)
    assert index.search("a dog", 36, where="album=holiday")


def test_an_index_without_columns_opens_and_gets_them(model, dataset, tmp_path):
    """As earlier versions made it."""
    index = build_index(model, replace(dataset, columns={}), tmp_path / "x")
    lines = next((tmp_path / "x").glob("*-images.jsonl")).read_text().splitlines()
    assert "columns" not in json.loads(lines[0])
    with pytest.raises(ValueError, match="known: none\\. The data of the index had no columns"):
        index.search("a dog", where="album=holiday")
    assert index.add(dataset).relabelled == 36
    assert len(index.search("a dog", 36, where="album=holiday")) == 9


@pytest.mark.parametrize("columns", ['"x"', '{"a": [1]}', '{"a": NaN}', '{"a": true}', "3"])
def test_damaged_columns_are_refused(model, dataset, columns, tmp_path):
    build_index(model, dataset, tmp_path / "x").close()
    file = next((tmp_path / "x").glob("*-images.jsonl"))
    first, *rest = file.read_text().splitlines()
    entry = json.loads(first)
    del entry["columns"]
    damaged = json.dumps(entry)[:-1] + f', "columns": {columns}}}'
    file.write_text("\n".join([damaged, *rest]) + "\n")
    resealed(tmp_path / "x")
    with (
        open_index(tmp_path / "x", model=model) as index,
        pytest.raises(ValueError, match="cannot be read as entries of an index"),
    ):
        index.search("a dog")


def test_against_a_slow_filter():
    """Random tables and conditions against a loop over rows."""
    draw = random.Random(0)
    values = [None, 1, 2, 3.5, "a", "ab", "B"]
    for _ in range(50):
        rows = [
            {name: v for name in "xy" if (v := draw.choice(values)) is not None} for _ in range(20)
        ]
        columns = columns_of(rows)
        number = draw.choice([1, 2, 3.5])
        for sign, slow in (
            ("=", lambda v: v == number),
            ("!=", lambda v: v != number),
            (">", lambda v: isinstance(v, int | float) and v > number),
            ("<=", lambda v: isinstance(v, int | float) and v <= number),
        ):
            mask = matching(parse_where(f"x{sign}{number}", ["x", "y"]), columns, 20)
            assert mask.tolist() == [slow(row.get("x")) for row in rows]
