from __future__ import annotations

import ast
import csv
import json
import tarfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import export_cases
from artifact_cases import resealed
from counterfoil.core.types import Pairs
from counterfoil.data.images import PictureFiles
from counterfoil.data.readers import load_dataset
from counterfoil.export.negatives import (
    FORMATS,
    ExportItem,
    export_negatives,
    mined_negatives,
    negatives_kind,
)
from counterfoil.negatives.store import HardNegativeLists, NegativeStore

BOTH = ("image-to-text", "text-to-image")


def test_a_store_that_lists_true_pairs_is_not_exported(tmp_path):
    data = export_cases.dataset(tmp_path / "photos")
    store = export_cases.mined(tmp_path / "lists", data)
    texts = np.load(store / "texts.npy")
    texts[0, 0] = 0  # the image's own
    np.save(store / "texts.npy", texts)
    resealed(store)
    with pytest.raises(ValueError, match="1 pairs that are true"):
        export_negatives(store, "sentence-transformers", tmp_path / "out", data, most=2)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def export(tmp_path):
    """Write the small data set's negatives; the folder."""
    data = export_cases.dataset(tmp_path / "photos")

    def export(to: str, kind: str = "mined", most: int = 8, dataset=data, **more: bool):
        store, out = tmp_path / f"{kind}-{to}", tmp_path / to
        getattr(export_cases, kind)(store, dataset, **more)
        export.said = export_negatives(store, to, out, dataset, most=most)
        return out

    return export


def records(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def photo(tmp_path, row):
    return str(tmp_path / "photos" / f"a{row}.png")


def test_sentence_transformers_has_a_row_for_every_positive(export, tmp_path):
    out = export("sentence-transformers")
    texts = export_cases.dataset().texts
    assert records(out / "image-to-text.jsonl") == [
        {
            "anchor": photo(tmp_path, image),
            "positive": texts[true],
            "negative_1": texts[first],
            "negative_2": texts[second],
        }
        for image, true, first, second in (
            (0, 0, 3, 5),
            (0, 1, 3, 5),
            (2, 2, 4, 1),
            (3, 3, 2, 0),
            (3, 4, 2, 0),
            (3, 5, 2, 0),
        )
    ]
    rows = records(out / "text-to-image.jsonl")
    assert [row["anchor"] for row in rows] == [texts[row] for row in (0, 2, 3, 4)]
    assert rows[0]["positive"] == photo(tmp_path, 0)
    assert rows[0]["negative_2"] == photo(tmp_path, 2)
    assert "1 of text-to-image have fewer than 2 negatives and are left out" in export.said[2]


def test_most_cuts_the_lists_and_keeps_more_queries(export):
    out = export("sentence-transformers", most=1)
    rows = records(out / "text-to-image.jsonl")
    assert len(rows) == 5
    assert list(rows[0]) == ["anchor", "positive", "negative_1"]


def test_flag_embedding_has_a_line_for_every_query(export, tmp_path):
    out = export("flagembedding")
    texts = export_cases.dataset().texts
    assert records(out / "image-to-text.jsonl")[0] == {
        "query": photo(tmp_path, 0),
        "pos": texts[:2],
        "neg": [texts[3], texts[5]],
        "neg_scores": [0, -0.5],
    }
    assert records(out / "text-to-image.jsonl")[1] == {
        "query": texts[1],
        "pos": [photo(tmp_path, 0)],
        "neg": [photo(tmp_path, 2)],
        "neg_scores": [0],
    }


def test_scores_that_are_not_known_are_not_written(export):
    lines = records(export("flagembedding", scored=False) / "image-to-text.jsonl")
    assert all(set(line) == {"query", "pos", "neg"} for line in lines)


def test_tevatron_names_documents_of_its_corpus(export, tmp_path):
    out = export("tevatron")
    assert records(out / "image-to-text.jsonl")[0] == {
        "query_id": "a 0%",
        "query_text": None,
        "query_image": photo(tmp_path, 0),
        "positive_document_ids": ["a0#0", "a0#1"],
        "negative_document_ids": ["a3#0", "a3#2"],
    }
    for direction, key in zip(BOTH, ("text", "image"), strict=True):
        dataset = records(out / f"{direction}-corpus.jsonl")
        known = {line["docid"] for line in dataset}
        assert len(known) == len(dataset)
        assert all(line[key] for line in dataset)
        for line in records(out / f"{direction}.jsonl"):
            assert {*line["positive_document_ids"], *line["negative_document_ids"]} <= known


def test_ms_swift_has_messages_and_images_of_every_side(export, tmp_path):
    """The fields and shapes of its embedding data: a list of messages and of images each."""
    out = export("ms-swift")
    texts = export_cases.dataset().texts

    def said(content):
        return [{"role": "user", "content": content}]

    assert records(out / "image-to-text.jsonl")[0] == {
        "messages": said("<image>"),
        "images": [photo(tmp_path, 0)],
        "positive_messages": [said(texts[0]), said(texts[1])],
        "negative_messages": [said(texts[3]), said(texts[5])],
    }
    assert records(out / "text-to-image.jsonl")[0] == {
        "messages": said(texts[0]),
        "positive_messages": [said("<image>")],
        "positive_images": [[photo(tmp_path, 0)]],
        "negative_messages": [said("<image>"), said("<image>")],
        "negative_images": [[photo(tmp_path, 3)], [photo(tmp_path, 2)]],
    }


def test_vlm2vec_has_a_row_for_every_positive_with_the_hardest_negative(export, tmp_path):
    out = export("vlm2vec")
    texts = export_cases.dataset().texts
    rows = records(out / "image-to-text.jsonl")
    assert [row["pos_text"] for row in rows] == [texts[n] for n in (0, 1, 2, 3, 4, 5)]
    assert rows[1] == {
        "qry": "<|image_1|>",
        "qry_image_path": photo(tmp_path, 0),
        "pos_text": texts[1],
        "pos_image_path": "",
        "neg_text": texts[3],
        "neg_image_path": "",
    }
    assert records(out / "text-to-image.jsonl")[0] == {
        "qry": texts[0],
        "qry_image_path": "",
        "pos_text": "<|image_1|>",
        "pos_image_path": photo(tmp_path, 0),
        "neg_text": "<|image_1|>",
        "neg_image_path": photo(tmp_path, 3),
    }


def test_webdataset_has_a_sample_for_every_image(export, tmp_path):
    data = export_cases.dataset()
    out = export("webdataset")
    assert export.said == ["train-00000.tar: 3 samples"]
    found = load_dataset(out)
    assert list(found.image_ids) == ["a 0%", "a2", "a3"]
    assert list(found.texts) == [" ".join(data.texts[n].split()) for n in range(6)]
    assert found.pictures.open(1).tobytes() == data_pixels(tmp_path, 2)
    with tarfile.open(out / "train-00000.tar") as tar:
        assert tar.getnames()[:3] == [f"000000000.{end}" for end in ("png", "txt", "json")]
        note = json.load(tar.extractfile("000000000.json"))
    assert note == {
        "image_id": "a 0%",
        "caption": data.texts[:2],
        "caption_ids": ["a0#0", "a0#1"],
        "negative_texts": [data.texts[3], data.texts[5]],
        "negative_text_ids": ["a3#0", "a3#2"],
        "negative_text_scores": [0, -0.5],
        "negative_images": [["a3", "a2"], ["a2"]],
    }


def data_pixels(tmp_path, row):
    return PictureFiles([Path(photo(tmp_path, row))]).open(0).tobytes()


def test_webdataset_of_written_captions(export):
    found = load_dataset(export("webdataset", "written"))
    assert list(found.image_ids) == ["a 0%", "a2"]


def test_webdataset_needs_pictures(export):
    with pytest.raises(ValueError, match="small has no pictures, with which a sample"):
        export("webdataset", dataset=export_cases.dataset())


@pytest.mark.parametrize(
    "to",
    ["sentence-transformers", "flagembedding", "tevatron", "ms-swift", "vlm2vec", "webdataset"],
)
def test_datasets_reads_every_form(to, export, tmp_path):
    datasets = pytest.importorskip("datasets")
    out = export(to)
    for direction in BOTH if to != "webdataset" else ("default",):
        found = datasets.load_dataset(
            str(out), direction, split="train", cache_dir=str(tmp_path / "cache")
        )
        if to == "webdataset":
            assert [row["json"]["image_id"] for row in found] == ["a 0%", "a2", "a3"]
            assert found[0]["png"].size == (16, 16)
        else:
            assert [dict(row) for row in found] == records(out / f"{direction}.jsonl")


def table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_open_clip_reads_pairs_and_negclip_lists(export, tmp_path):
    rows = table(export("open-clip") / "train.tsv")
    data = export_cases.dataset()
    assert [row["title"] for row in rows] == data.texts[:6]
    assert [row["filepath"] for row in rows] == [photo(tmp_path, i) for i in (0, 0, 2, 3, 3, 3)]
    assert ast.literal_eval(rows[0]["neg_caption"]) == [data.texts[3], data.texts[5]]
    images = [photo(tmp_path, row) for row in range(4)]
    for row, hard in zip(rows, export_cases.IMAGES):
        found = [rows[place]["filepath"] for place in ast.literal_eval(row["neg_image"])]
        assert found == [images[image] for image in hard if image not in (-1, 1)]  # 1 has no pair


def test_trec_is_a_run_of_negatives_and_what_is_true(export):
    out = export("trec")
    run = [line.split() for line in (out / "text-to-image.run").read_text().splitlines()]
    assert run[:2] == [
        ["a0#0", "Q0", "a3", "1", "0", "counterfoil"],
        ["a0#0", "Q0", "a2", "2", "-0.5", "counterfoil"],
    ]
    assert ["a2#0", "Q0", "a%200%25", "1", "0", "counterfoil"] in run
    qrels = [line.split() for line in (out / "text-to-image.qrels").read_text().splitlines()]
    assert qrels[0] == ["a0#0", "0", "a%200%25", "1"]
    assert len(qrels) == 6
    assert not {(q, d) for q, _, d, *_ in run} & {(q, d) for q, _, d, _ in qrels}


def test_ranks_stand_for_scores_that_are_not_known(export):
    out = export("trec", scored=False)
    run = [line.split() for line in (out / "image-to-text.run").read_text().splitlines()]
    assert [line[4] for line in run[:3]] == ["-1", "-2", "-1"]


def test_scores_of_a_run_fall_with_every_rank_as_readers_hold_them(tmp_path):
    """Scores kept in 16 bits are often equal, and a reader orders equal ones by name."""
    data = export_cases.dataset()
    texts = torch.tensor([[3, 2, 5, 4], [-1] * 4, [0, 1, 4, 5], [0, 1, -1, -1]]).int()
    far = -torch.inf
    kept = [[0.5, 0.5, 0.5, 0.25], [far] * 4, [0.0, 0.0, -1e-7, -2.0], [1e-3, 1e-3, far, far]]
    images, none = torch.full((7, 1), -1).int(), torch.full((7, 1), far)
    lists = HardNegativeLists(texts, images, torch.tensor(kept).half(), none.half())
    store = NegativeStore.of(lists, dataset=data.fingerprint, split="train", sources=())
    store.save(tmp_path / "lists")
    export_negatives(tmp_path / "lists", "trec", tmp_path / "out", data, most=8)
    lines = (tmp_path / "out" / "image-to-text.run").read_text().splitlines()
    run = [line.split() for line in lines]
    listed = [data.text_ids[row] for row in texts.flatten().tolist() if row >= 0]
    assert [fields[2] for fields in run] == listed
    for query in dict.fromkeys(fields[0] for fields in run):
        scores = [np.float32(fields[4]) for fields in run if fields[0] == query]
        assert all(above > score for above, score in pairwise(scores))
    told = [float(fields[4]) for fields in run]
    assert told == pytest.approx([value for row in kept for value in row if value > -9], abs=1e-6)


def test_written_captions_belong_to_an_image_and_its_caption(export, tmp_path):
    data = export_cases.dataset()
    out = export("flagembedding", "written")
    assert records(out / "image-to-text.jsonl") == [
        {
            "query": photo(tmp_path, 0),
            "pos": [data.texts[0]],
            "neg": ["a 0 cat of picture 0", "a 0 dog of picture 9"],
        },
        {
            "query": photo(tmp_path, 2),
            "pos": [data.texts[2]],
            "neg": ['a "0" cat of picture 2'],
        },
    ]
    assert not (out / "text-to-image.jsonl").exists()


def test_written_captions_in_every_form(export):
    run = (export("trec", "written") / "image-to-text.run").read_text().splitlines()
    assert run[0] == "a0#0 Q0 a0#0#1 1 -1 counterfoil"
    rows = table(export("open-clip", "written") / "train.tsv")
    assert list(rows[0]) == ["filepath", "title", "neg_caption"]
    assert ast.literal_eval(rows[1]["neg_caption"]) == ['a "0" cat of picture 2']
    out = export("tevatron", "written")
    known = [line["docid"] for line in records(out / "image-to-text-corpus.jsonl")]
    assert known == ["a0#0", "a0#0#1", "a0#0#2", "a2#0", "a2#0#1"]
    rows = records(export("sentence-transformers", "written", most=1) / "image-to-text.jsonl")
    assert len(rows) == 2


def test_what_somebody_found_true_is_a_positive_too(tmp_path):
    data = replace(
        export_cases.dataset(), extra_positives=Pairs(torch.tensor([2]), torch.tensor([0]))
    )
    store = export_cases.mined(tmp_path / "lists", data)
    opened = NegativeStore.open(store, fingerprint=data.fingerprint)
    mined = mined_negatives(data, opened, str, 8)
    assert [i.id for i in mined.groups["text-to-image"][0].positives] == ["a 0%", "a2"]
    third = next(group for group in mined.groups["image-to-text"] if group.query.id == "a2")
    assert [item.id for item in third.positives] == ["a2#0", "a0#0"]


def test_drawn_pictures_are_written_once_and_only_where_they_are_asked_for(tmp_path):
    from PIL import Image

    data = load_dataset("scenes:images=12").split("train")
    store = export_cases.written(tmp_path / "written", data)
    out = tmp_path / "out"
    export_negatives(store, "flagembedding", out, data, most=8)
    (line,) = {line["query"] for line in records(out / "image-to-text.jsonl")}
    assert line == str(out / "pictures" / "000000.png")
    assert Image.open(line).tobytes() == data.pictures.open(0).tobytes()
    assert len(list((out / "pictures").iterdir())) == 1
    export_negatives(store, "trec", tmp_path / "trec", data, most=8)
    assert not (tmp_path / "trec" / "pictures").exists()


def test_names_stand_for_pictures_that_there_are_none_of(export):
    out = export("flagembedding", dataset=export_cases.dataset())
    assert records(out / "image-to-text.jsonl")[0]["query"] == "a 0%"
    assert "has no pictures" in export.said[-1]


def test_the_card_says_where_negatives_come_from(export):
    text = (export("trec") / "README.md").read_text()
    assert text == ("Hard negatives of small (train), mined by counterfoil 0.1.0 with SCAN().\n")
    for to in ("sentence-transformers", "open-clip"):
        assert "named by whole paths" in (export(to) / "README.md").read_text()


@pytest.mark.parametrize("to", FORMATS)
def test_a_damaged_store_leaves_nothing(to, tmp_path):
    data = export_cases.dataset()
    store = export_cases.written(tmp_path / "written", data)
    lines = (store / "foils.jsonl").read_text().splitlines()
    (store / "foils.jsonl").write_text("\n".join(lines[:2]) + "\n")
    with pytest.raises(ValueError, match="checksum does not fit"):
        export_negatives(store, to, tmp_path / "out", data, most=8)
    resealed(store)
    with pytest.raises(ValueError, match="holds 2 captions, but its manifest promises 3"):
        export_negatives(store, to, tmp_path / "out", data, most=8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["written"]


def test_lists_of_nothing_are_refused(tmp_path):
    data = export_cases.dataset()
    store = export_cases.mined(tmp_path / "lists", data)
    opened = NegativeStore.open(store, fingerprint=data.fingerprint)
    opened.lists.images.fill_(-1)
    opened.save(store)
    with pytest.raises(ValueError, match="no negatives to export from texts"):
        export_negatives(store, "sentence-transformers", tmp_path / "out", data, most=8)


def test_kinds(tmp_path):
    data = export_cases.dataset()
    assert negatives_kind(export_cases.mined(tmp_path / "m", data)) == "mined"
    assert negatives_kind(export_cases.written(tmp_path / "w", data)) == "written"
    (tmp_path / "x").mkdir()
    assert negatives_kind(tmp_path / "x") is None
    (tmp_path / "x" / "manifest.json").write_text("[]")
    assert negatives_kind(tmp_path / "x") is None


@given(st.text(min_size=1))
def test_names_in_trec_are_told_apart_and_hold_no_blank(name):
    from urllib.parse import unquote

    from counterfoil.export.negatives import _trec_id

    written = _trec_id(ExportItem(name, ""))
    assert written.split() == [written]
    assert unquote(written) == name
