"""Published formats: entries of files one by one, and their images by name."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from counterfoil.evaluation.foils.files import read_rows
from counterfoil.evaluation.foils.readers import (
    FoilEntry,
    detect_format,
    locate_images,
    parse_entries,
)

ENTRIES = [{"image": "a.jpg", "caption": "a dog"}, {"image": "b.jpg", "caption": "ein Hündchen"}]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text", "called"),
    [
        ("a.json", json.dumps(ENTRIES), ["entry 0", "entry 1"]),
        ("a.json", json.dumps(dict(zip("xy", ENTRIES))), ["entry 'x'", "entry 'y'"]),
        ("a.json", "\n".join(map(json.dumps, ENTRIES)) + "\n", ["line 1", "line 2"]),
        (
            "a.json",  # as pandas writes it
            json.dumps({k: {str(n): e[k] for n, e in enumerate(ENTRIES)} for k in ENTRIES[0]}),
            ["entry '0'", "entry '1'"],
        ),
        ("a.jsonl", "\n\n".join(map(json.dumps, ENTRIES)), ["line 1", "line 3"]),
        ("a.jsonl", "\ufeff" + "\r\n".join(map(json.dumps, ENTRIES)), ["line 1", "line 2"]),
        ("a.csv", "image,caption\na.jpg,a dog\nb.jpg,ein Hündchen\n", ["line 2", "line 3"]),
        ("a.tsv", "image\tcaption\na.jpg\ta dog\nb.jpg\tein Hündchen\n", ["line 2", "line 3"]),
    ],
)
def test_every_file_holds_the_same_entries(name, text, called, tmp_path):
    rows = read_rows(written(tmp_path, name, text))
    assert [row for row, _ in rows] == called
    assert [plain for _, plain in rows] == ENTRIES


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1)))
def test_captions_come_out_of_tables_as_they_went_in(tmp_path_factory, captions):
    table = io.StringIO(newline="")
    writer = csv.writer(table)
    writer.writerows([("image", "caption"), *(("a", caption) for caption in captions)])
    path = tmp_path_factory.mktemp("table") / "a.csv"
    path.write_text(table.getvalue(), encoding="utf-8", newline="")
    assert [plain["caption"] for _, plain in read_rows(path)] == captions


def test_only_lists_of_foils_are_unpacked(tmp_path):
    text = "caption\tfoils\tneg_caption\n['a']\t['b', \"the c's\"]\td\n"
    ((_, plain),) = read_rows(written(tmp_path, "a.tsv", text))
    assert plain == {"caption": "['a']", "foils": ["b", "the c's"], "neg_caption": "d"}


def test_columns_that_a_short_line_lacks_are_not_there(tmp_path):
    ((_, plain),) = read_rows(written(tmp_path, "a.csv", "image,caption,foil\na.jpg,a dog\n"))
    assert plain == {"image": "a.jpg", "caption": "a dog"}


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.json", "3", "holds no entries"),
        ("a.json", "[", "cannot be read as a set of foils"),
        ("a.json", '{"image": "a.jpg", "caption": "a dog"}', "is one entry; a list of entries"),
        ("a.jsonl", '{"image": 1}\n{"image"\n', "line 2 is not JSON"),
        ("a.tsv", "caption\tfoils\na dog\t['a cat'\n", "line 2: foils is no list of foils: ['a c"),
        ("a.tsv", "caption\tfoils\na dog\t[cat()]\n", "line 2: foils is no list of foils"),
        ("a.csv", 'image,caption\na.jpg,"' + "dog " * 40_000, "is no table: field larger than"),
    ],
)
def test_what_is_refused(name, text, told, tmp_path):
    path = written(tmp_path, name, text)
    with pytest.raises(ValueError) as refusal:
        read_rows(path)
    assert str(path) in str(refusal.value)
    assert told in str(refusal.value)


PAIR = {"image": "a.jpg", "caption": "a dog", "foil": "a cat"}
COCO = {"filename": "000000000009.jpg", "caption": "a dog", "negative_caption": "a cat"}
JUDGED = {"image": "a.jpg", "caption": "a dog", "label": 1}


def one(form, plain, name="set.json"):
    """The only entry of a file, or the reason why it is left out."""
    entries, left_out = parse_entries(form, Path(name), [("entry 0", plain)])
    found = (*entries, *left_out)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("form", "plain", "name"),
    [
        ("pairs", PAIR, "set.json"),
        ("pairs", {"filepath": "a", "title": "b", "neg_caption": "c"}, "set.tsv"),
        ("pairs", PAIR, "swap_att.json"),
        ("pairs", COCO | {"filename": "mine.jpg"}, "swap_att.json"),
        ("pairs", COCO, "mine.json"),
        ("sugarcrepe", COCO, "my_swap_att.json"),
        ("sugarcrepe++", COCO | {"caption2": "the dog"}, "swap_att.json"),
        ("sugarcrepe++", PAIR | {"caption2": "the dog"}, "anything.jsonl"),
        ("bivlc", PAIR | {"negative_image": "b.jpg"}, "replace_obj.json"),
        ("bivlc", COCO | {"negative_image": "b.jpg"}, "replace_obj.json"),
        ("valse", PAIR | {"mturk": {}}, "plurals.json"),
        ("vsr", JUDGED, "set.jsonl"),
        ("order", {"image": "a", "caption_options": ["b", "c"]}, "set.json"),
        ("aro-relation", {"true_caption": "a", "relation_name": "on"}, "set.json"),
        ("aro-attribution", {"true_caption": "a", "attributes": []}, "set.json"),
        ("winoground", {"image_0": "a", "caption_0": "b"}, "set.jsonl"),
    ],
)
def test_the_first_entry_tells_the_form(form, plain, name):
    assert detect_format(Path(name), [("entry 0", plain), ("entry 1", plain)]) == form


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
        detect_format(Path("set.json"), rows)


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


@pytest.mark.parametrize(
    ("form", "plain", "told"),
    [
        ("pairs", {"caption": "a dog", "foil": "a cat"}, "entry 0.image: field required"),
        ("pairs", PAIR | {"foil": 3}, "entry 0.foil: input should be a valid string"),
        ("vsr", JUDGED | {"label": 2}, "entry 0.label: input should be 0 or 1"),
        ("order", {"image": "a", "caption_options": ["b"]}, "entry 0.caption_options: list should"),
        ("winoground", {"image_0": "a"}, "entry 0.image_1: field required"),
        ("sugarcrepe++", COCO, "entry 0.caption2: field required"),
        ("sugarcrepe++", COCO | {"caption2": None}, "entry 0.caption2: input should be a valid"),
        ("bivlc", PAIR, "entry 0.negative_image: field required"),
        ("pairs", "a dog", "entry 0: input should be a valid dictionary"),
    ],
)
def test_an_entry_of_another_form_is_named(form, plain, told):
    with pytest.raises(ValueError, match=f"^set.json: {told}"):
        one(form, plain)


def painted(folder: Path, *names: str) -> dict[str, int]:
    """Pictures of one grey each, by name."""
    greys = {name: 10 + 20 * place for place, name in enumerate(names)}
    for name, grey in greys.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6), (grey, grey, grey)).save(folder / name)
    return greys


def greys(folder: Path, *names: str) -> list[int]:
    found = locate_images([(name, None) for name in names], folder, "the set")
    return [found.open(row).getpixel((0, 0))[0] for row in range(len(names))]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("a.png", "a.png"),
        ("train/a.png", "train/a.png"),
        ("a.png", "below/and/below/a.png"),
        ("elsewhere/a.png", "a.png"),
        ("a.jpg", "a.png"),
        ("a", "a.png"),
        ("9", "COCO_val2014_000000000009.png"),
        ("COCO_val2014_000000000009.jpg", "000000000009.png"),
        ("v7w_2345.jpg", "2345.png"),
        (r"Train\A.PNG", "images/train/a.png"),
    ],
)
def test_a_name_that_leads_to_one_file(name, file, tmp_path):
    grey = painted(tmp_path, "other.png", file, "8.png", "19.png", "b/notes 9.png")[file]
    (tmp_path / "9.txt").write_text("no picture")
    assert greys(tmp_path, name) == [grey]


def test_the_nearest_name_is_meant_and_one_of_several_is_refused(tmp_path):
    grey = painted(tmp_path, "x/a.png", "a.png", "x/000009.png", "9.png", "z/c.png", "b/c.png")
    found = greys(tmp_path, "a.png", "x/a.png", "9")
    assert found == [grey["a.png"], grey["x/a.png"], grey["9.png"]]
    with pytest.raises(ValueError, match=r"'c' fits b/c\.png and z/c\.png"):
        greys(tmp_path, "c.jpg")


@pytest.mark.parametrize("lost", ["ex_1_img_0.png", "ex_1_img_0", "b_0"])
def test_pictures_that_only_end_in_the_same_number_are_others(lost, tmp_path):
    painted(tmp_path, "ex_0_img_0.png", "ex_0_img_1.png")
    with pytest.raises(ValueError, match=f"1 of 2 pictures of the set are not in .*'{lost}'"):
        locate_images([("ex_0_img_0", None), (lost, None)], tmp_path, "the set")


def test_a_part_is_cut_out_and_has_a_name_of_its_own(tmp_path):
    picture = Image.new("RGB", (8, 6))
    picture.putpixel((3, 2), (255, 0, 0))
    picture.save(tmp_path / "a.png")
    shots = [("a.png", None), ("a.png", (3, 2, 4, 3)), ("a.png", (0, 0, 1, 1))]
    found = locate_images(shots, tmp_path, "the set")
    assert [found.open(row).size for row in range(3)] == [(8, 6), (4, 3), (1, 1)]
    assert found.open(1).getpixel((0, 0)) == (255, 0, 0)
    assert len({found.place(row) for row in range(3)}) == 3
    again = locate_images(shots[:2], tmp_path, "the set")
    assert again.place(0) != found.place(0), "named by all that is shown"


def test_no_folder(tmp_path):
    with pytest.raises(ValueError, match="is not a folder; the pictures of the set are needed"):
        locate_images([("a", None)], tmp_path / "nowhere", "the set")
