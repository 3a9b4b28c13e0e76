import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.data.dataset import DatasetEntry, build_dataset, split_into_parts


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
