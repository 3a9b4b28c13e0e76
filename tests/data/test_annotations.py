"""Annotation files of public data sets as they are after download."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpus_cases import captions_by_image, splits_by_image, write_picture
from counterfoil.cli import main
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


def downloaded(folder: Path) -> Path:
    """As img2dataset writes files with captions in JSON alone."""
    for row, (name, own) in enumerate(TWO.items()):
        write_picture(folder / "00000" / name, row)
        note = {"url": "http://x", "caption": own, "key": name, "status": "success"}
        write((folder / "00000" / name).with_suffix(".json"), json.dumps(note))
    write(folder / "00000_stats.json", json.dumps({"count": 4, "successes": 4}))
    write(folder / "00000.parquet", b"PAR1")
    return folder


def parquet_of_names(folder: Path) -> Path:
    """An image folder of Hugging Face whose table is a parquet file."""
    pictures(folder / "train")
    rows = [{"file_name": f"train/{n}", "text": t} for n, own in TWO.items() for t in own]
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(rows).to_parquet(folder / "metadata.parquet")
    return folder


def localized_narratives(folder: Path) -> Path:
    """Numbers of COCO's pictures, whose names have twelve digits."""
    pictures(folder / "val2017", [f"{n:012}.jpg" for n in range(4)])
    rows = [
        json.dumps({"dataset_id": "mscoco_val2017", "image_id": name[0], "caption": text})
        for name, own in TWO.items()
        for text in own
    ]
    return write(folder / "coco_val_localized_narratives.jsonl", "\n".join(rows))


Write = Callable[[Path], Path]
FORMATS: tuple[Write, ...] = (
    coco_folder, coco_file, coco_annotations, coco_addresses, kaggle_flickr8k, flickr8k,
    kaggle_flickr30k, flickr30k_tokens, nlphuji, blip_lists, mapping, lines_called_json, llava,
    text_caps, numbered, image_folder, downloaded, parquet_of_names, localized_narratives,
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


def test_captions_of_other_pictures_are_told(tmp_path, capsys):
    file = coco_file(tmp_path / "coco")
    write(file, coco({"8.jpg": ["elsewhere"]}))
    dataset = load_dataset(file)
    assert (dataset.name, dataset.pictures) == ("coco", None)
    assert "none of its pictures is in" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ValueError, match=r"holds none of the first 1 pictures, such as 8\.jpg"):
        load_dataset(file, images=tmp_path / "coco" / "val2017")


def test_a_mapping_of_numbers_and_json_of_no_known_form(tmp_path):
    pictures(tmp_path / "images", ["000000000007.jpg", "12.jpg"])
    file = write(tmp_path / "x.json", '{"7": ["a"], "12": "b"}')
    dataset = load_dataset(file)
    assert captions_by_image(dataset) == {"7": ["a"], "12": ["b"]}
    assert check_dataset(dataset).unreadable == ()
    write(file, '{"info": 1, "boxes": []}')
    with pytest.raises(ValueError, match=r"no data set .JSON with the keys 'info', 'boxes'"):
        load_dataset(file)


# Columns.


def table(folder: Path, content: str, name: str = "captions.csv") -> Path:
    pictures(folder)
    return write(folder / name, content)


def read_rows(folder: Path, content: str | bytes, name: str = "captions.csv") -> Captions:
    pictures(folder)
    return captions_by_image(load_dataset(write(folder / name, content)))


@pytest.mark.parametrize(
    "header",
    [
        "filepath,title", "Image Path,Alt Text", "img_path,prompt", "photo,query", "photo_id,raw",
        "image_id,sentences", "FILE NAME,TEXT", "picture,top_caption", "url,image,txt",
        "imageFile,rawCaption",
    ],
)  # fmt: skip
def test_usual_names_of_columns(header, tmp_path):
    before = "http://x," if header.startswith("url") else ""
    captions = read_rows(tmp_path, f"{header}\n{before}0.jpg,a dog\n")
    assert captions == {"0.jpg": ["a dog"]}


@pytest.mark.parametrize(
    "names, wanted",
    [
        ("caption_0,caption_1,caption_2", ["a", "c"]),
        ("caption1,n,caption2", ["a", "c"]),
        ("Caption 1,Caption 2,Caption 3", ["a", "c"]),
        ("sentence_2,sentence_1,label", ["a"]),
        ("comment,comment_number,x", ["a"]),
        ("title,text_1,text_2", ["c"]),
    ],
)
def test_numbered_columns_in_their_order(names, wanted, tmp_path):
    assert read_rows(tmp_path, f"image,{names}\n0.jpg,a,,c\n") == {"0.jpg": wanted}


def test_columns_are_chosen(tmp_path, capsys):
    rows = "".join(f"x.jpg,{name},no,Hund {name}\n" for name in NAMES)
    file = table(tmp_path, f"datei,foto,text,bildtext\n{rows}", "my.csv")
    for place in (file, tmp_path):
        dataset = load_dataset(place, image_column="foto", caption_column="Bildtext")
        assert captions_by_image(dataset) == {name: [f"Hund {name}"] for name in NAMES}
    words = ["--image-column", "foto", "--caption-column", "bildtext"]
    assert main(["data", "check", str(tmp_path), *words]) == 0
    assert main(["data", "check", str(tmp_path), *words[2:]]) == 2  # no usual name
    capsys.readouterr()
    with pytest.raises(ValueError, match="'bildtexte' is not a column; did you mean 'bildtext'"):
        load_dataset(file, image_column="foto", caption_column="bildtexte")
    with pytest.raises(ValueError, match=r"'y' is not a column; known: .*foto"):
        load_dataset(file, image_column="y", caption_column="text")
    (tmp_path / "0.txt").write_text("a dog")
    file.unlink()
    with pytest.raises(ValueError, match="has no columns; leave out caption-column"):
        load_dataset(tmp_path, caption_column="text")


def test_ids_of_captions_are_no_ids_of_images(tmp_path):
    file = table(tmp_path, "id,image,caption\n7,0.jpg,a\n8,0.jpg,b\n9,1.jpg,c\n")
    dataset = load_dataset(file)
    assert captions_by_image(dataset) == {"0.jpg": ["a", "b"], "1.jpg": ["c"]}
    assert dataset.text_ids == ["7", "8", "9"]


# Captions that are null.

NULLS = {
    "captions.csv": "image,caption\n0.jpg,a\n0.jpg,\n1.jpg,NaN\n2.jpg,null\n3.jpg,a nan\n",
    "captions.jsonl": '{"image": "0.jpg", "caption": ["a", null]}\n{"image": "1.jpg"}\n'
    '{"image": "2.jpg", "caption": NaN}\n{"image": "3.jpg", "caption": "a nan"}\n',
    "list.json": '[{"image": "0.jpg", "caption": "a"}, {"image": "0.jpg", "caption": null}, '
    '{"image": "1.jpg", "caption": ""}, {"image": "2.jpg"}, '
    '{"image": "3.jpg", "caption": "a nan"}]',
}


@pytest.mark.parametrize("name", NULLS)
def test_null_captions_are_counted_and_their_images_stay(name, tmp_path, capsys):
    pictures(tmp_path)
    dataset = load_dataset(write(tmp_path / name, NULLS[name]))
    wanted = {"0.jpg": ["a"], "1.jpg": [], "2.jpg": [], "3.jpg": ["a nan"]}
    assert captions_by_image(dataset) == wanted
    (names,) = [left.names for left in dataset.left_out if "caption" in left.reason]
    assert names == ("0.jpg", "1.jpg", "2.jpg")
    assert "3 left out, rows without a caption" in " ".join(capsys.readouterr().err.split())


# Tables as people write them.


@pytest.mark.parametrize(
    "content, name",
    [
        ('filepath\ttitle\n0.jpg\t"Stop" says it\n1.jpg\ta "b"\n', "captions.tsv"),
        ('image,caption\n0.jpg,"Stop" says it\n1.jpg,a "b"\n', "captions.csv"),
        ('image,caption\n0.jpg,"""Stop"" says it"\n1.jpg,a "b"\n', "captions.csv"),
        ('image, caption\n0.jpg, """Stop"" says it"\n1.jpg, a "b"\n', "captions.csv"),
        ('image,caption\n0.jpg,"\\"Stop\\" says it"\n1.jpg,a "b"\n', "captions.csv"),
        ('\ufeffimage;caption\r\n0.jpg;"Stop" says it\r\n\r\n1.jpg;a "b"\r\n', "my.csv"),
        ('image,caption\r0.jpg,"Stop" says it\r1.jpg,a "b"\r', "captions.csv"),
        ('# made by hand\n\nimage|caption\n0.jpg|"Stop" says it\n1.jpg|a "b"', "captions.csv"),
        ('sep=;\nimage;caption;\n0.jpg;"Stop" says it;\n1.jpg;a "b";\n;;\n', "captions.csv"),
        ('0.jpg\t"Stop" says it\n1.jpg\ta "b"\n', "my.tsv"),
        ('0.jpg\t0\t"Stop" says it\n1.jpg\t0\ta "b"\n', "my.txt"),
        ('caption,image\n"Stop" says it,0.jpg\na "b",1.jpg\n', "captions.csv"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le"])
def test_tables_as_people_write_them(content, name, encoding, tmp_path):
    captions = read_rows(tmp_path, content.encode(encoding), name)
    assert captions == {"0.jpg": ['"Stop" says it'], "1.jpg": ['a "b"']}


@pytest.mark.parametrize(
    "rows, wanted",
    [
        (["0.jpg,a, b, c", "1.jpg,d"], ["a, b, c", "d"]),
        (['0.jpg,"a, b",c', '1.jpg,"d"'], ['"a, b",c', "d"]),
        (['0.jpg,"never closed', "1.jpg,d", '2.jpg,e"'], ['"never closed', "d", 'e"']),
        (['0.jpg,"two\nlines, and\n\nmore"', "1.jpg,d"], ["two\nlines, and\n\nmore", "d"]),
        (['0.jpg,"two\r\nlines"', "1.jpg,d,,,"], ["two\r\nlines", "d"]),
    ],
)
def test_quotes_and_commas_in_captions(rows, wanted, tmp_path):
    captions = read_rows(tmp_path, "\n".join(["image,caption", *rows]) + "\n")
    assert [text for own in captions.values() for text in own] == wanted


def test_commas_in_a_caption_between_other_columns(tmp_path):
    content = "image,caption,split\n0.jpg,a, b,test\n1.jpg,c,train\n"
    pictures(tmp_path)
    dataset = load_dataset(write(tmp_path / "captions.csv", content))
    assert (dataset.texts, dataset.splits) == (["a, b", "c"], ["test", "train"])


def test_few_rows_that_do_not_fit_are_left_out_many_are_refused(tmp_path, capsys):
    rows = [f"{n % 4}.jpg,{n},a dog" for n in range(300)]
    bad = ["1.jpg", "", "2.jpg"]
    dataset = load_dataset(table(tmp_path, "\n".join(["image,n,caption", *rows, *bad])))
    assert len(dataset.texts) == 300
    (names,) = [left.names for left in dataset.left_out if "fit" in left.reason]
    assert [name.partition(" has")[0] for name in names] == ["line 302", "line 304"]
    assert "2 left out" in capsys.readouterr().err
    content = "\n".join(["image,n,caption", *rows, *["1.jpg"] * 9])
    with pytest.raises(ValueError, match=r"line 302 has another .*quote .* \(and 8 other rows"):
        load_dataset(table(tmp_path, content))


@pytest.mark.parametrize(
    "name, words",
    [
        ("captions.xlsx", "is a spreadsheet; save it as CSV"),
        ("captions.csv.gz", "is packed; unpack it first"),
        ("Flickr8k_text.zip", "is packed; unpack it first"),
        ("data.pkl", "is pickled, which may run code"),
    ],
)
def test_what_is_not_read_in_words(name, words, tmp_path):
    file = write(tmp_path / name, b"PK")
    for place in (tmp_path, file):
        with pytest.raises(ValueError, match=words):
            load_dataset(place)


texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12
) | st.sampled_from(
    [" a", '"', '""', 'a"b', '"a" b', "a,b", ",", "a\nb,c", "\r\n", "a;\tb|c", "\\"]
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.lists(texts.filter(lambda t: t.strip() and t[0] != "["), min_size=1, max_size=5),
    st.sampled_from(",;\t|"),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_what_is_written_in_any_dialect_is_read_back(tmp_path, rows, separator, quoting, end, last):
    content = io.StringIO()
    out = csv.writer(content, delimiter=separator, quoting=quoting, lineterminator=end)
    out.writerow(["image", "caption"] if last else ["caption", "image"])
    for n, text in enumerate(rows):
        out.writerow([f"{n}.jpg", text] if last else [text, f"{n}.jpg"])
    file = write(tmp_path / "captions.csv", content.getvalue())
    assert load_dataset(file).texts == rows
