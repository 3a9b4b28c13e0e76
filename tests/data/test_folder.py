import json
import os
import re
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import counterfoil as cf
from corpus_cases import (
    captions_by_image,
    small_corpus,
    splits_by_image,
    write_folder,
    write_picture,
)
from counterfoil.data.files import OTHER
from counterfoil.data.images import PictureFiles
from counterfoil.data.readers import load_dataset
from counterfoil.data.readers.columns import NAMED
from counterfoil.model import load_model


def write_list(folder, name, text, *, pictures=("a.jpg", "b.jpg")):
    for row, picture in enumerate(pictures):
        write_picture(folder / picture, row)
    (folder / name).write_text(text, encoding="utf-8")
    return folder


JSONL = '{"image": "a.jpg", "captions": ["one", "two"]}\n\n{"image": "b.jpg", "caption": "three"}\n'


@pytest.mark.parametrize(
    "name, text",
    [
        ("captions.jsonl", JSONL),
        (
            "metadata.jsonl",
            JSONL.replace("image", "file_name")
            .replace('["one", "two"]', '"one"')
            .replace("captions", "text")
            .replace("caption", "text")
            + '{"file_name": "a.jpg", "text": "two"}\n',
        ),
        ("captions.csv", "image,caption\na.jpg,one\na.jpg,two\nb.jpg,three\n"),
        ("captions.csv", '\ufeffimage,captions\r\na.jpg,"[""one"", ""two""]"\r\nb.jpg,three\r\n'),
        ("captions.tsv", "filepath\ttitle\na.jpg\tone\nb.jpg\tthree\na.jpg\ttwo\n"),
        ("captions.csv", "File_Name;Comment\na.jpg;one\na.jpg;two\nb.jpg;three\n"),
        ("captions.csv", "path\tsentence\na.jpg\tone\na.jpg\ttwo\nb.jpg\tthree\n"),
        (
            "captions.csv",
            "image_name| comment_number| comment\na.jpg| 0| one\na.jpg| 1| two\nb.jpg| 0| three\n",
        ),
    ],
)
def test_every_kind_of_list(tmp_path, name, text):
    dataset = load_dataset(write_list(tmp_path, name, text))
    assert captions_by_image(dataset) == {"a.jpg": ["one", "two"], "b.jpg": ["three"]}
    assert dataset.pictures.open(0).size == (12, 8)


def test_ids_and_splits(tmp_path):
    text = (
        "image,id,split,caption\na.jpg,0,train,one\n"
        'b.jpg,é 2,validation,"with, a comma\nand a line"\na.jpg,0,train,again\n'
    )
    dataset = load_dataset(write_list(tmp_path, "captions.csv", text))
    assert captions_by_image(dataset) == {
        "0": ["one", "again"],
        "é 2": ["with, a comma\nand a line"],
    }
    assert splits_by_image(dataset) == {"0": "train", "é 2": "dev"}


def test_id_zero_of_jsonl_is_an_id(tmp_path):
    text = '{"image": "a.jpg", "id": 0, "caption": "x"}\n'
    assert load_dataset(write_list(tmp_path, "captions.jsonl", text)).image_ids == ["0"]


def test_pictures_in_a_folder_of_their_own(tmp_path):
    write_list(tmp_path, "captions.jsonl", JSONL, pictures=["images/a.jpg", "images/b.jpg"])
    assert load_dataset(tmp_path).pictures.open(1).size == (12, 8)
    elsewhere = tmp_path / "images"
    assert load_dataset(tmp_path, images=elsewhere).pictures.open(1).size == (12, 8)


def test_text_beside_each_picture(tmp_path):
    for name in ("x/one.png", "two.JPG", "none.jpeg"):
        write_picture(tmp_path / name)
    (tmp_path / "x" / "one.txt").write_text("first\n\n second \n", encoding="utf-8")
    (tmp_path / "two.txt").write_text("", encoding="utf-8")
    (tmp_path / "README.txt").write_text("about this folder")
    dataset = load_dataset(tmp_path)
    assert captions_by_image(dataset) == {
        "none.jpeg": [],
        "two.JPG": [],
        "x/one.png": ["first", " second "],
    }
    assert set(dataset.splits) == {"train", "dev", "test"}


def test_texts_in_a_folder_beside_that_of_the_pictures(tmp_path):
    """Urban1k, a set to test with."""
    for top in ("image", "caption"):
        (tmp_path / top).mkdir()
    for n in range(12):
        write_picture(tmp_path / "image" / f"{n}.jpg", seed=n)
        (tmp_path / "caption" / f"{n}.txt").write_text(f"a long caption of {n}\n")
    (tmp_path / "README.txt").write_text("about it")
    dataset = load_dataset(tmp_path)
    described = [dataset.image_ids[row] for row in dataset.text_to_image.tolist()]
    assert described == [f"image/{text.rpartition(' ')[2]}.jpg" for text in dataset.texts]
    assert (len(dataset), set(dataset.splits)) == (12, {"test"})
    assert [note.names for note in dataset.left_out] == [("README.txt",)]
    (tmp_path / "image" / "0.txt").write_text("beside it")
    assert load_dataset(tmp_path).texts == ["beside it"], "a text beside a picture comes first"


def test_own_pictures_and_texts_in_two_folders_are_split(tmp_path):
    for top in ("images", "captions"):
        (tmp_path / top).mkdir()
    for n in range(12):
        write_picture(tmp_path / "images" / f"{n}.jpg", seed=n)
        (tmp_path / "captions" / f"{n}.txt").write_text(f"a caption of {n}\n")
    dataset = load_dataset(tmp_path)
    described = [dataset.image_ids[row] for row in dataset.text_to_image.tolist()]
    assert described == [f"images/{text.rpartition(' ')[2]}.jpg" for text in dataset.texts]
    assert (len(dataset), set(dataset.splits)) == (12, {"train", "dev", "test"})


def test_json_lines_of_docci(tmp_path):
    rows = [
        {"split": split, "example_id": f"{split}_0", "image_file": f"{split}.jpg"}
        | {"description": f"a long caption of {split}"}
        for split in ("train", "test", "qual_dev", "qual_test")
    ]
    for seed, row in enumerate(rows):
        (tmp_path / "images").mkdir(exist_ok=True)
        write_picture(tmp_path / "images" / row["image_file"], seed=seed)
    path = tmp_path / "docci_descriptions.jsonlines"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for source in (tmp_path, path):
        dataset = load_dataset(source)
        assert dataset.splits == ["train", "test", "qual_dev", "qual_test"]
        assert dataset.texts == [row["description"] for row in rows]
        assert dataset.split("qual_test").texts == [rows[-1]["description"]]


def write_dci(folder, parts=("train", "valid", "test"), notes="annotations"):
    listed = {}
    for n, split in enumerate(parts):
        (folder / "photos").mkdir(exist_ok=True, parents=True)
        (folder / notes).mkdir(exist_ok=True)
        write_picture(folder / "photos" / f"sa_{n}.jpg", seed=n)
        about = {"image": f"sa_{n}.jpg", "short_caption": f"short {n}"}
        about |= {"extra_caption": f"More of {n}. ", "mask_data": {}, "mask_keys": []}
        (folder / notes / f"{n}.json").write_text(json.dumps(about))
        listed[split] = [f"{n}.json"]
    (folder / "splits.json").write_text(json.dumps(listed))


@pytest.mark.parametrize("notes", ["annotations", "complete"])
@pytest.mark.parametrize("inside", ["", "data/densely_captioned_images"])
def test_densely_captioned_images(tmp_path, notes, inside):
    write_dci(tmp_path / inside, notes=notes)
    dataset = load_dataset(tmp_path)
    assert dataset.texts == ["short 0\nMore of 0.", "short 1\nMore of 1.", "short 2\nMore of 2."]
    assert dataset.splits == ["train", "dev", "test"]
    assert [name.rpartition("/")[2] for name in dataset.image_ids] == [
        f"sa_{n}.jpg" for n in range(3)
    ]
    assert all(path.is_file() for path in dataset.pictures.paths)
    assert not dataset.left_out


def test_densely_captioned_images_that_lack_something(tmp_path, capsys):
    write_dci(tmp_path)
    note = tmp_path / "annotations" / "1.json"
    note.write_text(json.dumps({"image": "sa_1.jpg", "short_caption": "", "extra_caption": None}))
    assert load_dataset(tmp_path).texts == ["short 0\nMore of 0.", "short 2\nMore of 2."]
    assert "1 left out, rows without a caption, such as sa_1.jpg" in capsys.readouterr().err
    note.write_text("[]")
    with pytest.raises(ValueError, match="names no picture"):
        load_dataset(tmp_path)
    note.unlink()
    with pytest.raises(ValueError, match=r"annotations/1\.json"):
        load_dataset(tmp_path)
    (tmp_path / "splits.json").write_text("[1]")
    with pytest.raises(ValueError, match="is not as DCI writes it"):
        load_dataset(tmp_path)


def test_negbench_retrieval_is_data(tmp_path):
    (tmp_path / "val2017").mkdir()
    lines = ["filepath,captions"]
    for n in range(3):
        write_picture(tmp_path / "val2017" / f"{n}.jpg", seed=n)
        lines.append(f'images/val2017/{n}.jpg,"[\'no dog {n}\', ""it\'s {n}""]"')
    path = tmp_path / "COCO_val_retrieval.csv"
    path.write_text("\n".join(lines))
    dataset = load_dataset(path, images=tmp_path / "val2017")
    assert dataset.texts == [text for n in range(3) for text in (f"no dog {n}", f"it's {n}")]
    assert set(dataset.splits) == {"dev"}


def test_captions_beside_pictures_of_archives(tmp_path):
    """Texts at any depth, of other spellings; what is no caption is a counted note."""
    pictures = ("2021/05/17/a.jpg", "2021/B.JPG", "café.jpg", "c.png", "d.jpg", "e.heic")
    for name in pictures:
        write_picture(tmp_path / "x.png")
        (tmp_path / "2021" / "05" / "17").mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((tmp_path / "x.png").read_bytes())
    (tmp_path / "x.png").unlink()
    texts = {
        "2021/05/17/a.txt": "deep",
        "2021/b.TXT": "case",
        unicodedata.normalize("NFD", "café") + ".txt": "accent",
        "c.png.txt": "after the ending",
        "shopping.txt": "milk",
        "a.txt": "of no picture beside it",
        "e.xmp": "<x/>",
        "d.jpg.supplemental-metadata.json": "{}",
        "e.MOV": "film",
        ".DS_Store": "",
        "._c.txt": "\0",
        "README.md": "about",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    dataset = load_dataset(tmp_path)
    assert captions_by_image(dataset) == {
        "2021/05/17/a.jpg": ["deep"],
        "2021/B.JPG": ["case"],
        "c.png": ["after the ending"],
        "café.jpg": ["accent"],
        "d.jpg": [],
        "e.heic": [],
    }
    (left,) = dataset.left_out
    assert left.reason == OTHER
    assert set(left.names) == {
        *("README.md", "a.txt", "d.jpg.supplemental-metadata.json", "e.MOV", "e.xmp"),
        "shopping.txt",
    }


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"shopping.txt": "milk"},
        {"IMG_0.jpg.supplemental-metadata.json": '{"title": "IMG_0.jpg", "description": ""}'},
        {"album/metadata.json": '{"title": "Summer"}', "print-subscriptions.json": "{}"},
        {"0.xmp": "<x/>", "0.aae": "x", "0.thm": "x", "0.mov": "x", "Thumbs.db": "x"},
        {"my-index/manifest.json": '{"artifact": "x"}', "my-index/images.npy": "x"},
        {"lists/manifest.json": '{"artifact": "mined negatives"}', "lists/x.npy": "x"},
        {"backup.tar": "x"},
        {"backup.tar.gz": "x"},
        {"table.parquet": "x"},
    ],
)
def test_pictures_alone(tmp_path, more):
    for name in ("0.jpg", "2021/05/1.jpg"):
        write_picture(tmp_path / name)
    for name, text in more.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    dataset = load_dataset(tmp_path)
    assert dataset.image_ids == ["0.jpg", "2021/05/1.jpg"]
    assert dataset.texts == []
    assert dataset.split_names == ("all",)
    assert dataset.split("all").image_ids == dataset.image_ids
    counted = {name for left in dataset.left_out for name in left.names}
    wanted = {
        name.partition("/")[0] + "/" if "index" in name or "lists" in name else name
        for name in more
        if name != "Thumbs.db"
    }
    assert counted == wanted
    with pytest.raises(ValueError, match="holds no captions that splits are made of"):
        dataset.split("train")


def test_pictures_alone_in_folders_of_splits(tmp_path):
    for name in ("train/0.jpg", "val/1.jpg"):
        write_picture(tmp_path / name)
    dataset = load_dataset(tmp_path)
    assert splits_by_image(dataset) == {"train/0.jpg": "train", "val/1.jpg": "dev"}
    assert dataset["train"].image_ids == ["train/0.jpg"]


def test_what_needs_captions_refuses_pictures_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_picture(tmp_path / "photos" / "0.jpg")
    (tmp_path / "photos" / "words.xlsx").write_text("x")
    data, model = load_dataset("photos"), load_model("vectors")
    for work in (
        lambda: cf.Trainer(model, loss=cf.losses.InfoNCELoss(), train=data, output="out").train(),
        lambda: cf.mine_hard_negatives(model, data),
        lambda: cf.evaluate(model, data),
        lambda: cf.run("demo", data="photos", output="out"),
    ):
        with pytest.raises(ValueError, match=r"photos holds no captions .*words\.xlsx"):
            work()
    assert not Path("out").exists()


def test_pictures_beside_a_table(tmp_path, capsys):
    names = ("a.jpg", "b.jpg", "new.jpg", "sub/more.jpg")
    write_list(tmp_path, "captions.jsonl", JSONL, pictures=names)
    dataset = load_dataset(tmp_path)
    assert dataset.image_ids == ["a.jpg", "b.jpg"]
    assert list(dataset.unlisted) == ["new.jpg", "sub/more.jpg"]
    said = " ".join(capsys.readouterr().err.split())
    assert "2 pictures that the table does not name, which an index takes, such as new.jpg" in said
    whole = dataset.with_unlisted()
    assert whole.image_ids == list(names)
    assert whole.relation.counts.tolist() == [2, 1, 0, 0]
    assert whole.with_unlisted() is whole
    for part in (dataset.split(*dataset.split_names), dataset.subset(torch.tensor([0]))):
        assert not part.unlisted
        assert not part.left_out
    # pictures of a folder of their own are a stock from which the list chooses
    (tmp_path / "list").mkdir()
    (tmp_path / "captions.jsonl").rename(tmp_path / "list" / "captions.jsonl")
    assert not load_dataset(tmp_path / "list", images=tmp_path).unlisted


def test_a_table_that_is_given_alone_is_of_the_folders_of_its_pictures(tmp_path):
    """As one year of COCO, with the pictures of others beside."""
    for name in ("val2017/1.jpg", "val2017/2.jpg", "train2017/3.jpg"):
        write_picture(tmp_path / name)
    table = tmp_path / "captions.csv"
    table.write_text("image,caption\n1.jpg,one\n")
    assert list(load_dataset(table).unlisted) == ["val2017/2.jpg"]
    assert list(load_dataset(tmp_path).unlisted) == ["train2017/3.jpg", "val2017/2.jpg"]


def test_a_pipe_is_no_data_set(tmp_path):
    os.mkfifo(tmp_path / "captions.csv")
    with pytest.raises(ValueError, match=r"captions\.csv is neither a file nor a folder"):
        load_dataset(tmp_path / "captions.csv")


def test_subfolders_with_names_of_splits_are_the_splits(tmp_path):
    for name in ("train/1.png", "val/2.png", "test/3.png", "beach/4.png"):
        write_picture(tmp_path / name)
        (tmp_path / name).with_suffix(".txt").write_text("a caption")
    splits = splits_by_image(load_dataset(tmp_path))
    assert {name: splits[name] for name in ("train/1.png", "val/2.png", "test/3.png")} == {
        "train/1.png": "train",
        "val/2.png": "dev",
        "test/3.png": "test",
    }
    lines = ("image,split,caption", "train/1.png,,x", "val/2.png,test,y", "test/3.png,,z")
    (tmp_path / "captions.csv").write_text("\n".join(lines))
    assert splits_by_image(load_dataset(tmp_path / "captions.csv")) == {
        "train/1.png": "train",
        "val/2.png": "test",  # a column goes before a folder
        "test/3.png": "test",
    }


def test_a_table_in_the_code_page_of_windows_is_read_with_a_warning(tmp_path, capsys):
    write_list(tmp_path, "captions.csv", "")
    text = "image;caption\r\na.jpg;ein Hündchen\r\nb.jpg;zwei\r\n"
    (tmp_path / "captions.csv").write_bytes(text.encode("cp1252"))
    assert captions_by_image(load_dataset(tmp_path))["a.jpg"] == ["ein Hündchen"]
    assert "was read as cp1252" in " ".join(capsys.readouterr().err.split())


def test_round_trip(tmp_path):
    places = [tmp_path / f"{row}.png" for row in range(4)]
    for row, path in enumerate(places):
        write_picture(path, row)
    dataset = small_corpus((2, 0, 1, 3), ["train", "dev", "test", "train"])
    dataset = type(dataset)(
        name="small",
        image_ids=["ü/1", "a b", "x.jpg", "\t"],
        text_ids=dataset.text_ids,
        texts=["two  blanks", "line\nend", "", "狗", '"quoted", yes', "\u2028"],
        text_to_image=dataset.text_to_image,
        splits=dataset.splits,
        pictures=PictureFiles(places),
    )
    write_folder(dataset, tmp_path / "out")
    back = load_dataset(tmp_path / "out")
    assert captions_by_image(back) == captions_by_image(dataset)
    assert splits_by_image(back) == splits_by_image(dataset)
    for row in range(4):
        assert back.pictures.open(row).tobytes() == dataset.pictures.open(row).tobytes()


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("captions.jsonl", "", "captions.jsonl holds no image"),
        ("captions.jsonl", "{", "line 1 is not JSON"),
        ("captions.jsonl", "[1]", "line 1: .* is needed"),
        ("captions.jsonl", '{"pixels": "a.jpg"}', "line 1: there is no 'image' among the columns"),
        ("captions.jsonl", '{"image": "a.jpg"}', "line 1: there is no 'caption' among"),
        ("captions.jsonl", '{"image": "", "caption": "x"}', "line 1: the image is ''"),
        (
            "captions.csv",
            "image,caption\nhttps://x.org/a.jpg,one\n",
            "pictures are not fetched, download them first, for example with img2dataset",
        ),
        ("captions.jsonl", '{"image": 3, "caption": "x"}', "line 1: the image is 3"),
        ("captions.jsonl", '{"image": "a.jpg", "caption": 3}', "line 1: the caption is 3"),
        (
            "captions.jsonl",
            '{"image": "a.jpg", "caption": "x", "split": ["train"]}',
            r"line 1: the split is \['train'\]; text is needed",
        ),
        ("captions.jsonl", '{"image": "a.jpg", "caption": "x", "id": {}}', "line 1: the id is {}"),
        ("captions.jsonl", '{"image": "a.jpg", "caption": ' + "[" * 9_999, "line 1 is not JSON"),
        ("captions.jsonl", '{"image": "a.jpg", "captions": [3]}', r"the caption is \[3\]"),
        (
            "captions.csv",
            "a.jpg;one,two\nb.jpg;three\n".replace(".jpg", ""),
            "headings 'a;one', 'two' is none for the images and none for the captions.*file_name",
        ),
        (
            "captions.csv",
            "Bild;title;Ort\na;b;c\n",
            "'Bild', 'title', 'Ort' is none for the images;",
        ),
        ("captions.csv", "image;Titel\na;b\n", "csv:caption-column=Titel, or.*with one of caption"),
        ("captions.csv", "a dog\n", "the first line is 'a dog'; it needs the names of the columns"),
        ("captions.csv", "image,n,caption\na.jpg,1\n", "line 2 has another number of columns"),
        ("captions.csv", "image,caption\na.jpg\n", "line 2 has another number of columns"),
        (
            "captions.csv",
            "image,id,caption\na.jpg,1,x\nb.jpg,1,y\n",
            "line 3: image '1' is 'b.jpg' in split '' here, but another file",
        ),
        (
            "captions.csv",
            "image,split,caption\na.jpg,train,x\na.jpg,test,y\n",
            "image 'a.jpg' is 'a.jpg' in split 'test' here, but another",
        ),
    ],
)
def test_bad_lists_in_words(tmp_path, name, text, words):
    with pytest.raises(ValueError, match=words):
        load_dataset(write_list(tmp_path, name, text))


def test_bad_folders_in_words(tmp_path):
    with pytest.raises(ValueError, match="is no data set"):
        load_dataset(tmp_path)
    write_picture(tmp_path / "a.jpg")
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match="is not UTF-8"):
        load_dataset(tmp_path)
    (tmp_path / "a.txt").write_text("fine")
    (tmp_path / "captions.csv").write_text("image,caption\na.jpg,x\n")
    (tmp_path / "captions.tsv").write_text("image\tcaption\na.jpg\tx\n")
    with pytest.raises(ValueError, match=r"captions\.csv and captions\.tsv; give the path of"):
        load_dataset(tmp_path)
    assert load_dataset(tmp_path / "captions.csv").texts == ["x"]


def test_missing_pictures_are_named_when_they_are_opened(tmp_path):
    dataset = load_dataset(write_list(tmp_path, "captions.jsonl", JSONL, pictures=["a.jpg"]))
    with pytest.raises(ValueError, match=r"b\.jpg does not exist; an image is needed there"):
        dataset.pictures.open(1)


def test_further_columns_are_kept_by_image(tmp_path):
    text = (
        "image,caption,Album,year,code,price,title,split,\n"
        "a.jpg,one,,2020,007,1.50,T,val,0\n"
        "a.jpg,two,home,2021,008,2,U,val,1\n"
        "b.jpg,three,,,009,,,test,2\n"
    )
    dataset = load_dataset(write_list(tmp_path, "captions.csv", text))
    wanted = {
        "year": [2020, None],  # of rows of an image the first counts
        "code": ["007", "009"],
        "price": [1.5, None],
        "title": ["T", None],
        "split": ["dev", "test"],
        "album": ["home", None],
    }
    assert dataset.columns == wanted
    assert dataset.split("test").columns == {name: values[1:] for name, values in wanted.items()}
    assert dataset.column_values(1) == {"code": "009", "split": "test"}
    plain = replace(dataset, columns={})
    assert plain.fingerprint == dataset.fingerprint
    with pytest.raises(ValueError, match="1 values of 'year' were given for 2 images"):
        replace(dataset, columns={"year": [1]})


def test_columns_of_jsonl_are_text_and_numbers(tmp_path):
    lines = (
        '{"image": "a.jpg", "caption": "x", "id": 3, "n": 2020, "s": "07", "ok": true, "e": null}',
        '{"image": "b.jpg", "caption": "y", "tags": ["a"], "o": {"b": 1}, "s": " ", "n": 1e999}',
    )
    dataset = load_dataset(write_list(tmp_path, "captions.jsonl", "\n".join(lines)))
    assert dataset.columns == {"n": [2020, None], "s": ["07", None], "ok": ["true", None]}


def test_a_column_that_is_not_unicode_is_refused(tmp_path):
    text = '{"image": "a.jpg", "caption": "x", "album": "\\ud800"}\n'
    with pytest.raises(ValueError, match="is not valid Unicode"):
        load_dataset(write_list(tmp_path, "captions.jsonl", text))


@pytest.mark.parametrize(
    ("noun", "line", "start", "end"),
    [
        ("image", {"Datei": "a.jpg", "caption": "x"}, "The image may also be called", ", the "),
        ("caption", {"image": "a.jpg", "Titel": "x"}, "the caption text,", ": the same names"),
    ],
)
def test_errors_about_columns_list_the_names_of_the_docs(tmp_path, noun, line, start, end):
    """All of them work."""
    docs = Path(__file__).parents[2] / "docs" / "data.md"
    told = " ".join(docs.read_text(encoding="utf-8").split()).split(start)[1].split(end)[0]
    names = {noun, "text" if noun == "caption" else "img", *re.findall(r"\w+", told)} - {"or"}
    assert set(NAMED[noun]) == names
    write_list(tmp_path, "captions.csv", "Datei;Titel\na.jpg;x\n")
    with pytest.raises(ValueError, match=f"one of {', '.join(NAMED[noun])}( and|$)"):
        load_dataset(tmp_path)
    (tmp_path / "captions.csv").unlink()
    write_list(tmp_path, "captions.jsonl", json.dumps(line))
    last = NAMED[noun][-1]
    with pytest.raises(ValueError, match=f"call it {', '.join(NAMED[noun][:-1])} or {last}$"):
        load_dataset(tmp_path)
    for name in names:
        known = {key if key.islower() else name: value for key, value in line.items()}
        (tmp_path / "captions.jsonl").write_text(json.dumps(known))
        assert load_dataset(tmp_path).texts == ["x"]
