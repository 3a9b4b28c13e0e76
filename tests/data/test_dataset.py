from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corpus_cases import captions_by_image, features_of_all, small_corpus
from counterfoil.data.dataset import DatasetEntry, Relation, build_dataset, split_into_parts
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
        (
            {"dependencies": torch.zeros(3, 1, 2).short()},
            "3 texts with dependencies were given for 2 texts",
        ),
        ({"dependencies": torch.zeros(2, 2).short()}, r"torch.int16 of shape \(2, 2\); whole"),
        ({"dependencies": torch.zeros(2, 1, 2)}, r"float32 of shape \(2, 1, 2\); whole numbers"),
        ({"text_to_image": torch.tensor([0, 5])}, "texts describe images 0 to 5"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        replace(small_corpus((1, 1)), **change)


@st.composite
def relations(draw):
    images = draw(st.integers(1, 6))
    text_to_image = draw(st.lists(st.integers(-1, images - 1), max_size=20))
    return text_to_image, images


@given(relations(), st.randoms())
def test_captions_are_those_that_a_loop_finds(case, random):
    text_to_image, images = case
    relation = Relation(torch.tensor(text_to_image, dtype=torch.long), images=images)
    asked = [random.randrange(images) for _ in range(random.randrange(8))]
    texts, counts = relation.captions(torch.tensor(asked, dtype=torch.long))
    expected = [[t for t, o in enumerate(text_to_image) if o == image] for image in asked]
    assert counts.tolist() == [len(own) for own in expected]
    assert texts.tolist() == [t for own in expected for t in own]


@given(relations())
def test_positive_is_true_exactly_where_a_text_describes(case):
    text_to_image, images = case
    relation = Relation(torch.tensor(text_to_image, dtype=torch.long), images=images)
    found = relation.positive(relation.rows(), torch.arange(len(text_to_image)))
    assert found.shape == (images, len(text_to_image))
    assert found.tolist() == [[o == image for o in text_to_image] for image in range(images)]


@given(relations(), st.integers(0, 100))
def test_random_caption_describes_its_image(case, seed):
    text_to_image, images = case
    relation = Relation(torch.tensor(text_to_image, dtype=torch.long), images=images)
    rng = torch.Generator().manual_seed(seed)
    drawn = relation.random_caption(relation.rows(), rng).tolist()
    for image, text in enumerate(drawn):
        assert (text == -1) == (image not in text_to_image)
        assert text == -1 or text_to_image[text] == image


def test_random_caption_is_uniform():
    relation = Relation(torch.tensor([0, 1, 0, 0]), images=2)
    rng = torch.Generator().manual_seed(0)
    drawn = relation.random_caption(torch.zeros(6000, dtype=torch.long), rng)
    shares = torch.bincount(drawn, minlength=4) / len(drawn)
    torch.testing.assert_close(shares, torch.tensor([1, 0, 1, 1]) / 3, atol=0.03, rtol=0)


def test_owner_that_is_no_image_is_refused():
    with pytest.raises(ValueError, match=r"texts describe images 0 to 2.*images 0 to 1"):
        Relation(torch.tensor([0, 2]), images=2)
    with pytest.raises(ValueError, match="images -2 to 0"):
        Relation(torch.tensor([0, -2]), images=2)


def test_images_have_any_number_of_captions():
    entries = [
        DatasetEntry("x", "train", ("one", "two")),
        DatasetEntry("none", "train", ()),
        DatasetEntry("one", "test", ("single",), ("id 7",)),
    ]
    dataset = build_dataset("toy", entries, where="here")
    assert dataset.text_to_image.tolist() == [0, 0, 2]
    assert dataset.text_ids == ["x#0", "x#1", "id 7"]
    assert dataset.texts == ["one", "two", "single"]
    assert dataset.split_names == ("train", "test")


@pytest.mark.parametrize(
    "entries, words",
    [
        ([], "here holds no image"),
        (
            [DatasetEntry("a", "train", ()), DatasetEntry("a", "train", ())],
            "image id 'a' occurs twice",
        ),
        ([DatasetEntry("a", "train", ("x", "y"), ("1", "1"))], "caption id '1' occurs twice"),
        ([DatasetEntry("a", "train", ("\ud800",))], "not valid Unicode"),
    ],
)
def test_bad_entries_are_refused(entries, words):
    with pytest.raises(ValueError, match=words):
        build_dataset("toy", entries, where="here")


@given(st.lists(st.text(min_size=1, max_size=5), min_size=3, max_size=40, unique=True))
def test_every_part_of_a_divided_set_has_an_image(ids):
    splits = {
        entry.split for entry in split_into_parts([DatasetEntry(name, "", ()) for name in ids])
    }
    assert splits == {"train", "dev", "test"}


def test_division_is_eighty_ten_ten_and_does_not_depend_on_the_others():
    entries = [DatasetEntry(f"photo {n}.jpg", "", ()) for n in range(4000)]
    splits = {entry.id: entry.split for entry in split_into_parts(entries)}
    shares = [list(splits.values()).count(name) / 4000 for name in ("train", "dev", "test")]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    fewer = split_into_parts(list(reversed(entries[:500])))
    assert all(splits[entry.id] == entry.split for entry in fewer)


def test_given_splits_stay():
    entries = split_into_parts(
        [DatasetEntry("a", "train", ()), *(DatasetEntry(f"{n}", "", ()) for n in range(5))]
    )
    assert entries[0].split == "train"
    assert all(entry.split for entry in entries)
