import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from corpus_cases import captions_by_image, features_of_all, random_array
from counterfoil.data.features import FeatureArray
from counterfoil.data.readers import load_dataset
from counterfoil.data.readers.embeddings import is_embeddings, read_embeddings
from counterfoil.model import load_model


def write_vectors(folder, images=2, texts=6, **more):
    folder.mkdir(exist_ok=True)
    np.save(folder / "images.npy", random_array(images, 4, seed=1))
    np.save(folder / "texts.npy", random_array(texts, 4, seed=2))
    for name, value in more.items():
        if isinstance(value, np.ndarray):
            np.save(folder / f"{name}.npy", value)
        else:
            (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_equally_many_texts_each(tmp_path):
    dataset = read_embeddings(write_vectors(tmp_path))
    assert dataset.text_to_image.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.split_names == ("test",)
    assert isinstance(dataset.features.values, np.memmap)
    np.testing.assert_array_equal(features_of_all(dataset)[:, 0], random_array(2, 4, seed=1))
    taken = dataset.text_features.take(torch.tensor([5]))
    np.testing.assert_array_equal(taken.values[0], random_array(6, 4, seed=2)[5:])


@pytest.mark.parametrize(
    "text_to_image", [[1, 0, 1, -1, 1, 1], np.array([1, 0, 1, -1, 1, 1], np.int32)]
)
def test_any_owner(tmp_path, text_to_image):
    dataset = read_embeddings(write_vectors(tmp_path, owner=text_to_image))
    assert dataset.text_to_image.tolist() == [1, 0, 1, -1, 1, 1]
    part = dataset.split("test")
    assert part.text_to_image.tolist() == [0, 1, 1, 1, 1]
    np.testing.assert_array_equal(
        part.text_features.take(torch.arange(5)).values[:, 0],
        random_array(6, 4, seed=2)[[1, 0, 2, 4, 5]],
    )


def test_ids_captions_and_bags_of_vectors(tmp_path):
    write_vectors(tmp_path, 2, 3, owner=[1, 0, 0], image_ids=["x", "y"])
    np.save(tmp_path / "texts.npy", random_array(3, 5, 4))
    (tmp_path / "captions.txt").write_text("one\ntwo\nthree\n")
    dataset = read_embeddings(tmp_path)
    assert captions_by_image(dataset) == {"x": ["two", "three"], "y": ["one"]}
    assert dataset.text_features.regions == 5


def test_split_of_each_image(tmp_path):
    dataset = read_embeddings(
        write_vectors(tmp_path, 3, owner=[1, 0, 2, -1, 1, 0], splits=["dev", "train", "dev"])
    )
    assert dataset.splits == ["dev", "train", "dev"]
    dev = dataset.split("dev")
    assert dev.text_to_image.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(
        dev.text_features.take(torch.arange(3)).values[:, 0],
        random_array(6, 4, seed=2)[[1, 5, 2]],
    )


@pytest.mark.parametrize(
    "more, words",
    [
        ({"texts": 5}, "5 texts for 2 images do not divide; write the image row"),
        ({"owner": [0, 1]}, r"owner\.json has shape \(2,\) .*6 whole numbers"),
        ({"owner": {"0": 1}}, r"owner\.json needs a list"),
        ({"owner": [0, 1, 0.5, 1, 1, 1]}, r"owner\.json needs a list"),
        ({"owner": [0, 1, 2, 1, 1, 1]}, "names images 0 to 2, but there are 0 to 1"),
        ({"owner": np.zeros(6)}, r"owner\.npy has shape \(6,\) of float64"),
        ({"image_ids": ["a", "a"]}, "needs a list of 2 different image ids"),
        ({"text_ids": ["a", "b"]}, "needs a list of 6 different text ids"),
        ({"captions": ["a", 1]}, r"captions\.json needs a list of captions"),
        ({"captions": ["a"]}, r"captions\.json has 1 captions for 6 texts"),
        ({"splits": ["train"]}, r"splits\.json needs a list with the names of 2 splits"),
        ({"splits": ["train", 1]}, r"splits\.json needs a list with the names of 2 splits"),
        ({"splits": {"0": "train"}}, r"splits\.json needs a list with the names of 2 splits"),
    ],
)
def test_what_does_not_fit(tmp_path, more, words):
    with pytest.raises(ValueError, match=words):
        read_embeddings(write_vectors(tmp_path, **more))


def test_bad_files_in_words(tmp_path):
    assert not is_embeddings(tmp_path)
    with pytest.raises(ValueError, match=r"images\.npy does not exist; vectors of images"):
        read_embeddings(tmp_path)
    write_vectors(tmp_path)
    np.save(tmp_path / "texts.npy", np.zeros(6, np.float32))
    with pytest.raises(ValueError, match=r"texts\.npy has shape \(6,\); \(texts, width\)"):
        read_embeddings(tmp_path)
    np.save(tmp_path / "texts.npy", random_array(6, 4))
    (tmp_path / "captions.txt").write_text("only one\n")
    with pytest.raises(ValueError, match=r"captions\.txt has 1 captions for 6 texts"):
        read_embeddings(tmp_path)


@pytest.mark.parametrize("part", [False, True])
def test_vectors_stay_in_their_file_where_nothing_is_done_to_them(tmp_path, part, monkeypatch):
    """A data set may be larger than memory, and is the same by way of batches."""
    rng = np.random.default_rng(0)
    for name, count in (("images", 7), ("texts", 9)):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((count, 4)).astype(np.float32))
    np.save(tmp_path / "owner.npy", np.arange(-2, 7).clip(-1))
    data, model = load_dataset(tmp_path), load_model("vectors:inner-product")
    if part:  # that follow each other in the file
        data = data.subset(torch.tensor([2, 3, 4]))
    kept = model.embed(data)
    assert data.features is not None
    assert isinstance(data.features.values, np.memmap)
    kept.images.tokens[0] = 5.0  # of this process alone
    assert np.load(tmp_path / "images.npy").max() < 5
    monkeypatch.setattr(FeatureArray, "mapped", lambda self: None)
    encoded = model.embed(data)
    monkeypatch.undo()
    kept = model.embed(data)
    for side in ("images", "texts"):
        assert torch.equal(getattr(kept, side).tokens, getattr(encoded, side).tokens)
        assert torch.equal(getattr(kept, side).mask, getattr(encoded, side).mask)


@pytest.mark.parametrize("change", ["half", "rows", "lengths", "memory", "cosine"])
def test_other_vectors_are_encoded(tmp_path, change, monkeypatch):
    vectors = np.eye(6, 4, dtype=np.float16 if change == "half" else np.float32)
    np.save(tmp_path / "images.npy", vectors)
    np.save(tmp_path / "texts.npy", vectors)
    data = load_dataset(tmp_path)
    assert data.features is not None
    if change == "rows":
        data = data.subset(torch.tensor([4, 1, 3]))
    if change == "memory":
        data = load_dataset({"images": vectors, "texts": vectors})
    if change == "lengths":
        data = replace(data, features=replace(data.features, lengths=np.ones(6)))
    if change == "cosine":
        monkeypatch.setattr(FeatureArray, "mapped", None)
    assert data.features is not None
    assert change == "cosine" or data.features.mapped() is None
    model = load_model("vectors" if change == "cosine" else "vectors:inner-product")
    assert len(model.embed(data).images) == len(data)


def test_a_number_that_is_none_is_found_in_a_mapped_file(tmp_path):
    vectors = np.eye(6, 4, dtype=np.float32)
    vectors[4, 2] = np.nan
    np.save(tmp_path / "images.npy", vectors)
    np.save(tmp_path / "texts.npy", np.eye(6, 4, dtype=np.float32))
    with pytest.raises(ValueError, match="row 4 holds NaN"):
        load_model("vectors:inner-product").embed(load_dataset(tmp_path))
