from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from PIL import Image

import explain_cases
import recipes_cases
from counterfoil import open_corpus
from counterfoil.recipes.explain import explain
from counterfoil.recipes.model import open_model
from counterfoil.search.collection import IndexEntry, NewVectors
from counterfoil.search.index import build_index, open_index
from counterfoil.serve.holdings import SIDE, Library
from counterfoil.serve.queries import Query
from counterfoil.serve.refused import Refused
from serve_cases import indexed, library, names, painted

CAPTION = "A red circle."


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return indexed(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    recipes_cases.pixel_model(root / "pixels")
    explain_cases.saved(root / "regions")
    model = open_model(root / "pixels")
    build_index(model, open_corpus("scenes:images=36"), root / "index").close()
    return root


def test_answers_do_not_depend_on_what_else_is_asked(root):
    made = library(root)
    abouts = [painted(50), 3, "a dog", "the red circle in the snow", 0, painted(51), "a dog"]
    queries = [Query(about, 1 + n % 3) for n, about in enumerate(abouts)]
    together = made.answer(queries)
    assert together == [made.answer([query])[0] for query in queries]
    assert together == made.answer(queries[::-1])[::-1]
    assert [len(hits) for hits in together] == [query.top for query in queries]


def test_who_asks_for_more_than_there_is_gets_all(root):
    made = library(root)
    caption, row = made.answer([Query("a dog", 100), Query(made.row(names(12)[2]), 100)])
    assert {hit.id for hit in caption} == set(names(12))
    assert {hit.id for hit in row} == set(names(12)) - {names(12)[2]}
    assert [hit.score for hit in caption] == sorted((hit.score for hit in caption), reverse=True)


def test_what_is_not_its_own_best_gets_no_more_than_was_asked_for(tmp_path):
    root = indexed(tmp_path, 6)
    with open_index(root / "index") as index:
        long = 9 * index.vectors.images.vectors(torch.arange(6))
        entries = [IndexEntry(f"long{row}") for row in range(6)]
        index.vectors.change(images=NewVectors(entries, long))
    made = library(root)
    (hits,) = made.answer([Query(made.row(names(6)[0]), 3)])
    with open_index(root / "index") as index:
        want = index.search_id(names(6)[0], 3, find="images")
    assert [(hit.id, hit.score) for hit in hits] == [(hit.id, hit.score) for hit in want]


def test_no_name_says_where_it_lies(root, scenes):
    made = library(root, explainer=open_model(scenes / "pixels"))
    assert (made.name, made.explainer.name) == ("model", "pixels")
    inside = Library(open_index(scenes / "index"))
    assert inside.name == inside.explainer.name == "the model of index"


def test_what_reads_features_is_told_where_they_are(scenes):
    corpus = open_corpus(explain_cases.SCENES)
    model = open_model(scenes / "regions")
    made = Library(open_index(scenes / "index"), model, corpus)
    name = corpus.image_ids[7]
    assert made.seen(name) == name
    (want,) = explain(model, name, [CAPTION], corpus=corpus)
    assert made.explain(made.seen(name), CAPTION) == want


def test_what_sees_pictures_is_shown_one(scenes):
    """A whole corpus is not decoded for one image."""
    corpus = open_corpus(explain_cases.SCENES)
    made = Library(open_index(scenes / "index"), open_model(scenes / "pixels"), corpus)
    name = corpus.image_ids[7]
    assert corpus.pictures is not None
    seen = made.seen(name)
    assert isinstance(seen, Image.Image)
    assert seen.tobytes() == corpus.pictures.open(7).tobytes()


def test_thumbnails_are_small_and_hold_pixels_alone(tmp_path):
    root = indexed(tmp_path, 2)
    secret, exif = b"where I live", Image.Exif()
    exif[0x010E] = secret.decode()
    path = root / "photos" / "0.png"  # what is in a file decides what it is, not its name
    painted(1, 900).save(path, "jpeg", exif=exif, icc_profile=secret, comment=secret)
    content = library(root).thumbnail(names(2)[0])
    assert path.read_bytes().count(secret) == 3
    assert secret not in content
    with Image.open(io.BytesIO(content)) as small:
        assert small.size == (SIDE, SIDE)


def test_an_image_without_a_picture_has_no_thumbnail(scenes, tmp_path):
    recipes_cases.feature_model(
        tmp_path / "model", open_corpus(explain_cases.SCENES).features.width
    )
    corpus = open_corpus(explain_cases.SCENES)
    index = build_index(open_model(tmp_path / "model"), corpus, tmp_path / "index")
    for path in (tmp_path / "index" / "pictures").glob("*"):
        path.unlink()
    made = Library(index)
    assert not made.sees_pictures
    with pytest.raises(Refused, match="cannot be read any more") as told:
        made.thumbnail(corpus.image_ids[0])
    assert told.value.status == 404


def test_an_index_of_nothing_is_refused(tmp_path):
    root = indexed(tmp_path, 2)
    index = open_index(root / "index")
    index.vectors.change(remove_images=[0, 1])
    with pytest.raises(ValueError, match="add images with `counterfoil index`"):
        Library(index)
