"""Shards of WebDataset: what is written is read again as it was."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch

from corpus_cases import captions_by_image, splits_by_image, write_picture, write_shard
from counterfoil.cli import main
from counterfoil.data.checks import check_dataset
from counterfoil.data.images import PictureFiles
from counterfoil.data.readers import load_dataset
from counterfoil.data.readers.webdataset import (
    is_webdataset,
    read_webdataset,
    write_webdataset,
)


def test_samples_of_img2dataset(tmp_path):
    note = {"caption": "of the JSON", "url": "x", "width": 3}
    shard = write_shard(
        tmp_path / "00000.tar",
        {
            "000000.jpg": 0, "000000.txt": "a dog\n\nanother", "000000.json": json.dumps(note),
            "000001.json": json.dumps(note), "000001.jpg": 1,
            "000002.webp": 2, "000002.json": json.dumps({"caption": ["one", "two"]}),
        },
    )  # fmt: skip
    dataset = read_webdataset(shard)
    assert captions_by_image(dataset) == {
        "000000": ["a dog", "another"],
        "000001": ["of the JSON"],
        "000002": ["one", "two"],
    }
    for row in range(3):
        write_picture(tmp_path / "same.jpg", row)
        same = PictureFiles([tmp_path / "same.jpg"]).open(0)
        assert dataset.pictures.open(row).tobytes() == same.tobytes()
    part = dataset.pictures.subset(torch.tensor([2, 0]))
    assert part.place(0).endswith("00000.tar/000002.webp")


def test_shards_of_a_folder_are_splits_by_their_names(tmp_path):
    for number, name in enumerate(("train-000.tar", "train-001.tar", "val-000.tar", "test.tar")):
        write_shard(tmp_path / "d" / name, {f"a/{number}.jpg": number, f"a/{number}.txt": "x"})
    dataset = load_dataset(tmp_path / "d")
    assert dataset.name == "d"
    assert splits_by_image(dataset) == {
        "a/0": "train", "a/1": "train", "a/2": "dev", "a/3": "test",
    }  # fmt: skip


def test_images_without_captions_are_left_out_with_a_warning(tmp_path, capsys):
    members = {"0.jpg": 0, "1.jpg": 1, "1.txt": "a cat", "2.txt": "no picture"}
    assert captions_by_image(read_webdataset(write_shard(tmp_path / "x.tar", members))) == {
        "1": ["a cat"]
    }
    assert "1 images without a caption are left out" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"0.jpg": 0}, "holds no image with a caption; a sample is KEY.jpg"),
        ({"0.jpg": 0, "0.json": "{"}, "x.tar/0.json cannot be read"),
        ({"0.jpg": 0, "0.json": "[" * 200_000}, "x.tar/0.json cannot be read"),
        ({"0.jpg": 0, "0.txt": b"\xff\xfe"}, "x.tar/0.txt cannot be read"),
        ({"0.jpg": 0, "0.txt": bytes(10_000_001)}, "that is no text"),
    ],
)
def test_damaged_samples_get_a_sentence(tmp_path, members, words):
    with pytest.raises(ValueError, match=words):
        read_webdataset(write_shard(tmp_path / "x.tar", members))


def test_damaged_and_compressed_shards_get_a_sentence(tmp_path):
    (tmp_path / "x.tar").write_bytes(b"not a tar file" * 100)
    with pytest.raises(ValueError, match="cannot be read as an uncompressed tar file"):
        load_dataset(tmp_path / "x.tar")
    packed = write_shard(tmp_path / "y.tar", {"0.jpg": 0, "0.txt": "x"}, mode="w:gz")
    with pytest.raises(ValueError, match="cannot be read as an uncompressed tar file"):
        load_dataset(packed)
    with pytest.raises(ValueError, match="has its own pictures; leave out --images"):
        load_dataset(packed, images=tmp_path)
    assert not is_webdataset(tmp_path / "nothing")


def test_a_broken_picture_is_named_by_shard_and_member(tmp_path):
    shard = write_shard(tmp_path / "x.tar", {"0.jpg": b"no picture", "0.txt": "x"})
    with pytest.raises(ValueError, match=r"x\.tar/0\.jpg cannot be read as a picture"):
        load_dataset(shard).pictures.open(0)
    assert "0.jpg" in str(check_dataset(load_dataset(shard)))


def test_scenes_come_back(tmp_path):
    dataset = load_dataset("scenes:images=60")
    assert write_webdataset(dataset, tmp_path / "shards", size=15) == 5
    again = load_dataset(tmp_path / "shards")
    assert captions_by_image(again) == captions_by_image(dataset)
    assert splits_by_image(again) == splits_by_image(dataset)
    for row, name in enumerate(again.image_ids):
        drawn = dataset.pictures.open(dataset.image_ids.index(name))
        assert again.pictures.open(row).tobytes() == drawn.tobytes()
    write_webdataset(dataset, tmp_path / "twice", size=15)
    for file in (tmp_path / "shards").iterdir():
        assert file.read_bytes() == (tmp_path / "twice" / file.name).read_bytes()


def test_files_are_copied_as_they_are(tmp_path, capsys):
    photos = tmp_path / "photos"
    for name in ("a.b.jpg", "c.png"):
        write_picture(photos / "train" / name, 3)
        (photos / "train" / name).with_suffix(".txt").write_text("a red\u2028dog")
    words = ["data", "convert", str(photos), "--output", str(tmp_path / "shards")]
    assert main(words) == 0
    assert "2 pictures in 1 shard" in capsys.readouterr().out
    first, again = load_dataset(str(photos)), load_dataset(str(tmp_path / "shards"))
    assert list(again.image_ids) == list(first.image_ids)
    assert list(again.texts) == ["a red dog"] * 2
    content = (tmp_path / "shards" / "train-00000.tar").read_bytes()
    assert (photos / "train" / "a.b.jpg").read_bytes() in content
    assert main(words) == 2
    assert "shards exists" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "shards")
    outside = replace(first, splits=["train", "../../outside"])
    with pytest.raises(ValueError, match=r"split '../../outside', .* without slashes"):
        write_webdataset(outside, tmp_path / "a" / "b" / "shards")
    assert not (tmp_path / "a").exists()
    with pytest.raises(ValueError, match="has no pictures to write"):
        write_webdataset(replace(first, pictures=None), tmp_path / "shards")
    assert not (tmp_path / "shards").exists()


def test_columns_come_back(tmp_path):
    dataset = load_dataset("scenes:images=12")
    columns = {"album": ["sea", None] * 6, "year": [*range(12)], "caption": ["none"] * 12}
    write_webdataset(replace(dataset, columns=columns), tmp_path / "shards")
    again = load_dataset(str(tmp_path / "shards"))
    for row, name in enumerate(dataset.image_ids):
        wanted = {"year": row} | ({} if row % 2 else {"album": "sea"})
        assert again.column_values(list(again.image_ids).index(name)) == wanted
