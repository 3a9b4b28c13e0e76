"""Annotation files of public data sets as they are after download."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from corpus_cases import captions_by_image, splits_by_image, write_picture
from counterfoil.data.checks import check_dataset
from counterfoil.data.readers import load_dataset

Captions = dict[str, list[str]]
NAMES = [f"{n}.jpg" for n in range(4)]
TRAIN = "captions_train2017.json"
TWO: Captions = {name: [f"a dog of {name}", f"dog, no. {name[0]}"] for name in NAMES}


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def pictures(folder: Path, names: Iterable[str] = NAMES) -> None:
    for row, name in enumerate(names):
        write_picture(folder / name, row)


def coco(captions: Captions, first: int = 0) -> str:
    """The content of captions_*.json."""
    images = [{"id": first + n, "file_name": name} for n, name in enumerate(captions)]
    notes = [
        {"id": 100 * (first + n) + k, "image_id": first + n, "caption": text}
        for n, own in enumerate(captions.values())
        for k, text in enumerate(own)
    ]
    return json.dumps({"info": {}, "licenses": [], "images": images, "annotations": notes})


def tokens(captions: Captions) -> str:
    return "".join(f"{n}#{k}\t{t}\n" for n, own in captions.items() for k, t in enumerate(own))


# Each writes a public data set as it lies on a disk, and returns what is opened.


def coco_folder(folder: Path) -> Path:
    pictures(folder / "val2017")
    write(folder / "annotations" / "captions_val2017.json", coco(TWO))
    write(folder / "annotations" / "captions_train2017.json", coco({"9.jpg": ["no picture"]}, 9))
    boxes = {"images": [{"id": 1, "file_name": "0.jpg"}], "annotations": [{"bbox": []}]}
    write(folder / "annotations" / "instances_val2017.json", json.dumps(boxes))
    return folder


def coco_file(folder: Path) -> Path:
    return coco_folder(folder) / "annotations" / "captions_val2017.json"


def coco_annotations(folder: Path) -> Path:
    return coco_folder(folder) / "annotations"


def coco_addresses(folder: Path) -> Path:
    document = json.loads(coco(TWO))
    for image in document["images"]:
        image["coco_url"] = f"http://images.cocodataset.org/val2017/{image.pop('file_name')}"
    pictures(folder / "val2017")
    write(folder / "annotations" / "captions_val2017.json", json.dumps(document))
    return folder


def kaggle_flickr8k(folder: Path) -> Path:
    rows = [f"{n},{t}" for n, own in TWO.items() for t in own]
    pictures(folder / "Images")
    write(folder / "captions.txt", "\n".join(["image,caption", *rows]) + "\n")
    return folder


def flickr8k(folder: Path) -> Path:
    pictures(folder / "Flicker8k_Dataset")
    text = folder / "Flickr8k_text"
    write(text / "Flickr8k.token.txt", tokens(TWO))
    write(text / "Flickr8k.lemma.token.txt", tokens({n: ["a dog"] * 2 for n in NAMES}))
    write(text / "readme.txt", "about")
    return folder


def kaggle_flickr30k(folder: Path) -> Path:
    rows = [f"{n}| {k}|  {t}" for n, own in TWO.items() for k, t in enumerate(own)]
    rows[5] = rows[5].replace("1|  ", "1   ")  # as 2199200615.jpg in the public file
    pictures(folder / "flickr30k_images" / "flickr30k_images")
    header = "image_name| comment_number| comment"
    write(folder / "flickr30k_images" / "results.csv", "\n".join([header, *rows]) + "\n")
    return folder


def flickr30k_tokens(folder: Path) -> Path:
    pictures(folder / "flickr30k-images")
    write(folder / "results_20130124.token", tokens(TWO))
    return folder


def nlphuji(folder: Path) -> Path:
    content = io.StringIO()
    rows = csv.writer(content)
    rows.writerow(["raw", "sentids", "split", "filename", "img_id"])
    for n, (name, own) in enumerate(TWO.items()):
        rows.writerow([json.dumps(own), f"[{n}]", "test", name, n])
    pictures(folder / "flickr30k-images")
    return write(folder / "flickr_annotations_30k.csv", content.getvalue())


def blip_lists(folder: Path) -> Path:
    pictures(folder / "flickr30k-images")
    for split, names in (("train", NAMES[:2]), ("val", NAMES[2:3]), ("test", NAMES[3:])):
        rows = [{"image": f"flickr30k-images/{n}", "caption": TWO[n]} for n in names]
        if split == "train":
            rows = [{**row, "caption": t, "image_id": 0} for row in rows for t in row["caption"]]
            for row in rows:
                row["image_id"] = f"coco_{row['image'][-5]}"
        write(folder / f"flickr30k_{split}.json", json.dumps(rows))
    return folder


def mapping(folder: Path) -> Path:
    pictures(folder / "photos")
    return write(folder / "captions.json", json.dumps(TWO))


def lines_called_json(folder: Path) -> Path:
    pictures(folder)
    lines = [json.dumps({"file_name": n, "captions": own}) for n, own in TWO.items()]
    return write(folder / "train.json", "\n".join(lines))


def llava(folder: Path) -> Path:
    pictures(folder / "images")
    rows = [
        {
            "id": f"{name}-{k}",
            "image": name,
            "conversations": [
                {"from": "human", "value": "<image>\nWhat is it?"},
                {"from": "gpt", "value": text},
            ],
        }
        for name, own in TWO.items()
        for k, text in enumerate(own)
    ]
    return write(folder / "chat.json", json.dumps(rows))


def text_caps(folder: Path) -> Path:
    pictures(folder / "train_images")
    rows = [
        {"set_name": "train", "image_path": name, "image_id": name[0], "caption_str": text}
        for name, own in TWO.items()
        for text in own
    ]
    document = {"dataset_name": "textcaps", "data": rows}
    return write(folder / "TextCaps_0.1_train.json", json.dumps(document))


def numbered(folder: Path) -> Path:
    pictures(folder)
    rows = [f'{n},{own[0]},"{own[1]}",' for n, own in TWO.items()]
    return write(folder / "my.csv", "\n".join(["Image Name,caption 1,caption 2,caption 3", *rows]))


def image_folder(folder: Path) -> Path:
    for split, names in (("train", NAMES[:2]), ("validation", NAMES[2:3]), ("test", NAMES[3:])):
        rows = [f'{n},"{t}"' for n in names for t in TWO[n]]
        pictures(folder / split, names)
        write(folder / split / "metadata.csv", "\n".join(["file_name,text", *rows]))
    return folder


Write = Callable[[Path], Path]
FORMATS: tuple[Write, ...] = (
    coco_folder, coco_file, coco_annotations, coco_addresses, kaggle_flickr8k, flickr8k,
    kaggle_flickr30k, flickr30k_tokens, nlphuji, blip_lists, mapping, lines_called_json, llava,
    text_caps, numbered, image_folder,
)  # fmt: skip


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.__name__)
def test_public_data_sets_are_read_as_they_are(form, tmp_path):
    dataset = load_dataset(form(tmp_path / "d"))
    names = [Path(name).name for name in dataset.image_ids]
    by_name = {n if "." in n else f"{n[-1]}.jpg": name for n, name in zip(names, dataset.image_ids)}
    captions = captions_by_image(dataset)
    assert {name: captions[by_name[name]] for name in NAMES} == TWO
    assert len(dataset) == 4
    assert check_dataset(dataset).unreadable == ()


@pytest.mark.parametrize("form", [blip_lists, image_folder], ids=lambda form: form.__name__)
def test_files_of_splits_are_one_data_set(form, tmp_path):
    dataset = load_dataset(form(tmp_path / "d"))
    assert dataset.splits == ["train", "train", "dev", "test"] or sorted(dataset.splits) == [
        "dev", "test", "train", "train",
    ]  # fmt: skip
    assert dataset["test"].texts == TWO["3.jpg"]


def test_the_split_of_a_name_and_pictures_that_are_not_there(tmp_path, capsys):
    dataset = load_dataset(coco_folder(tmp_path / "d"))
    assert set(dataset.splits) == {"dev"}
    remarks = {left.reason: left.names for left in dataset.left_out}
    assert remarks["rows of captions_train2017.json, as none of its pictures is there"] == (
        "9.jpg",
    )
    assert "annotations/instances_val2017.json" in [n for names in remarks.values() for n in names]
    assert TRAIN in " ".join(capsys.readouterr().err.split())
    for name in (TRAIN, "instances_val2017.json"):
        (tmp_path / "d" / "annotations" / name).unlink()
    pictures(tmp_path / "d" / "train2017", ["9.jpg"])
    write(tmp_path / "d" / "annotations" / TRAIN, coco({"9.jpg": ["x"]}, 9))
    assert set(load_dataset(tmp_path / "d").splits) == {"train", "dev"}


def test_lists_of_splits_beside_tokens(tmp_path):
    folder = flickr8k(tmp_path / "d")
    for split, names in (("train", NAMES[:2]), ("dev", []), ("test", NAMES[2:3])):
        content = "".join(f"{name}\n" for name in names)
        write(folder / "Flickr8k_text" / f"Flickr_8k.{split}Images.txt", content)
    dataset = load_dataset(folder)
    assert splits_by_image(dataset) == {"0.jpg": "train", "1.jpg": "train", "2.jpg": "test"}
    assert [left.names for left in dataset.left_out if "lists of splits" in left.reason] == [
        ("3.jpg",)
    ]


def test_rows_that_are_no_captions_are_counted(tmp_path):
    folder = flickr8k(tmp_path / "d")
    file = folder / "Flickr8k_text" / "Flickr8k.token.txt"
    strange = tokens({"2258277193_586949ec62.jpg.1": ["people", "people"]})
    write(file, file.read_text() + strange + "no token\n2.jpg#7\t \n")
    dataset = load_dataset(folder)
    assert len(dataset.texts) == 8
    remarks = {left.reason: left.names for left in dataset.left_out}
    assert remarks["names that are no picture's"] == ("2258277193_586949ec62.jpg.1",) * 2
    assert remarks["lines without a picture's name and a number"] == ("line 11",)
    assert remarks["rows without a caption"] == ("2.jpg",)


def test_what_is_odd_in_cocos_files(tmp_path):
    document = json.loads(coco(TWO))
    document["images"].append({"id": 77, "file_name": "none.jpg"})
    document["annotations"] += [
        {"id": 1000, "image_id": 55, "caption": "of nobody"},
        {"id": 1001, "image_id": 0, "caption": None},
        dict(document["annotations"][0]),
    ]
    pictures(tmp_path / "d" / "val2017")
    file = write(tmp_path / "d" / "annotations" / "captions_val2017.json", json.dumps(document))
    dataset = load_dataset(file)
    assert len(dataset) == 5
    assert captions_by_image(dataset) == {**TWO, "none.jpg": []}
    assert dataset.text_ids[:3] == ["0", "1", "100"]
    remarks = {left.reason: left.names for left in dataset.left_out}
    assert remarks["captions of an image that is not among the images"] == ("55",)
    assert remarks["rows without a caption"] == ("0.jpg",)
    assert remarks["captions that stand there twice"] == ("0",)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda d: d["annotations"].clear(), "holds no captions; give captions_train2017"),
        (lambda d: [n.pop("caption") for n in d["annotations"]], "holds no captions; give"),
        (lambda d: [i.pop("file_name") for i in d["images"]], "holds no names of files"),
        (lambda d: d["images"][1].pop("file_name"), "image 1 has no file_name"),
        (lambda d: d["images"][1].update(id=0), "the id 0 is that of '0.jpg' and of '1.jpg'"),
        (lambda d: d["annotations"][3].update(caption=3), "annotation 101: the caption is 3"),
        (lambda d: d["annotations"][3].pop("image_id"), "no 'image_id'"),
    ],
)
def test_bad_files_of_coco_in_words(tmp_path, change, words):
    document = json.loads(coco(TWO))
    change(document)
    file = write(tmp_path / "captions_val2017.json", json.dumps(document))
    with pytest.raises(ValueError, match=words) as caught:
        load_dataset(file)
    assert "Field required" not in str(caught.value)
