"""Shards of WebDataset: what is written is read again as it was."""

from __future__ import annotations

import json
import shutil
import tarfile
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
    said = " ".join(capsys.readouterr().err.split())
    assert "1 left out, images without a caption, such as x.tar/0.jpg" in said
    assert "1 left out, captions without an image, such as x.tar/2.txt" in said


PIECES = "images without a caption", "captions without an image"
NOT_READ = "members ending in .{}, which are not read"


@pytest.mark.parametrize(
    "members, captions, left_out",
    [
        # several pictures of a key have the captions of their part
        (
            {f"shot.{n}.5.{end}": n if end == "jpg" else f"of {n}" for n in range(3)
             for end in ("jpg", "txt")},
            {f"shot.{n}.5": [f"of {n}"] for n in range(3)},
            {},
        ),
        ({"a.1.jpg": 1, "a.1.json": '{"caption": "one"}', "a.2.jpg": 2, "a.2.caption": "two"},
         {"a.1": ["one"], "a.2": ["two"]}, {}),
        ({"a.1.jpg": 1, "a.1.txt": "one", "a.2.jpg": 2}, {"a.1": ["one"]}, {PIECES[0]: 1}),
        ({"a.1.jpg": 1, "a.2.txt": "two", "b.jpg": 3, "b.txt": "b"}, {"b": ["b"]},
         {PIECES[0]: 1, PIECES[1]: 1}),
        ({"a.1.jpg": 1, "a.2.jpg": 2, "a.2.txt": "two", "a.txt": "all"}, {"a.2": ["two"]},
         {PIECES[0]: 1, PIECES[1]: 1}),
        # captions of the key belong to the picture without a part, whatever its place
        ({"a.seg.png": 1, "a.jpg": 2, "a.txt": "of a"}, {"a": ["of a"]}, {PIECES[0]: 1}),
        ({"a.rgb.jpg": 1, "a.depth.png": 2, "a.json": '{"text": "of a"}'}, {"a.rgb": ["of a"]},
         {PIECES[0]: 1}),
        ({"a.jpg": 1, "a.caption.txt": "of a"}, {"a": ["of a"]}, {}),
        ({"a.image.jpg": 1, "a.caption.txt": "of a"}, {"a.image": ["of a"]}, {}),
        ({"a.v2.jpg": 1, "a.txt": "of a"}, {"a.v2": ["of a"]}, {}),
        # what is not read is counted
        ({"a.jpg": 1, "a.png": 2, "a.txt": "x"}, {"a": ["x"]}, {"a second picture of its name": 1}),
        ({"a.jpg": 1, "a.txt": "x", "a.cls": "3", "b.cls": "4", "a.seg.npy": b"", "README": ""},
         {"a": ["x"]},
         {NOT_READ.format("cls"): 2, NOT_READ.format("seg.npy"): 1,
          "members without an ending, which are not read": 1}),
        ({"./x/a.JPG": 1, "x/a.TXT": "x", "../b.jpg": 2, "b.txt": "y"},
         {"x/a": ["x"], "b": ["y"]}, {}),
        ({"a.jpg": 1, "._a.jpg": b"\0", "a.txt": "x", "__MACOSX/._a.txt": b"\0\xff"},
         {"a": ["x"]}, {"hidden, thumbnail or deleted": 2}),
        ({"caf\u00e9.jpg": 1, "cafe\u0301.txt": "x"}, {"caf\u00e9": ["x"]}, {}),
        ({"a.jpg": 1, "a.text": "x", "a.json": '{"caption": "none", "year": 3}'}, {"a": ["x"]}, {}),
        ({"a.jpg": 1, "b.jpg": 1, "b.txt": "b", "a.txt": "x", "empty.jpg": b"", "empty.txt": ""},
         {"a": ["x"], "b": ["b"]}, {PIECES[0]: 1}),
    ],
)  # fmt: skip
def test_every_member_is_read_or_counted(tmp_path, members, captions, left_out):
    """Row W4: names with dots, unknown members, a second picture of a key."""
    shard = write_shard(tmp_path / "x.tar", members)
    dataset = read_webdataset(shard)
    assert captions_by_image(dataset) == captions
    assert {part.reason: len(part.names) for part in dataset.left_out} == left_out
    for row, name in enumerate(dataset.image_ids):
        numbers = {m.lstrip("./"): n for m, n in members.items() if isinstance(n, int)}
        member = next(m for m in numbers if m.lower().startswith(f"{name}.") and "seg" not in m)
        write_picture(tmp_path / "same.jpg", numbers[member])
        same = PictureFiles([tmp_path / "same.jpg"]).open(0)
        assert dataset.pictures.open(row).tobytes() == same.tobytes()


@pytest.mark.parametrize(
    "members",
    [
        [("000.jpg", 0), ("000.txt", "a"), ("001.jpg", 1), ("001.txt", "b"), ("000.jpg", 2)],
        [("000.jpg", 0), ("000.txt", "a"), ("000.txt", "b")],
        [("000.jpg", 0), ("000.txt", "a"), ("./000.JPG", 2)],
        [("000.jpg", 0), ("000.json", "{}"), ("001.jpg", 1), ("000.json", "{}")],
        [("000.1.jpg", 0), ("000.1.txt", "a"), ("000.1.txt", "a")],
    ],
)
def test_a_member_that_is_there_twice_is_refused(tmp_path, members):
    """Row W5: the first picture got the captions of both."""
    shard = write_shard(tmp_path / "x.tar", members)
    with pytest.raises(ValueError, match=r"x\.tar holds '000.*' twice, .* key '000'"):
        read_webdataset(shard)


def test_keys_that_repeat_between_shards_are_told_apart(tmp_path, capsys):
    for number, name in enumerate(("train-0", "train-1", "val-0")):
        members = {"0.jpg": number, "0.txt": f"of {name}"}
        write_shard(tmp_path / "d" / f"{name}.tar", members)
    dataset = read_webdataset(tmp_path / "d")
    assert captions_by_image(dataset) == {
        f"{name}/0": [f"of {name}"] for name in ("train-0", "train-1", "val-0")
    }
    assert "keys repeat between its shards" in " ".join(capsys.readouterr().err.split())


def test_links_are_what_they_lead_to(tmp_path):
    shard = write_shard(tmp_path / "x.tar", {"./d/0.jpg": 0, "d/0.txt": "a", "d/1.txt": "b",
                                            "2.txt": "c", "3.txt": "d", "4.txt": "e"})  # fmt: skip
    with tarfile.open(shard, "a") as tar:
        for name, kind, target in (
            ("d/1.jpg", tarfile.LNKTYPE, "./d/0.jpg"),
            ("2.jpg", tarfile.SYMTYPE, "d/0.jpg"),
            ("3.jpg", tarfile.SYMTYPE, "../../etc/passwd"),
            ("4.jpg", tarfile.FIFOTYPE, ""),
            ("e", tarfile.DIRTYPE, ""),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.pax_headers = kind, target, {"comment": "x"}
            tar.addfile(info)
    dataset = read_webdataset(shard)
    assert captions_by_image(dataset) == {"d/0": ["a"], "d/1": ["b"], "2": ["c"]}
    assert len({dataset.pictures.open(row).tobytes() for row in range(3)}) == 1
    reasons = {part.reason: len(part.names) for part in dataset.left_out}
    assert reasons == {
        "a link that leads nowhere": 1, "no regular file": 1, "captions without an image": 2,
    }  # fmt: skip


@pytest.mark.parametrize("damage", ["header", "joined", "cut"])
def test_what_tarfile_would_stop_at_is_refused(tmp_path, damage):
    """It returns what stands before a damaged header, without a word."""
    members = {f"{n}.{end}": n if end == "jpg" else "x" for n in range(3) for end in ("jpg", "txt")}
    content = bytearray(write_shard(tmp_path / "x.tar", members).read_bytes())
    with tarfile.open(tmp_path / "x.tar") as tar:
        third = tar.getmembers()[2]
    if damage == "header":
        content[third.offset + 10] ^= 1
    elif damage == "joined":
        content = content * 2
    else:
        content = content[: third.offset_data + 10]
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged behind member|cannot be read as an unc"):
        read_webdataset(tmp_path / "x.tar")


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "x.TAR.GZ"])
@pytest.mark.parametrize("inside", [False, True])
def test_compressed_shards_are_refused(tmp_path, name, inside):
    write_shard(tmp_path / "d" / name, {"0.jpg": 0, "0.txt": "x"}, mode="w:gz")
    with pytest.raises(ValueError, match=r"is compressed, .* unpack it to a \.tar"):
        load_dataset(tmp_path / "d" if inside else tmp_path / "d" / name)


def test_shards_of_classes_alone_name_their_members(tmp_path):
    shard = write_shard(tmp_path / "x.tar", {"0.jpg": 0, "0.cls": "3"})
    with pytest.raises(ValueError, match=r"no image with a caption; .* ending in \.cls"):
        read_webdataset(shard)


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
    with pytest.raises(ValueError, match="has its own pictures; leave out images="):
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


def test_shards_in_folders_of_splits(tmp_path):
    dataset = load_dataset("scenes:images=12,dev=4,test=4")
    for split in ("train", "test"):
        write_webdataset(dataset.split(split), tmp_path / "all" / split)
        (tmp_path / "all" / split / f"{split}-00000.tar").rename(tmp_path / "all" / split / "0.tar")
    back = load_dataset(tmp_path / "all")
    assert {*back.image_ids} == {*dataset.split("train", "test").image_ids}
    assert {*back.split_names} == {"train", "test"}
    assert back["test"].texts == dataset["test"].texts
