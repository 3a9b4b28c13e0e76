from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from fastapi import HTTPException
from PIL import Image

import explain_cases
import recipes_cases
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.explain import explain
from counterfoil.model import load_model
from counterfoil.search.index import build_index, open_index
from counterfoil.search.vector_index import IndexEntry, NewVectors
from counterfoil.serve.decoding import THUMBNAIL
from counterfoil.serve.service import SearchQuery, SearchService
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
    model = load_model(root / "pixels")
    build_index(model, load_dataset("scenes:images=36"), root / "index").close()
    return root


def test_top_beyond_the_size_returns_all(root):
    made = library(root)
    caption, row = made.search(
        [SearchQuery("a dog", 100), SearchQuery(made.row(names(12)[2]), 100)]
    )
    assert {hit.id for hit in caption} == set(names(12))
    assert {hit.id for hit in row} == set(names(12)) - {names(12)[2]}
    assert [hit.score for hit in caption] == sorted((hit.score for hit in caption), reverse=True)


def test_image_that_is_not_its_own_best_match(tmp_path):
    root = indexed(tmp_path, 6)
    with open_index(root / "index") as index:
        long = 9 * index.vectors.images.vectors(torch.arange(6))
        entries = [IndexEntry(f"long{row}") for row in range(6)]
        index.vectors.change(images=NewVectors(entries, long))
    made = library(root)
    (hits,) = made.search([SearchQuery(made.row(names(6)[0]), 3)])
    with open_index(root / "index") as index:
        want = index.search_id(names(6)[0], 3, find="images")
    assert [(hit.id, hit.score) for hit in hits] == [(hit.id, hit.score) for hit in want]


def test_model_names_hide_folders(root, scenes):
    made = library(root, explainer=load_model(scenes / "pixels"))
    assert (made.name, made.explainer.name) == ("model", "pixels")
    inside = SearchService(open_index(scenes / "index"))
    assert inside.name == inside.explainer.name == "the model of index"


def test_explainer_that_reads_features(scenes):
    dataset = load_dataset(explain_cases.SCENES)
    model = load_model(scenes / "regions")
    made = SearchService(open_index(scenes / "index"), model, dataset)
    name = dataset.image_ids[7]
    assert made.image_input(name) == name
    (want,) = explain(model, name, [CAPTION], dataset=dataset)
    assert made.explain(made.image_input(name), CAPTION) == want


def test_explainer_that_reads_pixels(scenes):
    """Only the picture of this image is decoded."""
    dataset = load_dataset(explain_cases.SCENES)
    made = SearchService(open_index(scenes / "index"), load_model(scenes / "pixels"), dataset)
    name = dataset.image_ids[7]
    assert dataset.pictures is not None
    seen = made.image_input(name)
    assert isinstance(seen, Image.Image)
    assert seen.tobytes() == dataset.pictures.open(7).tobytes()


def test_thumbnails_are_small_and_carry_no_metadata(tmp_path):
    root = indexed(tmp_path, 2)
    secret, exif = b"where I live", Image.Exif()
    exif[0x010E] = secret.decode()
    path = root / "photos" / "0.png"  # what is in a file decides what it is, not its name
    painted(1, 900).save(path, "jpeg", exif=exif, icc_profile=secret, comment=secret)
    content = library(root).thumbnail(names(2)[0])
    assert path.read_bytes().count(secret) == 3
    assert secret not in content
    with Image.open(io.BytesIO(content)) as small:
        assert small.size == (THUMBNAIL, THUMBNAIL)


def test_an_image_without_a_picture_has_no_thumbnail(scenes, tmp_path):
    recipes_cases.feature_model(
        tmp_path / "model", load_dataset(explain_cases.SCENES).features.width
    )
    dataset = load_dataset(explain_cases.SCENES)
    index = build_index(load_model(tmp_path / "model"), dataset, tmp_path / "index")
    for path in (tmp_path / "index" / "pictures").glob("*"):
        path.unlink()
    made = SearchService(index)
    assert not made.sees_pictures
    with pytest.raises(HTTPException, match="cannot be read any more") as told:
        made.thumbnail(dataset.image_ids[0])
    assert told.value.status_code == 404


def test_empty_index_is_refused(tmp_path):
    root = indexed(tmp_path, 2)
    index = open_index(root / "index")
    index.vectors.change(remove_images=[0, 1])
    with pytest.raises(ValueError, match="add images with `counterfoil index`"):
        SearchService(index)
