from dataclasses import replace

import pytest
import torch

from corpus_cases import captions_by_image, features_of_all, small_corpus
from counterfoil.data.images import PictureFiles


def test_split_keeps_captions_and_features_of_its_images():
    dataset = small_corpus((2, 0, 1, 3), ["train", "dev", "test", "train"])
    part = dataset.split("train")
    assert part.split_name == "train"
    assert captions_by_image(part) == {
        name: captions_by_image(dataset)[name] for name in ("a0", "a3")
    }
    torch.testing.assert_close(features_of_all(part), features_of_all(dataset)[[0, 3]])
    assert len(dataset.split("dev", "test")) == 2


def test_subset_follows_the_order_that_is_asked_for():
    dataset = small_corpus((2, 0, 1, 3))
    part = dataset.subset(torch.tensor([3, 1, 0]))
    assert part.image_ids == ["a3", "a1", "a0"]
    assert part.text_ids == ["a3#0", "a3#1", "a3#2", "a0#0", "a0#1"]
    assert part.text_to_image.tolist() == [0, 0, 0, 2, 2]
    torch.testing.assert_close(features_of_all(part), features_of_all(dataset)[[3, 1, 0]])


@pytest.mark.parametrize("name", ["val", "validation", "valid", "dev"])
def test_dev_goes_by_all_its_names(name):
    dataset = small_corpus((1, 1), ["train", "dev"])
    assert dataset.split(name).image_ids == ["a1"]


def test_unknown_split_is_answered_with_the_nearest():
    dataset = small_corpus((1, 1), ["train", "dev"])
    with pytest.raises(ValueError, match=r"'trian' is not a split of small; did you mean 'train'"):
        dataset.split("trian")


def test_texts_of_no_image_are_left_out_of_splits():
    dataset = replace(small_corpus((1, 1)), text_to_image=torch.tensor([-1, 1]))
    assert dataset.split("train").texts == [dataset.texts[1]]


def test_fingerprint_depends_on_everything_rows_depend_on():
    dataset = small_corpus((1, 1, 1))
    prints = {
        dataset.fingerprint,
        replace(dataset, texts=["other", *dataset.texts[1:]]).fingerprint,
        replace(dataset, text_to_image=torch.tensor([0, 0, 2])).fingerprint,
        replace(dataset, image_ids=["b", "a1", "a2"]).fingerprint,
        dataset.subset(torch.tensor([1, 0, 2])).fingerprint,
    }
    assert len(prints) == 5
    assert replace(dataset, name="else").fingerprint == dataset.fingerprint


@pytest.mark.parametrize(
    "change, words",
    [
        ({"splits": ["train"]}, "1 splits were given for 2 images"),
        ({"texts": ["x"] * 3}, "3 texts were given for 2 texts"),
        ({"text_to_image": torch.tensor([0])}, "1 owners were given for 2 texts"),
        ({"pictures": PictureFiles([])}, "0 pictures were given for 2 images"),
        ({"text_to_image": torch.tensor([0, 5])}, "texts describe images 0 to 5"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        replace(small_corpus((1, 1)), **change)
