from dataclasses import replace

import pytest
import torch

from corpus_cases import captions_by_image, features_of_all, small_corpus
from counterfoil.corpus.pictures import PictureFiles


def test_split_keeps_captions_and_features_of_its_images():
    corpus = small_corpus((2, 0, 1, 3), ["train", "dev", "test", "train"])
    part = corpus.split("train")
    assert part.part == "train"
    assert captions_by_image(part) == {
        name: captions_by_image(corpus)[name] for name in ("a0", "a3")
    }
    torch.testing.assert_close(features_of_all(part), features_of_all(corpus)[[0, 3]])
    assert len(corpus.split("dev", "test")) == 2


def test_subset_follows_the_order_that_is_asked_for():
    corpus = small_corpus((2, 0, 1, 3))
    part = corpus.subset(torch.tensor([3, 1, 0]))
    assert part.image_ids == ["a3", "a1", "a0"]
    assert part.text_ids == ["a3#0", "a3#1", "a3#2", "a0#0", "a0#1"]
    assert part.owner.tolist() == [0, 0, 0, 2, 2]
    torch.testing.assert_close(features_of_all(part), features_of_all(corpus)[[3, 1, 0]])


@pytest.mark.parametrize("name", ["val", "validation", "valid", "dev"])
def test_dev_goes_by_all_its_names(name):
    corpus = small_corpus((1, 1), ["train", "dev"])
    assert corpus.split(name).image_ids == ["a1"]


def test_unknown_split_is_answered_with_the_nearest():
    corpus = small_corpus((1, 1), ["train", "dev"])
    with pytest.raises(ValueError, match=r"'trian' is not a split of small; did you mean 'train'"):
        corpus.split("trian")


def test_texts_of_no_image_are_left_out_of_splits():
    corpus = replace(small_corpus((1, 1)), owner=torch.tensor([-1, 1]))
    assert corpus.split("train").texts == [corpus.texts[1]]


def test_fingerprint_depends_on_everything_rows_depend_on():
    corpus = small_corpus((1, 1, 1))
    prints = {
        corpus.fingerprint,
        replace(corpus, texts=["other", *corpus.texts[1:]]).fingerprint,
        replace(corpus, owner=torch.tensor([0, 0, 2])).fingerprint,
        replace(corpus, image_ids=["b", "a1", "a2"]).fingerprint,
        corpus.subset(torch.tensor([1, 0, 2])).fingerprint,
    }
    assert len(prints) == 5
    assert replace(corpus, name="else").fingerprint == corpus.fingerprint


@pytest.mark.parametrize(
    "change, words",
    [
        ({"splits": ["train"]}, "1 splits were given for 2 images"),
        ({"texts": ["x"] * 3}, "3 texts were given for 2 texts"),
        ({"owner": torch.tensor([0])}, "1 owners were given for 2 texts"),
        ({"pictures": PictureFiles([])}, "0 pictures were given for 2 images"),
        ({"owner": torch.tensor([0, 5])}, "texts describe images 0 to 5"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        replace(small_corpus((1, 1)), **change)
