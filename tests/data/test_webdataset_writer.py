"""Shards that are written are read again as they were."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from corpus_cases import write_picture
from counterfoil.cli import main
from counterfoil.data.readers import load_dataset
from counterfoil.data.readers.webdataset import write_webdataset


def test_scenes_come_back(tmp_path):
    dataset = load_dataset("scenes:images=60")
    assert write_webdataset(dataset, tmp_path / "shards", size=15) == 5
    again = load_dataset(str(tmp_path / "shards"))
    order = [again.image_ids.index(name) for name in dataset.image_ids]
    assert len(again) == len(dataset)
    for row, other in enumerate(order):
        assert again.splits[other] == dataset.splits[row]
        assert again.pictures.open(other).tobytes() == dataset.pictures.open(row).tobytes()
        ours, theirs = (
            [text for text, image in zip(one.texts, one.text_to_image.tolist()) if image == place]
            for one, place in ((dataset, row), (again, other))
        )
        assert ours == theirs
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
