from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path

import pytest
import torch

import foil_cases
from corpus_cases import write_picture
from counterfoil.data.scenes import scene, scenes
from counterfoil.data.scenes.truth import is_true
from counterfoil.evaluation.foils.measures import evaluate_foils, measure_foils
from counterfoil.evaluation.foils.sets import open_foil_set

DATA = os.environ.get("COUNTERFOIL_DATA")


def told(found, item):
    """Names of an item's pictures and its captions."""
    dataset = found.dataset
    return [dataset.image_ids[i] for i in item.images], [dataset.texts[t] for t in item.texts]


@pytest.mark.parametrize("form", foil_cases.WRITERS)
def test_every_form_is_recognised_and_read(form, tmp_path):
    source = foil_cases.WRITERS[form](tmp_path)
    found = open_foil_set([str(source)], images=tmp_path / "images")
    named = open_foil_set([f"{form}:{source}"], images=tmp_path / "images")
    assert found.form == named.form == form
    assert len(found) == len(named) > 0
    assert len(set(found.dataset.texts)) == len(found.dataset.texts)
    assert len(set(found.dataset.image_ids)) == len(found.dataset)
    for row in range(len(found.dataset)):
        assert found.dataset.pictures.open(row).mode == "RGB"
    for item in found.items:
        task = (len(item.images), len(item.texts))
        assert {"choice": task[0] == 1 < task[1], "crossed": task == (2, 2)}.get(
            found.task, task == (1, 1)
        )


def test_sugarcrepe(tmp_path):
    found = open_foil_set([str(foil_cases.sugarcrepe(tmp_path))])
    assert len(found) == 12
    assert {item.category for item in found.items} == set(foil_cases.CATEGORIES)
    first = next(item for item in found.items if item.category == "swap_att")
    assert told(found, first) == (
        ["000000000009.jpg"],
        ["a red dog 0 in the snow", "a blue dog 0 of swap_att 1"],
    )
    one = open_foil_set([str(tmp_path / "add_obj.json"), str(tmp_path / "add_att.json")])
    assert len(one) == 6


def test_parts_of_pictures_are_cut_out(tmp_path):
    found = open_foil_set([str(foil_cases.aro(tmp_path, many=6))])
    assert found.dataset.image_ids[1] == "000000000025.jpg#1,1,4,5"
    assert len(found.dataset) == 6
    part = found.dataset.pictures.open(4)
    assert part.size == (4, 5)
    whole = open_foil_set([str(foil_cases.sugarcrepe(tmp_path / "s"))]).dataset.pictures.open(1)
    assert part.tobytes() == whole.crop((4, 1, 8, 6)).tobytes()
    before = found.dataset.pictures.place(0)
    write_picture(tmp_path / "images" / "000000000009.jpg", seed=77, size=(40, 30))
    again = open_foil_set([str(tmp_path / "visual_genome_relation.json")])
    assert again.dataset.pictures.place(0) != before


def test_valse_keeps_what_annotators_agree_on(tmp_path):
    found = open_foil_set([str(foil_cases.valse(tmp_path))])
    assert len(found) == 4
    assert dict(found.left_out) == {"on whose caption fewer than 2 annotators agreed": 2}
    assert {item.category for item in found.items} == {"plurals", "foil-it"}


def test_vsr_judges_one_caption(tmp_path):
    found = open_foil_set([str(foil_cases.vsr(tmp_path))])
    assert [item.true for item in found.items] == [False, True] * 3
    assert found.dataset.text_to_image.tolist() == [-1, 1, -1, 0, -1, 2]


def test_winoground_crosses_two_pictures(tmp_path):
    found = open_foil_set([str(foil_cases.winoground(tmp_path))])
    assert [item.category for item in found.items] == ["Relation", "Object", "Object"]
    assert told(found, found.items[1]) == (
        ["ex_1_img_0", "ex_1_img_1"],
        ["a dog in the snow 1", "the snow in a dog 1"],
    )
    assert found.dataset.text_to_image.tolist() == [0, 1, 2, 3, 4, 5]


def test_tables_of_negclip(tmp_path):
    found = open_foil_set([str(foil_cases.negclip(tmp_path))])
    assert told(found, found.items[0])[1] == [
        "A dog in the snow.",
        "A snow in the dog .",
        "The dog's",
    ]
    assert dict(found.left_out) == {"without a foil": 1, "entries' neg_image": 2}


def test_foils_that_are_the_caption_are_left_out(tmp_path):
    rows = [
        {"image": "a", "caption": "A  dog", "foils": ["a dog", "a cat"]},
        {"image": "a", "caption": "a cow", "foil": "A cow"},
    ]
    found = open_foil_set([str(foil_cases.dump(tmp_path / "p.json", rows))])
    assert [told(found, item)[1] for item in found.items] == [["A  dog", "a cat"]]
    assert dict(found.left_out) == {"foils that are the caption itself": 2, "without a foil": 1}
    assert found.dataset.pictures is None


def test_scenes_are_true_and_their_foils_false():
    found = open_foil_set(["scenes:images=24"], seed=3)
    assert found.seed == 3
    dataset = scenes(images=24).split("test")
    assert set(found.dataset.image_ids) == set(dataset.image_ids)
    for item in found.items:
        [image], [caption, foil] = told(found, item)
        assert is_true(caption, scene(image))
        assert is_true(foil, scene(image)) is False
    kinds = [(item.id.rpartition(" ")[0], item.category) for item in found.items]
    assert len(set(kinds)) == len(kinds)  # one foil of each kind for a caption
    same = [told(found, item) for item in open_foil_set(["scenes:images=24"], seed=3).items]
    other = open_foil_set(["scenes:images=24"], seed=4)
    assert same == [told(found, item) for item in found.items]
    assert same != [told(other, item) for item in other.items]
    row = found.dataset.image_ids.index(dataset.image_ids[2])
    assert found.dataset.pictures.open(row).tobytes() == dataset.pictures.open(2).tobytes()


def test_features_are_joined_by_name(tmp_path):
    import numpy as np

    source = foil_cases.sugarcrepe(tmp_path)
    folder = tmp_path / "features"
    folder.mkdir()
    np.save(folder / "features.npy", np.arange(12, dtype=np.float32).reshape(3, 1, 4))
    ids = [f"COCO_val2017_{name}" for name in reversed(foil_cases.COCO)]
    (folder / "features.json").write_text(json.dumps({"ids": ids}))
    found = open_foil_set([str(source)], features=folder)
    assert found.dataset.features.take(torch.tensor([0])).values.flatten().tolist() == [
        8,
        9,
        10,
        11,
    ]
    made = open_foil_set(["scenes:images=12,features=regions"])
    assert made.dataset.features is not None


def refused(sources, **more) -> str:
    with pytest.raises(ValueError) as caught:
        open_foil_set(sources, **more)
    return str(caught.value)


def test_files_of_two_sets_are_refused(tmp_path):
    both = [foil_cases.vsr(tmp_path / "a"), foil_cases.order(tmp_path / "b")]
    assert "order and vsr" in refused([str(path) for path in both])


def test_a_folder_without_foils(tmp_path):
    assert "holds no file of foils" in refused([str(tmp_path)])


def test_entries_of_no_form(tmp_path):
    assert "holds no entry" in refused([str(foil_cases.dump(tmp_path / "a.json", []))])
    assert "holds no entries" in refused([str(foil_cases.dump(tmp_path / "a.json", 3))])
    path = foil_cases.dump(tmp_path / "a.json", [{"image": "a", "text": "b"}])
    assert "has the fields image, text" in refused([str(path)])
    path = foil_cases.dump(tmp_path / "a.json", [{"image": "a", "caption": "b", "foils": []}])
    assert "holds no item with a foil" in refused([str(path)])


CAPTION, FOIL = "a red dog on a blue mat", "a blue dog on a red mat"
CHOICE = {"filename": foil_cases.COCO[0], "caption": CAPTION, "negative_caption": FOIL}
PAIRED = {"id": 0, "image_0": foil_cases.COCO[0], "image_1": foil_cases.COCO[1]}
PAIRED |= {"caption_0": CAPTION, "caption_1": FOIL}


@pytest.mark.parametrize(
    ("name", "row", "told"),
    [
        ("swap_obj.json", CHOICE | {"caption": [CAPTION, FOIL]}, "its captions after the first"),
        ("swap_obj.json", CHOICE | {"caption2": FOIL, "negative_image": "b"}, "its caption2"),
        ("swap_obj.json", CHOICE | {"caption2": FOIL, "caption3": CAPTION}, "its caption3"),
        ("test.jsonl", CHOICE | {"negative_image": "b", "negative_image2": "c"}, "negative_image2"),
        ("set.json", CHOICE | {"paraphrase": "the dog on the mat is red"}, "its paraphrase"),
        ("set.json", CHOICE | {"foil": "a red mat on a blue dog"}, "its negative_caption"),
        ("set.json", CHOICE | {"p2": "the red dog is on a mat"}, "its p2"),
        ("set.json", CHOICE | {"other": [FOIL, CAPTION]}, "its other"),
        ("set.json", CHOICE | {"counterfactual": "b.png"}, "its counterfactual"),
        ("set.json", CHOICE | {"label": 1}, "vsr does not read its negative_caption"),
        ("set.json", PAIRED | {"image_2": "c.png"}, "its image_2"),
        ("set.json", PAIRED | {"caption_2": "a red dog on a blue mat again"}, "its caption_2"),
        (
            "valid.tsv",
            {"filepath": "a.jpg", "title": CAPTION, "neg_caption": FOIL, "more": FOIL},
            "more",
        ),
        ("cola.json", ["a.jpg", CAPTION, "b.jpg"], "holds no entry"),
        ("cola.json", ["white plate", "red", "blue", "big", "old"], "single objects of COLA"),
        (
            "mcq.csv",
            {"image_path": "a", "caption_0": CAPTION, "caption_1": FOIL},
            "no form of foils",
        ),
        (
            "retrieval.csv",
            {"filepath": "a", "captions": f"['{CAPTION}', '{FOIL}']"},
            "no form of foils",
        ),
    ],
)
def test_other_sets_are_not_taken_for_these(name, row, told, tmp_path):
    path = tmp_path / name
    if path.suffix == ".json":
        foil_cases.dump(path, [row])
    elif path.suffix == ".jsonl":
        foil_cases.lines(path, [row])
    else:
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, row, delimiter="\t" if path.suffix == ".tsv" else ",")
            table.writeheader()
            table.writerow(row)
    foil_cases.pictures(tmp_path / "images")
    with pytest.raises(ValueError, match=re.escape(told)) as refusal:
        open_foil_set([str(path)])
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    "more",
    [
        {"image_id": 9, "coco_url": "http://a.example/b.jpg", "license": "CC BY 4.0 of its author"},
        {"image_link": "http://a.example/c.jpg", "file_name": foil_cases.COCO[0]},
        {"classes": ["dog"], "classes_foil": ["cat"], "word": "red", "word_foil": "blue"},
        {"source": "COCO val 2017", "split": "test", "type": "swap", "subtype": "att"},
    ],
)
def test_what_is_no_further_caption_or_picture(more, tmp_path):
    foil_cases.pictures(tmp_path / "images")
    found = open_foil_set([str(foil_cases.dump(tmp_path / "swap_att.json", [CHOICE | more]))])
    assert (found.form, found.published, dict(found.left_out)) == ("sugarcrepe", True, {})


def test_a_part_of_another_set_is_named_and_said(tmp_path):
    """What a set is asked for by name is measured as pairs, without the mark of its authors."""
    foil_cases.pictures(tmp_path / "images")
    rows = [CHOICE | {"caption2": "the mat below the red dog is blue"}] * 2
    path = foil_cases.dump(tmp_path / "swap_obj.json", rows)
    found = open_foil_set([f"pairs:{path}"])
    assert (found.name, found.published) == ("swap_obj", False)
    assert dict(found.left_out) == {"entries' caption2": 2}
    with pytest.raises(ValueError, match="sugarcrepe does not read its caption2; a second true"):
        open_foil_set([f"sugarcrepe:{path}"])


def test_sugarcrepe_twice_is_not_sugarcrepe(tmp_path):
    """The files have the same names; the second true caption tells them apart."""
    source = foil_cases.sugarcrepe_twice(tmp_path)
    found = open_foil_set([str(source)])
    assert (found.form, found.name, found.published) == ("sugarcrepe++", "SugarCrepe++", True)
    assert {item.category for item in found.items} == set(foil_cases.TWICE)
    expected = [
        ([item["name"]], [*item["captions"], item["foil"]])
        for place in (0, 1)
        for item in foil_cases.scene_items()[place::2]
    ]
    assert [told(found, item) for item in found.items] == expected
    assert {item.positives for item in found.items} == {2}
    described = found.dataset.text_to_image.tolist()
    for item in found.items:
        assert [described[row] >= 0 for row in item.texts] == [True, True, False]


@pytest.mark.parametrize("place", [0, 1])
def test_a_second_caption_that_some_entries_lack_is_refused(place, tmp_path):
    rows = [CHOICE | {"caption2": "the mat below the red dog is blue"}] * 2
    rows[place] = CHOICE
    path = foil_cases.dump(tmp_path / "swap_obj.json", rows)
    assert "caption2" in refused([str(path)])
    rows[place] = CHOICE | {"caption2": " "}
    path = foil_cases.dump(tmp_path / "swap_obj.json", rows)
    assert "has an empty caption" in refused([f"sugarcrepe++:{path}"])


def test_foils_of_sugarcrepe_twice_that_are_the_caption_count_as_its_authors_count_them(tmp_path):
    second = "while a person watches, a person prepares a pizza"
    rows = [CHOICE | {"caption2": second, "caption": CAPTION, "negative_caption": CAPTION}]
    found = open_foil_set([str(foil_cases.dump(tmp_path / "swap_obj.json", rows))])
    assert len(found) == 1
    assert dict(found.left_out) == {}
    report = evaluate_foils(found, torch.tensor([2.0, 3.0, 2.0]), model="it")
    assert "1 items that no model gets right, since their foil is their caption" in report.protocol
    assert report.lines[0].value == 0


def test_both_ways(tmp_path):
    found = open_foil_set([str(foil_cases.both_ways(tmp_path))])
    assert (found.form, found.name, found.published) == ("bivlc", "BiVLC", True)
    assert [told(found, item) for item in found.items] == [
        ([item["name"], item["other_name"]], [item["captions"][0], item["foil"]])
        for item in foil_cases.scene_items()
    ]
    assert {item.category for item in found.items} == {
        f"{kind}_{what}" for kind in ("replace", "swap", "add") for what in ("obj", "att")
    }
    rows = [CHOICE | {"negative_image": foil_cases.COCO[1]}]
    foil_cases.pictures(tmp_path / "images")
    mine = open_foil_set([str(foil_cases.dump(tmp_path / "mine.json", rows))])
    assert (mine.form, mine.name, mine.published) == ("bivlc", "mine", False)


def expected_pairs() -> list:
    """Of scenes whose foil has a picture: the two pictures, and their captions."""
    return [
        ([item["name"], item["other_name"]], [item["captions"][0], item["foil"]])
        for item in foil_cases.scene_items()
    ]


def test_colorswap_and_cola_have_two_pictures(tmp_path):
    found = open_foil_set([str(foil_cases.colour_swap(tmp_path / "swap"))])
    pairs = [([Path(n).name for n in names], texts) for names, texts in all_told(found)]
    assert pairs == expected_pairs()
    assert (found.name, found.published, found.task) == ("ColorSwap", True, "crossed")
    found = open_foil_set([str(foil_cases.cola(tmp_path / "cola"))])
    assert all_told(found) == expected_pairs()
    assert (found.name, found.published) == ("COLA", True)
    lines = measure_foils(found, torch.zeros(4 * len(found)), resamples=1)
    assert [line.measure for line in lines if line.own] == ["image"]
    path = foil_cases.dump(tmp_path / "mine.json", [["x.jpg", "a dog", "y.jpg", "a cat"]])
    with pytest.raises(ValueError, match="2 of 2 pictures of mine are not in"):
        open_foil_set([str(path)], images=tmp_path / "cola" / "images")


def all_told(found):
    return [told(found, item) for item in found.items]


def test_negbench_has_its_true_caption_anywhere(tmp_path):
    path = foil_cases.negbench(tmp_path)
    found = open_foil_set([str(path)])
    for n, (item, scene_item) in enumerate(zip(found.items, foil_cases.scene_items(), strict=True)):
        foils = [scene_item["foil"], *map(foil_cases.NEGATED.format, (n, "dog"))]
        expected = [f"data/coco/{scene_item['name']}"], [scene_item["captions"][0], *foils]
        assert told(found, item) == expected
        assert item.category == ("positive", "negative", "hybrid")[n % 3]
    assert (found.name, found.published, dict(found.left_out)) == ("NegBench", True, {})
    lines = measure_foils(found, torch.zeros(4 * len(found)), resamples=1)
    own = {(line.measure, line.of): line.chance for line in lines if line.own}
    whole = ("hybrid", "negative", "positive", "all items")
    assert own == {("accuracy", of): 25 for of in whole}
    text = path.read_text()
    path.write_text(text.replace(",0,positive", ",0.0,positive"))
    assert all_told(open_foil_set([str(path)])) == all_told(found)
    path.write_text(text.replace(",0,positive", ",4,positive"))
    assert f"{path}: line 2 is no entry of negbench" in refused([str(path)])
    path.write_text(text.replace(foil_cases.NEGATED.format(0), "", 1))
    (_, kept), *_ = all_told(open_foil_set([str(path)]))
    first = foil_cases.scene_items()[0]
    last = foil_cases.NEGATED.format("dog")
    assert kept == [first["captions"][0], first["foil"], last], "a foil behind a gap counts"


def test_crepe_asks_for_parts_of_pictures_by_kind_of_foils(tmp_path):
    found = open_foil_set([str(foil_cases.crepe(tmp_path))])
    items = foil_cases.scene_items()
    assert len(found) == 2 * len(items) - 1
    assert dict(found.left_out) == {"without a foil": 1}
    first, second, third = found.items[:3]
    rest = "seen_compounds_in_cc12m"
    assert [i.category for i in (first, second, third)] == [
        f"atom {rest}",
        f"atom {rest}",
        f"comp {rest}",
    ]
    number = str(int(items[1]["name"][:12]))
    picture, captions = told(found, second)
    assert picture == [f"{number}#1,2,20,31"]
    assert captions == [items[1]["captions"][0], items[1]["foil"], "it's another"]
    assert found.dataset.pictures.open(second.images[0]).size == (20, 31)
    assert told(found, third) == (picture, captions[:2])


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_part_of_a_picture_has_finite_sides(tmp_path, number):
    path = foil_cases.crepe(tmp_path)
    path.write_text(path.read_text().replace(",1,2,20,30,", f",{number},2,20,30,"))
    said = refused([str(path)])
    assert f"{path}: line 2.bbox_x: input should be a finite number" in said


def test_checklist_takes_the_first_of_each(tmp_path):
    path = foil_cases.checklist(tmp_path)
    rows = json.loads(path.read_text())
    rows[0][1]["NEG"].append("another foil of three words")
    foil_cases.dump(path, rows)
    found = open_foil_set([str(path)], images=tmp_path / "images")
    assert [texts for _, texts in all_told(found)] == [
        [item["captions"][0], item["foil"]] for item in foil_cases.scene_items()
    ]
    assert {item.category for item in found.items} == {"vg/color"}
    assert dict(found.left_out) == {"entries' further POS and NEG": 1}
    rows[1][1] = {"POS": "a red dog", "NEG": "the blue dog"}  # whose first are letters
    foil_cases.dump(path, rows)
    assert f"{path}: entry 1 is no entry of vl-checklist" in refused([str(path)])


def test_pictures_in_parquet_files_of_the_hub(tmp_path):
    pytest.importorskip("datasets")
    rows = foil_cases.both_ways_rows("picture", "other")
    rows.append(rows[0] | {"caption": "another caption of the first picture"})
    for split, part in (("train", rows[:2]), ("test", rows)):
        path = tmp_path / "BiVLC" / "data" / f"{split}-00000-of-00001.parquet"
        foil_cases.stored(path, part, "image", "negative_image")
    (tmp_path / "BiVLC" / "dataset_infos.json").write_text('{"default": {"features": {}}}')
    found = open_foil_set([str(tmp_path / "BiVLC")])  # a clone of the hub
    assert (found.form, found.name, len(found)) == ("bivlc", "BiVLC", len(rows))
    assert found.items[0].images == found.items[-1].images, "equal pictures are one"
    for item, row in zip(found.items, rows):
        assert told(found, item)[1] == [row["caption"], row["negative_caption"]]
        for place, column in zip(item.images, ("image", "negative_image")):
            picture = found.dataset.pictures.open(place)
            assert picture.tobytes() == row[column].convert("RGB").tobytes()
    files = [str(file) for file in sorted((tmp_path / "BiVLC" / "data").iterdir())]
    alone = open_foil_set(files[1:])
    assert len(alone) == 2
    both = open_foil_set(files)  # which are named
    assert len(both) == len(rows) + 2
    assert len(both.dataset) == len(found.dataset), "equal pictures are one in all files"
    assert "holds its pictures; leave out" in refused(files, images=tmp_path)


def test_a_data_set_that_was_saved(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [
        {"filename": item["picture"], "caption": item["captions"][0]}
        | {"caption2": item["captions"][1], "negative_caption": item["foil"], "other": None}
        for item in foil_cases.scene_items()
    ]
    table = datasets.Dataset.from_list(rows).cast_column("filename", datasets.Image())
    table.save_to_disk(tmp_path / "saved")
    found = open_foil_set([str(tmp_path / "saved")])
    assert (found.form, found.published) == ("sugarcrepe++", False)
    assert [texts for _, texts in all_told(found)] == [
        [*item["captions"], item["foil"]] for item in foil_cases.scene_items()
    ]
    picture = found.dataset.pictures.open(0)
    assert picture.tobytes() == rows[0]["filename"].convert("RGB").tobytes()
    both = datasets.DatasetDict({"train": table, "validation": table})
    both.save_to_disk(tmp_path / "both")
    assert "holds the splits train, validation; name" in refused([str(tmp_path / "both")])


def test_a_folder_of_pictures_with_its_metadata(tmp_path):
    items = foil_cases.scene_items()
    rows = []
    for item, row in zip(items, foil_cases.both_ways_rows("name", "other_name")):
        item["picture"].save(tmp_path / item["name"])
        item["other"].save(tmp_path / item["other_name"])
        rows.append(row | {"file_name": row["image"]})
        rows[-1]["negative_image_file_name"] = rows[-1].pop("negative_image")
        del rows[-1]["image"]
    foil_cases.lines(tmp_path / "metadata.jsonl", rows)
    found = open_foil_set([str(tmp_path)])
    assert found.form == "bivlc"
    assert all_told(found) == expected_pairs()
    assert found.dataset.pictures.open(0).size == items[0]["picture"].size


def test_metadata_of_two_pictures_each(tmp_path):
    rows = json.loads(foil_cases.colour_swap(tmp_path / "set").read_text())
    (tmp_path / "set" / "images").rename(tmp_path / "here")
    for row in rows:
        names = {n: Path(row.pop(f"image_{n}")).name for n in (1, 2)}
        row |= {f"image_{n}_file_name": name for n, name in names.items()}
    foil_cases.lines(tmp_path / "here" / "metadata.jsonl", rows)
    found = open_foil_set([str(tmp_path / "here")])
    assert found.form == "colorswap"
    assert found.dataset.pictures.open(1).mode == "RGB"


def test_splits_are_not_mixed(tmp_path):
    path = foil_cases.colour_swap(tmp_path)
    train = foil_cases.dump(tmp_path / "train.json", json.loads(path.read_text())[:1])
    assert len(open_foil_set([str(tmp_path)])) == len(foil_cases.scene_items())
    assert len(open_foil_set([str(tmp_path)], split="train")) == 1
    assert len(open_foil_set([str(train)])) == 1
    path.rename(tmp_path / "validation.json")
    assert f"{tmp_path} holds the splits" in refused([str(tmp_path)])


@pytest.mark.parametrize(
    "row", [PAIRED, {"image": foil_cases.COCO[0], "caption": FOIL, "label": 0}]
)
def test_files_with_the_fields_of_a_set_are_not_that_set(row, tmp_path):
    foil_cases.pictures(tmp_path / "images")
    found = open_foil_set([str(foil_cases.dump(tmp_path / "mine.json", [row]))])
    assert (found.name, found.published) == ("mine", False)


@pytest.mark.skipif(DATA is None, reason="needs COUNTERFOIL_DATA")
def test_real_samples():
    samples = Path(DATA) / "finegrained"
    images = Path(DATA) / "coco_mini" / "images"
    counts = {"sugarcrepe": 481, "valse": 160, "vsr": 617, "negclip": 154}
    for name, many in counts.items():
        first, *others = sorted(map(str, samples.glob(f"coco_mini_*{name}*.json")))
        # the entries of this part of SugarCrepe are written by other names
        first = f"sugarcrepe:{first}" if name == "sugarcrepe" else first
        found = open_foil_set([first, *others], images=images)
        assert len(found) == many
        assert found.form == (name if name != "negclip" else "pairs")
        assert found.published is (name in ("valse", "vsr"))
        assert found.dataset.pictures.open(0).size == (192, 192)
    whole = open_foil_set([str(samples / "full" / "sugarcrepe")])
    assert len(whole) == 7511
    assert whole.published
    assert sum(item.category == "swap_obj" for item in whole.items) == 245
