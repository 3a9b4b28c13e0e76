import datetime
import os
import sys
from pathlib import Path

import pytest
from PIL import Image

from corpus_cases import captions_by_image, splits_by_image
from counterfoil.data.readers import load_dataset
from counterfoil.data.readers.huggingface import is_huggingface, read_huggingface
from counterfoil.data.readers.source import Source

datasets = pytest.importorskip("datasets")


def picture(shade):
    return Image.new("RGB", (5, 4), (shade, shade, shade))


def save(folder, **columns):
    datasets.Dataset.from_dict(columns).save_to_disk(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def _no_bars():
    datasets.disable_progress_bars()


def test_lists_of_captions(tmp_path):
    source = save(
        tmp_path / "d",
        image=[picture(10), picture(20), picture(30)],
        captions=[["a", "b"], [], ["c"]],
        image_id=[7, 8, 9],
        split=["train", "val", "test"],
    )
    assert is_huggingface(tmp_path / "d")
    dataset = read_huggingface(source)
    assert captions_by_image(dataset) == {"7": ["a", "b"], "8": [], "9": ["c"]}
    assert splits_by_image(dataset) == {"7": "train", "8": "dev", "9": "test"}
    part = dataset.split("test")
    assert part.pictures.open(0).getpixel((0, 0)) == (30, 30, 30)


def test_a_caption_a_row(tmp_path):
    source = save(
        tmp_path / "d",
        img=[picture(n) for n in (1, 2, 1)],
        text=["a", "b", "c"],
        filename=["x", "y", "x"],
    )
    dataset = read_huggingface(source, Source(path=Path(), name="mine"))
    assert dataset.name == "mine"
    assert captions_by_image(dataset) == {"x": ["a", "c"], "y": ["b"]}


def test_data_set_of_several_splits(tmp_path):
    tables = {
        split: datasets.Dataset.from_dict(
            {"image": [picture(shade), picture(10 + shade)], "caption": [split, "x"]}
        )
        for split, shade in (("train", 1), ("validation", 2), ("test", 3))
    }
    datasets.DatasetDict(tables).save_to_disk(tmp_path / "d")
    dataset = read_huggingface(str(tmp_path / "d"))
    assert dataset.split_names == ("train", "dev", "test")
    assert dataset.image_ids[:2] == ["train/0", "train/1"]
    assert dataset.split("dev").texts == ["validation", "x"]
    assert dataset.split("dev").pictures.open(1).getpixel((0, 0)) == (12, 12, 12)
    places = {dataset.pictures.place(row) for row in range(6)}
    assert len(places) == 6


def test_one_split_is_divided(tmp_path):
    source = save(tmp_path / "d", image=[picture(n) for n in range(6)], caption=list("abcdef"))
    assert set(read_huggingface(source).splits) == {"train", "dev", "test"}


@pytest.mark.parametrize(
    "columns, words",
    [
        ({"image": [picture(1)], "label": [1]}, "there is no .caption. among the columns .label.;"),
        ({"caption": ["a"]}, "there is no .image. among the columns .caption.;"),
        ({"image": [picture(1)], "caption": [3]}, "row 0: the caption is 3"),
        (
            {
                "image": [picture(1)] * 2,
                "caption": ["a", "b"],
                "id": ["x", "x"],
                "split": ["train", "test"],
            },
            "image 'x' is in splits 'train' and 'test'",
        ),
    ],
)
def test_bad_columns_in_words(tmp_path, columns, words):
    with pytest.raises(ValueError, match=words):
        read_huggingface(save(tmp_path / "d", **columns))


def test_what_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be read"):
        read_huggingface(str(tmp_path))
    source = save(tmp_path / "d", image=[b"no picture"], caption=["a"])
    with pytest.raises(ValueError, match=r"d/row/0.* cannot be read as a picture"):
        read_huggingface(source).pictures.open(0)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r'needs datasets: pip install "counterfoil\[hf\]"'):
        read_huggingface("someone/something")


def test_name_on_the_hub_without_network():
    with pytest.raises(ValueError, match="'someone/nothing' cannot be read"):
        read_huggingface("someone/nothing")


def test_a_parquet_file_without_images_gets_a_sentence(tmp_path):
    datasets.Dataset.from_list([{"url": "http://x", "text": "y"}]).to_parquet(
        tmp_path / "x.parquet"
    )
    with pytest.raises(ValueError, match=r"there is no .image. among the columns .url., .text.;"):
        read_huggingface(str(tmp_path / "x.parquet"))


def test_further_columns_are_kept_by_image(tmp_path):
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "caption": datasets.Value("string"),
            "id": datasets.Value("string"),
            "year": datasets.Value("int32"),
            "day": datasets.Value("date32"),
            "kind": datasets.ClassLabel(names=["cat", "dog"]),
            "vector": datasets.Sequence(datasets.Value("float32")),
            "raw": datasets.Value("binary"),
        }
    )
    rows = {
        "image": [picture(n) for n in (1, 2, 1)],
        "caption": ["a", "b", "c"],
        "id": ["x", "y", "x"],
        "year": [2020, None, 2021],
        "day": [datetime.date(2024, 5, 1), None, None],
        "kind": [1, 0, 1],
        "vector": [[0.5]] * 3,
        "raw": [b"x"] * 3,
    }
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "d")
    assert read_huggingface(str(tmp_path / "d")).columns == {
        "kind": ["dog", "cat"],
        "year": [2020, None],
        "day": ["2024-05-01", None],
    }


def test_names_of_columns_nulls_and_numbered_captions(tmp_path, capsys):
    source = save(
        tmp_path / "d",
        jpg=[picture(n) for n in (1, 2, 3)],
        caption_0=["a", None, "c"],
        caption_1=["b", None, None],
        url=["http://x"] * 3,
        split=["train", "restval", "val"],
    )
    dataset = load_dataset(source)
    assert captions_by_image(dataset) == {"row/0": ["a", "b"], "row/1": [], "row/2": ["c"]}
    assert dataset.splits == ["train", "train", "dev"]
    assert [left.names for left in dataset.left_out] == [("row/1", "row/1")]
    assert "rows without a caption" in " ".join(capsys.readouterr().err.split())


def test_columns_are_chosen(tmp_path):
    columns = {"bild": [picture(1)], "image": ["x.jpg"], "caption": ["a"], "titel": ["b"]}
    source = save(tmp_path / "d", **columns)
    assert load_dataset(source, image_column="bild", caption_column="titel").texts == ["b"]
    with pytest.raises(ValueError, match="'bilt' is not a column; did you mean 'bild'"):
        load_dataset(source, image_column="bilt")
    with pytest.raises(ValueError, match=r"leave out images="):
        load_dataset(source, images=tmp_path)


def test_parquet_files_as_the_hub_keeps_them(tmp_path):
    (tmp_path / "data").mkdir()
    for split in ("train", "test"):
        table = datasets.Dataset.from_dict({"image": [picture(1)], "caption": [split]})
        table.to_parquet(tmp_path / "data" / f"{split}-00000-of-00001.parquet")
    os.mkfifo(tmp_path / "pipe")  # nothing waits for it
    assert load_dataset(tmp_path)["test"].texts == ["test"]
