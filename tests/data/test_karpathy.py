import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpus_cases import (
    captions_by_image,
    features_of_all,
    karpathy_image,
    random_array,
    splits_by_image,
    write_karpathy,
)
from counterfoil.data.readers import load_dataset

IMAGES = [
    karpathy_image("b.jpg", "train", ["A dog .", "Two dogs"], first=10),
    karpathy_image("a.jpg", "val", ["Ein Hünd"], first=20),
    karpathy_image("c.jpg", "restval", [], first=30),
    karpathy_image("d.jpg", "test", ["x"] * 7, first=40),
]


def test_captions_ids_splits_and_pictures(tmp_path):
    dataset = load_dataset(write_karpathy(tmp_path, IMAGES))
    assert dataset.name == "toy"
    assert dataset.image_ids == ["b.jpg", "a.jpg", "c.jpg", "d.jpg"]
    assert captions_by_image(dataset)["b.jpg"] == ["A dog .", "Two dogs"]
    assert captions_by_image(dataset)["c.jpg"] == []
    assert dataset.text_ids[:3] == ["10", "11", "20"]
    assert dataset.splits == ["train", "dev", "train", "test"]
    assert [dataset.pictures.open(row).size for row in range(4)] == [(12, 8)] * 4


def test_restval_can_be_kept_apart(tmp_path):
    dataset = load_dataset(write_karpathy(tmp_path, IMAGES), restval="restval")
    assert splits_by_image(dataset)["c.jpg"] == "restval"


def test_pictures_in_subfolders_or_all_in_one(tmp_path):
    images = [karpathy_image("x.jpg", "train", ["a"], filepath="val2014")]
    path = write_karpathy(tmp_path, images)
    assert load_dataset(path).pictures.place(0).endswith("images/val2014/x.jpg")
    inner = tmp_path / "images" / "val2014"
    assert load_dataset(path, images=inner).pictures.place(0).endswith("val2014/x.jpg")


def test_features_by_order(tmp_path):
    values = random_array(4, 2, 3)
    np.save(tmp_path / "f.npy", values)
    path = write_karpathy(tmp_path, IMAGES, pictures=False)
    dataset = load_dataset(path, features=tmp_path / "f.npy")
    assert dataset.pictures is None
    np.testing.assert_array_equal(features_of_all(dataset), values)
    np.testing.assert_array_equal(
        dataset.split("test").features.take(torch.tensor([0])).values, values[3:]
    )


captions = st.lists(st.text(st.characters(codec="utf-8"), max_size=10), max_size=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=6), captions))
def test_any_ids_and_any_number_of_captions(tmp_path, content):
    images = [
        karpathy_image(name, "train", own, first=100 * place)
        for place, (name, own) in enumerate(content.items())
    ]
    path = write_karpathy(tmp_path, images, pictures=False)
    if content:
        assert captions_by_image(load_dataset(path)) == content
    else:
        with pytest.raises(ValueError, match="holds no image"):
            load_dataset(path)


def test_tokens_stand_in_for_raw(tmp_path):
    images = [{"filename": "a", "split": "train", "sentences": [{"tokens": ["a", "dog"]}]}]
    dataset = load_dataset(write_karpathy(tmp_path, images, pictures=False))
    assert (dataset.texts, dataset.text_ids) == (["a dog"], ["a#0"])


@pytest.mark.parametrize(
    "content, words",
    [
        ("{", "cannot be read as a Karpathy data set"),
        ("[]", "is not a Karpathy data set"),
        ('{"images": 3}', "is not a Karpathy data set"),
        ('{"images": []}', "holds no image"),
        ('{"images": [{"split": "train", "sentences": []}]}', r"images\[0\].filename"),
        ('{"images": [{"filename": "a", "sentences": []}]}', r"images\[0\].split"),
        ('{"images": [{"filename": "a", "split": "train"}]}', r"images\[0\].sentences"),
        (
            '{"images": [{"filename": "a", "split": "train", "sentences": [{"raw": 3}]}]}',
            r"images\[0\].sentences.0.raw",
        ),
        (json.dumps({"images": [IMAGES[0], IMAGES[0]]}), "image id 'b.jpg' occurs twice"),
        (
            json.dumps({"images": [IMAGES[0], {**IMAGES[1], "sentences": IMAGES[0]["sentences"]}]}),
            "caption id '10' occurs twice",
        ),
        (
            '{"images": [{"filename": "a", "split": "train", "sentences": [{"raw": "\\ud800"}]}]}',
            "not valid Unicode",
        ),
    ],
)
def test_bad_files_in_words(tmp_path, content, words):
    path = tmp_path / "dataset_bad.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        load_dataset(path)


def test_bad_surroundings_in_words(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        load_dataset(tmp_path / "dataset_none.json")
    path = write_karpathy(tmp_path, IMAGES, pictures=False)
    (tmp_path / "images").mkdir()
    with pytest.raises(ValueError, match="holds none of the first 4 pictures, such as b"):
        load_dataset(path)
    with pytest.raises(ValueError, match="is not a folder; the pictures are needed"):
        load_dataset(path, images=tmp_path / "nowhere")
    path.write_bytes(b'{"images": "\xff"}')
    with pytest.raises(ValueError, match="is not UTF-8"):
        load_dataset(path)


def test_recognised_by_content(tmp_path):
    path = write_karpathy(tmp_path, IMAGES, pictures=False)
    other = path.rename(tmp_path / "other.json")
    assert len(load_dataset(other)) == 4
    other.write_text("{}")
    with pytest.raises(ValueError, match="is no data set"):
        load_dataset(other)
