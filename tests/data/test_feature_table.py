import numpy as np
import pytest
import torch

from corpus_cases import random_array, write_features, write_split
from counterfoil.data.features import FeatureArray
from counterfoil.data.readers.precomp import features_of


def taken(features):
    return features.take(torch.arange(len(features))).values[:, 0].numpy()


@pytest.mark.parametrize(
    "stored, image_ids",
    [
        (["a.jpg", "b.jpg", "c.jpg"], ["c.jpg", "a.jpg"]),
        (["a", "b", "c"], ["c.jpg", "images/a.jpg"]),
        (["train/a.npz", "b.png", "c.png"], ["c.jpg", "a.jpg"]),
        (
            ["17", "000018", "9"],
            ["COCO_val2014_000000000009.jpg", "COCO_train2014_000000000017.jpg"],
        ),
    ],
)
def test_joined_by_id_however_it_is_written(tmp_path, stored, image_ids):
    values = random_array(3, 4)
    write_features(tmp_path / "f", stored, FeatureArray.of(values))
    np.testing.assert_array_equal(taken(features_of(image_ids, tmp_path / "f")), values[[2, 0]])


def test_exact_ids_go_before_numbers(tmp_path):
    values = random_array(2, 4)
    write_features(tmp_path / "f", ["x1.jpg", "y1.jpg"], FeatureArray.of(values))
    np.testing.assert_array_equal(taken(features_of(["y1.jpg"], tmp_path / "f")), values[1:])
    with pytest.raises(ValueError, match=r"1 of 1 images have no features"):
        features_of(["z1.jpg"], tmp_path / "f")  # both end in 1: no guess is made


def test_two_images_never_share_a_row(tmp_path):
    write_features(tmp_path / "f", ["a.jpg", "b.jpg"], FeatureArray.of(random_array(2, 4)))
    with pytest.raises(ValueError, match="2 of 2 images have no features"):
        features_of(["x/a.png", "y/a.png"], tmp_path / "f")


def test_precomp_folder(tmp_path):
    for n, split in enumerate(("train", "test")):
        values = random_array(2, 3, 4, seed=n)
        write_split(tmp_path, split, values, list("abcd"), [f"{split}0.jpg", f"{split}1.jpg"])
    features = features_of(["test1.jpg", "train0.jpg"], tmp_path)
    np.testing.assert_array_equal(
        features.take(torch.arange(2)).values,
        np.stack([random_array(2, 3, 4, seed=1)[1], random_array(2, 3, 4, seed=0)[0]]),
    )


def test_one_file_by_order(tmp_path):
    np.save(tmp_path / "f.npy", random_array(3, 4))
    assert isinstance(features_of(list("abc"), tmp_path / "f.npy").values, np.ndarray)
    with pytest.raises(ValueError, match="has 3 rows for 2 images"):
        features_of(list("ab"), tmp_path / "f.npy")


def test_bad_places_in_words(tmp_path):
    with pytest.raises(ValueError, match=r"holds no image features: looked for features\.json"):
        features_of(["a"], tmp_path)
    write_features(tmp_path / "f", ["a", "b"], FeatureArray.of(random_array(2, 4)))
    with pytest.raises(
        ValueError, match=r"1 of 2 images have no features in .*'q'; ids there look like 'a'"
    ):
        features_of(["a", "q"], tmp_path / "f")
