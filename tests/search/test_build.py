from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import recipes_cases
from corpus_cases import write_folder
from counterfoil import model as model_module
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.images import open_picture
from counterfoil.data.readers import load_dataset
from counterfoil.evaluation.evaluate import evaluate
from counterfoil.model import load_model
from counterfoil.models.clip import vector_width
from counterfoil.models.frozen import FrozenWithAdapters
from counterfoil.scoring.encode import encode_images as encode_images_
from counterfoil.search import index as index_module
from counterfoil.search.index import build_index, open_index
from counterfoil.search.vector_index import IndexEntry, NewVectors


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("indexing") / "mine"
    recipes_cases.pixel_model(folder)
    return folder


def painted(folder: Path) -> Path:
    write_folder(load_dataset("scenes:images=36"), folder)
    return folder


def few_from(start: int) -> ImageTextDataset:
    return load_dataset("scenes:images=36").subset(torch.arange(start, start + 4))


def few() -> ImageTextDataset:
    return few_from(0)


def test_a_model_that_was_pushed_is_named(mine, tmp_path, monkeypatch):
    """It has a card, as a folder has, and lies in no folder that could be copied."""
    pushed = replace(load_model(mine), name="me/mine")
    built = build_index(pushed, few(), tmp_path / "x")
    assert built.model_name == "me/mine"
    assert not (tmp_path / "x" / "model").exists()
    monkeypatch.setattr(model_module, "load_model", {"me/mine": pushed}.__getitem__)
    with open_index(tmp_path / "x") as index:
        assert len(index.search("a red circle", 9)) == 4


def test_pictures_read_once_fill_no_cache_and_threads_change_nothing(mine, tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))
    photos = load_dataset(painted(tmp_path / "photos"))
    model, built = load_model(mine), []
    for workers in (0, 3):
        index = build_index(model, photos, tmp_path / f"x{workers}", workers=workers)
        assert index.add(photos, workers=workers).images == 0
        built.append(index.vectors.images.vectors(index.vectors.images.live_rows))
    result = evaluate(model, photos)
    assert torch.equal(*built)
    assert not (tmp_path / "cache" / "pixels").exists()
    evaluate([model, model], photos)  # the second reads them again
    assert (tmp_path / "cache" / "pixels").exists()
    assert evaluate(model, photos).rsum == result.rsum  # by what the cache holds
    with pytest.raises(ValueError, match="-1 workers"):
        build_index(model, load_dataset("scenes:images=36"), tmp_path / "y", workers=-1)


def test_what_lies_outside_an_index_is_never_deleted(mine, tmp_path):
    """An index may come from anybody, and say that its pictures lie anywhere."""
    index = build_index(load_model(mine), few(), tmp_path / "x")
    places = ("../mine.png", "pictures/../../mine.png", str(tmp_path / "mine.png"))
    (tmp_path / "mine.png").write_bytes(b"dear to me")
    entries = [IndexEntry(f"bad{row}", place=place) for row, place in enumerate(places)]
    index.vectors.change(images=NewVectors(entries, torch.rand(3, index.vectors.state.width)))
    index.delete(["bad0", "bad1", "bad2"])
    assert (tmp_path / "mine.png").read_bytes() == b"dear to me"


def test_who_adds_too_late_spoils_no_picture(mine, tmp_path):
    index = build_index(load_model(mine), few(), tmp_path / "x")
    first, late = (few_from(start) for start in (4, 8))
    with open_index(tmp_path / "x") as other:
        index.add(first)
        with pytest.raises(ValueError, match="changed by another process"):
            other.add(late)
    for row, name in enumerate(first.image_ids):
        shown = open_picture(index.image_path(name))
        assert shown.tobytes() == first.pictures.open(row).tobytes()


def test_a_model_that_does_not_fit_is_told_before_all_is_encoded(mine, tmp_path, monkeypatch):
    counts, encode_images = [], encode_images_

    def counting(matcher, look, count):
        counts.append(count)
        return encode_images(matcher, look, count)

    monkeypatch.setattr(index_module, "encode_images", counting)
    monkeypatch.setattr(index_module, "_RESUMABLE", 100)
    model, dataset = load_model(mine), load_dataset("scenes:images=36")
    build_index(model, dataset, tmp_path / "x").close()
    assert counts == [8]  # and the rest into a folder
    model.model.measure = "order"
    with pytest.raises(ValueError, match="by inner product"):
        build_index(model, dataset, tmp_path / "y")
    assert counts == [8, 8]
    assert not (tmp_path / "y.partial").exists()


def test_a_path_that_is_text_is_a_picture_all_the_same(mine, tmp_path):
    write_folder(few(), tmp_path / "photos")
    with build_index(load_model(mine), load_dataset(tmp_path / "photos"), tmp_path / "x") as index:
        path = index.image_path(few().image_ids[2])
        assert index.search_image(str(path), 3) == index.search_image(path, 3)
        with pytest.raises(ValueError, match=r"nowhere\.png does not exist"):
            index.search_image("nowhere.png")


def test_more_than_there_is_costs_no_more(mine, tmp_path):
    with build_index(load_model(mine), few(), tmp_path / "x") as index:
        many = 10**15  # so many rows would fit in no memory
        assert index.search("a red circle", many) == index.search("a red circle", 4)
        assert len(index.search_id(few().image_ids[0], many, find="images")) == 3


def test_captions_alone_are_added_by_a_model_with_frozen_towers(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))
    clip = load_model(recipes_cases.clip_like(tmp_path / "clip"))
    model = FrozenWithAdapters(body=clip.model, width=vector_width(clip.name)).eval()
    index = build_index(replace(clip, model=model), few(), tmp_path / "x")
    told = replace(few(), texts=["a dog in the snow", *few().texts[1:]])
    index.add(told)
    with open_index(tmp_path / "x", model=index.model) as found:
        texts = [hit.captions[0] for hit in found.search("a dog", 99, find="captions")]
    assert sorted(texts) == sorted(told.texts)
