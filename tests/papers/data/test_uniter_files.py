"""UNITER's databases, TAGS' scene graphs and bottom-up attention's tables, as stored there."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from counterfoil.data.extract import convert_features
from counterfoil.data.features import open_feature_table
from counterfoil.data.phrases import PhraseFile
from counterfoil.data.readers import load_dataset
from counterfoil.papers.models.cgmn import box_overlap
from counterfoil.papers.models.ernievil import GlobalAndRegions
from counterfoil.papers.models.uniter import box_features
from counterfoil.papers.readers.uniter import StoredCaption, unpack_arrays
from uniter_files import (
    CLASSES,
    NAMES,
    image_database,
    msgpack,
    packed_array,
    rename,
    store,
    text_database,
    tsv,
)


@pytest.mark.parametrize("compressed", [False, True])
def test_regions_boxes_and_classes_of_an_image_database(tmp_path, compressed):
    stored = image_database(tmp_path, "feat_th0.2_max100_min10", compressed=compressed)
    table = open_feature_table(tmp_path)
    assert table.ids == [name.removesuffix(".npz") for name in NAMES]
    items = table.features.take(torch.tensor([1, 0]))
    assert items.mask.sum(1).tolist() == [14, 11]
    for row, name in enumerate(reversed(NAMES)):
        count = int(items.mask[row].sum())
        expected = torch.from_numpy(stored[name]["features"][:count].astype(np.float32))
        assert torch.equal(items.values[row, :count], expected)
        boxes = torch.from_numpy(stored[name]["norm_bb"][:count].astype(np.float32))
        assert torch.equal(items.boxes[row, :count], boxes)  # widths and heights as they are stored
        where = box_features(items.boxes)[row, :count]
        assert torch.equal(where[:, :6], boxes)
        assert torch.equal(where[:, 6], boxes[:, 4] * boxes[:, 5])
    assert torch.equal(box_overlap(items.boxes), box_overlap(items.boxes[..., :4]))
    tower = GlobalAndRegions(features=items.values.shape[2], width=4, dropout=0.0)
    corners = replace(items, boxes=items.boxes[..., :4])
    assert torch.equal(tower(items).tokens, tower(corners).tokens)
    assert table.features.likely(torch.tensor([0])).shape == (1, 14, CLASSES)


@pytest.mark.parametrize(("kind", "counts"), [("feat_numbb8", [8, 8]), ("all", [10, 12])])
def test_numbers_of_regions_without_a_list(tmp_path, kind, counts):
    stored = image_database(tmp_path, kind, compressed=False)
    (tmp_path / "nbb_th0.2_max100_min10.json").unlink()
    if kind == "all":  # at least 10, and all that are confident
        counts = [max(10, int((stored[name]["conf"] > 0.2).sum())) for name in NAMES]
    items = open_feature_table(tmp_path / kind).features.take(torch.arange(2))
    assert items.mask.sum(1).tolist() == counts


def test_several_databases_are_one(tmp_path):
    """COCO's regions are in coco_train2014 and coco_val2014."""
    first = image_database(tmp_path / "coco_train2014", "feat_th0.2_max100_min10", compressed=True)
    other = {NAMES[0]: "coco_val2014_000000000003.npz", NAMES[1]: "coco_val2014_000000000004.npz"}
    image_database(tmp_path / "coco_val2014", "feat_th0.2_max100_min10", compressed=False)
    rename(tmp_path / "coco_val2014", other)
    table = open_feature_table(tmp_path)
    ids = [name.removesuffix(".npz") for name in (*NAMES, *other.values())]
    assert table.ids == ids
    items = table.features.take(torch.tensor([3, 0]))
    assert items.mask.sum(1).tolist() == [14, 11]
    for row, name in enumerate((NAMES[1], NAMES[0])):  # both databases hold the same numbers
        count = int(items.mask[row].sum())
        expected = torch.from_numpy(first[name]["features"][:count].astype(np.float32))
        assert torch.equal(items.values[row, :count], expected)


def test_the_tokenizer_may_lie_beside_the_captions(tmp_path):
    database = text_database(tmp_path / "txt_db" / "itm_flickr30k_train.db")
    (tmp_path / "txt_db" / "pieces").rename(tmp_path / "tokenizer")
    (database / "meta.json").write_text(json.dumps({"tokenizer": "bert-base-nowhere"}))
    message = r"of the tokenizer 'bert-base-nowhere', which is not at hand .*put its folder there"
    with pytest.raises(ValueError, match=message):
        load_dataset(tmp_path / "txt_db")
    for place in (tmp_path / "txt_db", database):
        (tmp_path / "tokenizer").rename(place / "bert-base-nowhere")
        found = load_dataset(tmp_path / "txt_db")
        assert list(found.texts) == ["a dog runs", "a red ball", "dog"]
        (place / "bert-base-nowhere").rename(tmp_path / "tokenizer")


def test_captions_and_regions_make_a_data_set(tmp_path):
    image_database(tmp_path / "img_db", "feat_th0.2_max100_min10", compressed=False)
    text_database(tmp_path / "txt_db" / "itm_flickr30k_train.db")
    dataset = load_dataset(tmp_path / "txt_db", features=tmp_path / "img_db")
    assert list(dataset.texts) == ["a dog runs", "a red ball", "dog"]
    assert list(dataset.text_ids) == ["70", "71", "12"]
    assert dataset.text_to_image.tolist() == [0, 0, 1]
    assert dataset.split_names == ("train",)
    assert dataset.features.take(torch.tensor([0])).boxes is not None


def test_scene_graphs_become_phrases_of_the_captions(tmp_path):
    database = text_database(tmp_path / "itm_flickr30k_train.db")
    phrases = PhraseFile(path=str(database))
    texts = ["a dog runs", "a red ball", "dog"]
    words = [
        [(phrase.kind, text[slice(*phrase.spans[0])]) for phrase in found]
        for text, found in zip(texts, phrases.phrases(texts, ["70", "71", "12"]), strict=True)
    ]
    assert words == [
        [("object", "dog"), ("relation", "runs")],
        [("object", "ball"), ("attribute", "red")],
        [("object", "dog")],
    ]


def test_tokens_that_are_not_adjacent_make_two_spans():
    caption = StoredCaption("1", "i", ("a", "red", "dog", "run", "##s"), None)
    assert caption.text() == "a red dog runs"
    assert caption.spans([0, 2]) == [[0, 1], [6, 9]]
    assert caption.spans([1, 2, 4]) == [[2, 9], [13, 14]]


def test_scene_graphs_of_other_captions_are_refused(tmp_path):
    phrases = PhraseFile(path=str(text_database(tmp_path / "itm_flickr30k_train.db")))
    with pytest.raises(ValueError, match="'12' is 'dog' there and 'Dog' in the data; read the"):
        phrases.phrases(["Dog"], ["12"])
    with pytest.raises(ValueError, match="has no phrases of caption '13'"):
        phrases.phrases(["dog"], ["13"])


def test_captions_without_scene_graphs_are_refused(tmp_path):
    database = text_database(tmp_path / "itm_flickr30k_test.db", tree=False)
    with pytest.raises(ValueError, match="has no captions with a tree"):
        PhraseFile(path=str(database))
    with pytest.raises(ValueError, match="pieces is no folder with phrases of captions; give"):
        PhraseFile(path=str(tmp_path / "pieces"))


def test_arrays_of_objects_are_refused():
    plain = packed_array(np.zeros(2)) | {b"kind": b"O"}
    with pytest.raises(ValueError, match="objects"):
        unpack_arrays(msgpack.packb({"conf": plain}, use_bin_type=True))


@pytest.mark.parametrize("damage", [b"", b"PKxx", b"\xc1", msgpack.packb([1])])
def test_damaged_records_are_named(tmp_path, damage):
    names = {"__keys__": json.dumps(["a.npz"]).encode(), "a.npz": damage}
    store(tmp_path / "feat_numbb2", names)
    with pytest.raises(ValueError, match=r"regions of 'a\.npz'"):
        open_feature_table(tmp_path)


@pytest.mark.parametrize("counts", [[1], {NAMES[0]: 11}, dict.fromkeys(NAMES, 10**12)])
def test_numbers_of_regions_are_checked(tmp_path, counts):
    image_database(tmp_path, "feat_th0.2_max100_min10", compressed=True)
    (tmp_path / "nbb_th0.2_max100_min10.json").write_text(json.dumps(counts))
    with pytest.raises(ValueError, match="has no number of regions of"):
        open_feature_table(tmp_path)


@pytest.mark.parametrize("meta", [[], 3, "x"])
def test_a_tokenizer_without_a_name(tmp_path, meta):
    (text_database(tmp_path / "itm_train.db") / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match=r"meta\.json cannot be read as the name of the tokenizer"):
        load_dataset(tmp_path)


def test_truncated_databases_are_refused_before_their_pages_are_read(tmp_path):
    file = text_database(tmp_path / "itm_train.db") / "data.mdb"
    file.write_bytes(file.read_bytes()[: 2 * 4096 + 100])
    with pytest.raises(ValueError, match=r"is not a whole LMDB database: .*truncated"):
        load_dataset(tmp_path)


def test_a_pipe_is_no_database(tmp_path):
    file = text_database(tmp_path / "itm_train.db") / "data.mdb"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ValueError, match="no regular file"):
        load_dataset(tmp_path)


def test_several_environments_are_named(tmp_path):
    for kind in ("feat_numbb8", "feat_numbb9"):
        image_database(tmp_path, kind, compressed=False)
    with pytest.raises(ValueError, match="feat_numbb8, feat_numbb9; give the path"):
        open_feature_table(tmp_path)


@pytest.mark.parametrize("lxmert", [False, True])
def test_a_table_of_boxes_becomes_a_feature_folder(tmp_path, lxmert):
    stored = tsv(tmp_path / "trainval.tsv", [(7, 3), (12, 5), (7, 3)], lxmert=lxmert)
    convert_features(tmp_path / "trainval.tsv", tmp_path / "out", kind="float32", shard=1)
    for path in (tmp_path / "trainval.tsv", tmp_path / "out"):
        table = open_feature_table(path)
        assert table.ids == ["7", "12"]
        items = table.features.take(torch.arange(2))
        assert items.mask.sum(1).tolist() == [3, 5]
        for row in range(2):
            count = len(stored[row])
            assert torch.equal(items.values[row, :count], torch.from_numpy(stored[row]))
        assert float(items.boxes[:, :, 0::2].max()) <= 1
        assert 1 < float(items.boxes[:, :, 1::2].max()) <= 2  # drawn up to 100 in images 50 high


def test_parts_of_a_table_are_one(tmp_path):
    first = tsv(tmp_path / "train.tsv.0", [(7, 3), (12, 5)])
    second = tsv(tmp_path / "train.tsv.1", [(30, 2), (12, 4)])
    table = open_feature_table(tmp_path)
    assert table.ids == ["7", "12", "30"]
    items = table.features.take(torch.tensor([1, 2]))
    assert torch.equal(items.values[0], torch.from_numpy(first[1]))
    assert torch.equal(items.values[1, :2], torch.from_numpy(second[0]))


def test_a_database_becomes_a_feature_folder(tmp_path):
    image_database(tmp_path / "img_db", "feat_th0.2_max100_min10", compressed=True)
    copied = convert_features(tmp_path / "img_db", tmp_path / "out", shard=1)
    original, rows = open_feature_table(tmp_path / "img_db"), torch.arange(2)
    assert copied.ids == original.ids
    one, other = original.features.take(rows), copied.features.take(rows)
    assert torch.equal(one.values, other.values)
    assert torch.equal(one.mask, other.mask)
    assert torch.equal(one.boxes, other.boxes)
    assert torch.equal(original.features.likely(rows), copied.features.likely(rows))
    np.save(tmp_path / "rows.npy", np.zeros((2, 3, 4), np.float32))
    with pytest.raises(ValueError, match=r"rows\.npy does not name its images"):
        convert_features(tmp_path / "rows.npy", tmp_path / "none")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\t2\t3\t1\tAAAAAA==\tAAAAAA==\n1\t2\t3", "line 2: 3 fields"),
        ("1\t2\t3\t1\tAAAAAA==\tAAAAAA==\n1\t2\t3\tmany\tA\tA", "boxes of image '1' is no number"),
        ("1\t2\t3\t1\t!\t!", "damaged"),
        ("1\t2\t3\t1\tAAAAAA==\tAAAAAA==", "1 box values for 1 boxes"),
        ("1\t2\t3\t0\t\t", "holds no image with boxes"),
    ],
)
def test_damaged_tables_are_refused(tmp_path, line, message):
    (tmp_path / "bad.tsv").write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        convert_features(tmp_path / "bad.tsv", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.tsv"]
