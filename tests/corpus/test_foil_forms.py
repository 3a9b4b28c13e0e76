"""Entries of published sets, one by one: what they ask, what they leave out, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterfoil.corpus.foil_forms import FoilEntry, parse, recognised

PAIR = {"image": "a.jpg", "caption": "a dog", "foil": "a cat"}
JUDGED = {"image": "a.jpg", "caption": "a dog", "label": 1}


def one(form, plain, name="set.json"):
    """The only entry of a file, or the reason why it is left out."""
    parsed = parse(form, Path(name), [("entry 0", plain)])
    found = (*parsed.entries, *parsed.left_out)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("form", "plain", "name"),
    [
        ("pairs", PAIR, "set.json"),
        ("pairs", {"filepath": "a", "title": "b", "neg_caption": "c"}, "set.tsv"),
        ("sugarcrepe", PAIR, "my_swap_att.json"),
        ("valse", PAIR | {"mturk": {}}, "plurals.json"),
        ("vsr", JUDGED, "set.jsonl"),
        ("order", {"image": "a", "caption_options": ["b", "c"]}, "set.json"),
        ("aro-relation", {"true_caption": "a", "relation_name": "on"}, "set.json"),
        ("aro-attribution", {"true_caption": "a", "attributes": []}, "set.json"),
        ("winoground", {"image_0": "a", "caption_0": "b"}, "set.jsonl"),
    ],
)
def test_the_first_entry_tells_the_form(form, plain, name):
    assert recognised(Path(name), [("entry 0", plain), ("entry 1", {})]) == form


def test_annotations_are_those_of_foil_it():
    assert recognised(Path("x.json"), [("annotations[0]", {"id": 1})]) == "foil-it"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([], "holds no entry"),
        ([("entry 0", "a dog")], "holds no entry"),
        ([("entry 0", {"caption": "a dog", "picture": "a"})], "has the fields caption, picture"),
    ],
)
def test_a_file_of_no_form(rows, told):
    with pytest.raises(ValueError, match=told):
        recognised(Path("set.json"), rows)


def test_foils_may_be_one_or_many_and_captions_the_first_of_many():
    two = one("pairs", PAIR | {"caption": ["a dog", "the dog"], "foil": ["a cat", "a cow"]})
    assert two == FoilEntry("0", "", ("a.jpg",), ("a dog", "a cat", "a cow"))
    assert one("pairs", PAIR | {"image": 7, "key": "k1"}).images == ("7",)
    assert one("pairs", PAIR | {"key": "k1", "kind": "colour"}).id == "k1"
    assert one("pairs", PAIR | {"kind": "colour"}).category == "colour"
    assert one("pairs", PAIR | {"foil": []}) == "without a foil"
    assert one("pairs", PAIR | {"caption": []}) == "without a foil"


@pytest.mark.parametrize(("votes", "asked"), [(0, False), (1, False), (2, True), (3, True)])
def test_two_of_three_must_agree_on_a_caption_of_valse(votes, asked):
    found = one("valse", PAIR | {"mturk": {"caption": votes, "foil": 3 - votes}})
    assert isinstance(found, FoilEntry) is asked
    assert one("valse", PAIR | {"mturk": {"foil": 3}}) != one("valse", PAIR)


def test_categories_are_parts_of_the_set():
    assert one("sugarcrepe", PAIR, "data/replace_rel.json").category == "replace_rel"
    assert one("valse", PAIR, "coreference-hard.json").category == "coreference-hard"
    assert one("valse", PAIR, "valse_counting.json").category == "counting"
    assert one("aro-attribution", PAIR | {"attributes": ["red", "big"]}).category == "red_big"
    assert one("vsr", JUDGED | {"relation": "under"}).category == "under"


def test_a_part_of_the_picture_has_a_size():
    box = {"bbox_x": 3.0, "bbox_y": 4, "bbox_w": 10.9, "bbox_h": 20}
    assert one("aro-relation", PAIR | box).box == (3, 4, 10, 20)
    assert one("aro-relation", PAIR | box | {"bbox_w": 0}).box is None
    assert one("pairs", PAIR | box).box is None, "boxes are of ARO"


def test_a_judged_caption_may_be_true_or_false():
    assert one("vsr", JUDGED) == FoilEntry("0", "", ("a.jpg",), ("a dog",), True)
    assert not one("vsr", JUDGED | {"label": 0}).true


def test_foils_of_foil_it_go_with_the_caption_of_the_same_id_wherever_it_stands():
    def note(key, caption, foil):
        return {"id": key, "image_id": 9, "caption": caption, "foil": foil, "target_word": "dog"}

    notes = [note(1, "a cat", True), note(1, "a dog", False), note(1, "a cow", True)]
    alone = [note(2, "a bird", True), note(3, "a bat", False)]
    rows = [(f"annotations[{n}]", plain) for n, plain in enumerate([*notes, *alone])]
    found = parse("foil-it", Path("foil.json"), rows)
    assert [entry.captions for entry in found.entries] == [("a dog", "a cat"), ("a dog", "a cow")]
    assert found.left_out == {"whose caption is not in the file": 1}


@pytest.mark.parametrize(
    ("form", "plain", "told"),
    [
        ("pairs", {"caption": "a dog", "foil": "a cat"}, "entry 0.image: field required"),
        ("pairs", PAIR | {"foil": 3}, "entry 0.foil: input should be a valid string"),
        ("vsr", JUDGED | {"label": 2}, "entry 0.label: input should be 0 or 1"),
        ("order", {"image": "a", "caption_options": ["b"]}, "entry 0.caption_options: list should"),
        ("winoground", {"image_0": "a"}, "entry 0.image_1: field required"),
        ("pairs", "a dog", "entry 0: input should be a valid dictionary"),
    ],
)
def test_an_entry_of_another_form_is_named(form, plain, told):
    with pytest.raises(ValueError, match=f"^set.json: {told}"):
        one(form, plain)
