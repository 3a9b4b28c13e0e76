"""Pairs in the order of mined batches, with their false negatives, for other trainers."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import export_cases
from counterfoil.core.types import Pairs
from counterfoil.data.batching import BatchSampler
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.scenes import scenes
from counterfoil.export.negatives import BATCH_ROWS, export_batches, false_negatives
from counterfoil.negatives.batch_mining import BatchMiningConfig, NeighbourBatches
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from negatives_cases import random_lists
from recipes_cases import run

MINING = BatchMiningConfig(size=4, skip=1, neighbours=6)


@pytest.fixture(scope="module")
def data() -> ImageTextDataset:
    return scenes(images=26, dev=2, test=0).split("train")


@pytest.fixture
def store(data: ImageTextDataset, tmp_path: Path) -> Path:
    return save(random_lists(data.relation, h=30, k=8), data, tmp_path / "lists")


def save(lists: HardNegativeLists, data: ImageTextDataset, folder: Path) -> Path:
    NegativeStore.of(lists, dataset=data.fingerprint, split="train", sources=()).save(folder)
    return folder


def pairs(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / "batches.jsonl").read_text(encoding="utf-8").splitlines()
    assert all(list(json.loads(line)) == ["anchor", "positive"] for line in lines)
    return [tuple(json.loads(line).values()) for line in lines]


def test_the_rows_are_the_batches(data: ImageTextDataset, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    lines = export_batches(
        store, "sentence-transformers", out, data, batch=8, epochs=2, mining=MINING
    )
    assert lines == ["batches.jsonl: 48 pairs, 6 batches of 8"]
    lists = NegativeStore.open(store, fingerprint=data.fingerprint).lists
    partition = NeighbourBatches(lists, data.relation, MINING)
    sampler = BatchSampler(
        data.relation, batch=8, seed=0, one_caption=True, drop_last=True, partition=partition
    )
    texts = torch.cat([rows for epoch in range(2) for rows in sampler.epoch(epoch)]).tolist()
    written = pairs(out)
    assert [caption for _, caption in written] == [data.texts[text] for text in texts]
    images = [f"{int(data.text_to_image[text]):06d}.png" for text in texts]
    assert [Path(picture).name for picture, _ in written] == images
    assert all(Path(picture).is_file() for picture, _ in written)
    assert all(len({p for p, _ in written[n : n + 8]}) == 8 for n in range(0, 48, 8))


@pytest.fixture
def judged(data: ImageTextDataset) -> ImageTextDataset:
    """Eight images, a batch, in which nothing can be separated: pairs judged true, or ambiguous."""
    few = data.subset(torch.arange(8))
    texts = [int(few.relation.captions(torch.tensor([row]))[0][0]) for row in range(8)]
    every = few.relation.captions(torch.tensor([3]))[0]
    true = Pairs(torch.full((len(every),), 1), every)  # all captions of image 3 are true of image 1
    said = list(few.texts)
    own = few.relation.captions(torch.tensor([6]))[0].tolist()
    for text in own:  # captions of image 6 say, in other case, what one of image 5 says
        said[text] = said[texts[5]].upper()
    unclear = Pairs(torch.tensor([2]), torch.tensor([texts[0]]))
    return replace(few, texts=said, extra_positives=true, ambiguous=unclear)


def test_false_negatives_of_a_batch(judged: ImageTextDataset) -> None:
    texts = [int(judged.relation.captions(torch.tensor([row]))[0][0]) for row in range(8)]
    found = false_negatives(judged, torch.tensor(texts))
    assert found == [[], [3], [0], [], [], [6], [5], []]
    turned = false_negatives(judged, torch.tensor(texts[::-1]))
    assert turned == [[7 - place for place in places] for places in found[::-1]]


@pytest.mark.parametrize("to", [*BATCH_ROWS, "webdataset"])
def test_every_form_holds_the_batches_and_their_false_negatives(
    to: str, judged: ImageTextDataset, tmp_path: Path
) -> None:
    store = save(random_lists(judged.relation, h=12, k=6), judged, tmp_path / "lists")
    out, mining = tmp_path / "out", BatchMiningConfig(size=2, skip=0, neighbours=4)
    lines = export_batches(store, to, out, judged, batch=8, epochs=2, mining=mining)
    lists = NegativeStore.open(store, fingerprint=judged.fingerprint).lists
    partition = NeighbourBatches(lists, judged.relation, mining)
    sampler = BatchSampler(
        judged.relation, batch=8, seed=0, one_caption=True, drop_last=True, partition=partition
    )
    batches = [texts for epoch in range(2) for texts in sampler.epoch(epoch)]
    masks = [places for texts in batches for places in false_negatives(judged, texts)]
    count = sum(map(len, masks))
    assert count >= 4
    assert lines[1] == f"{count} false negatives in the batches, listed with their rows"
    said = [judged.texts[text] for text in torch.cat(batches).tolist()]
    if to == "webdataset":
        with tarfile.open(out / "train-00000.tar") as tar:
            names = [name for name in tar.getnames() if name.endswith(".json")]
            rows = [json.load(tar.extractfile(name)) for name in names]
    else:
        rows = [json.loads(line) for line in (out / "batches.jsonl").read_text().splitlines()]
    caption = {
        "sentence-transformers": lambda row: row["positive"],
        "flagembedding": lambda row: row["pos"][0],
        "tevatron": lambda row: documents(out)[row["positive_document_ids"][0]],
        "ms-swift": lambda row: row["positive_messages"][0][0]["content"],
        "vlm2vec": lambda row: row["pos_text"],
        "webdataset": lambda row: row["caption"][0],
    }
    assert [caption[to](row) for row in rows] == said
    if to == "sentence-transformers":
        read = [[place for place in row["label"] if place >= 0] for row in rows]
        assert len({len(row["label"]) for row in rows}) == 1
    else:
        read = [row["false_negatives"] for row in rows]
    assert read == masks


def documents(folder: Path) -> dict[str, str]:
    lines = (folder / "batches-corpus.jsonl").read_text().splitlines()
    return {line["docid"]: line["text"] for line in map(json.loads, lines)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_sentence_transformers_hands_false_negatives_to_its_losses(
    judged: ImageTextDataset, tmp_path: Path
) -> None:
    """Its collator reads them as the labels, not as an input."""
    pytest.importorskip("sentence_transformers")
    datasets = pytest.importorskip("datasets")
    from sentence_transformers.sentence_transformer.data_collator import (
        SentenceTransformerDataCollator,
    )

    store = save(random_lists(judged.relation, h=12, k=6), judged, tmp_path / "lists")
    out, mining = tmp_path / "out", BatchMiningConfig(size=2, skip=0, neighbours=4)
    export_batches(store, "sentence-transformers", out, judged, batch=8, mining=mining)
    rows = datasets.load_dataset(
        str(out), "batches", split="train", cache_dir=str(tmp_path / "cache")
    )
    collate = SentenceTransformerDataCollator(lambda texts, **more: {"read": texts})
    batch = collate(list(rows))
    assert [key for key in batch if key.endswith("_read")] == ["anchor_read", "positive_read"]
    assert batch["label"].tolist() == rows["label"][:]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_sentence_transformers_reads_the_batches_in_order(
    data: ImageTextDataset, store: Path, tmp_path: Path
) -> None:
    """With the sampler that the docs show, an epoch of its trainer is the file."""
    pytest.importorskip("sentence_transformers")
    datasets = pytest.importorskip("datasets")
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from torch.utils.data import SequentialSampler

    out = tmp_path / "out"
    export_batches(store, "sentence-transformers", out, data, batch=8, epochs=2, mining=MINING)
    rows = datasets.load_dataset(
        str(out), "batches", split="train", cache_dir=str(tmp_path / "cache")
    )
    assert rows.column_names == ["anchor", "positive"]
    sampler = DefaultBatchSampler(
        SequentialSampler(rows), batch_size=8, drop_last=False, generator=torch.Generator(), seed=5
    )
    read = [[tuple(rows[place].values()) for place in batch] for batch in sampler]
    written = pairs(out)
    assert read == [written[start : start + 8] for start in range(0, 48, 8)]


def test_datasets_does_not_take_an_export_for_an_earlier_one_of_its_name(
    data: ImageTextDataset, store: Path, tmp_path: Path
) -> None:
    """`datasets` keeps what it has read by the folder's name."""
    datasets = pytest.importorskip("datasets")
    for batch in (8, 4):
        out = tmp_path / f"{batch}" / "out"
        export_batches(store, "sentence-transformers", out, data, batch=batch, mining=MINING)
        rows = datasets.load_dataset(str(out), split="train", cache_dir=str(tmp_path / "cache"))
        assert [tuple(row.values())[:2] for row in rows] == pairs(out)


def test_errors(data: ImageTextDataset, store: Path, tmp_path: Path) -> None:
    out, to = tmp_path / "out", "sentence-transformers"
    with pytest.raises(ValueError, match="composed from mined negatives, for sentence-transform"):
        export_batches(store, "trec", out, data, batch=8, mining=MINING)
    with pytest.raises(ValueError, match="24 anchors do not fill one batch of 32"):
        export_batches(store, to, out, data, batch=32, mining=MINING)
    with pytest.raises(ValueError, match="was mined from"):
        export_batches(store, to, out, scenes(images=27).split("train"), batch=8, mining=MINING)
    generated = tmp_path / "generated"
    export_cases.written(generated, export_cases.dataset())
    with pytest.raises(ValueError, match="holds written ones"):
        export_batches(generated, to, out, data, batch=8)
    assert not out.exists()


def test_on_the_command_line(
    data: ImageTextDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = scenes(images=26).split("train")
    store = save(random_lists(whole.relation, h=60, k=20), whole, tmp_path / "lists")
    asked = ("export", store, "--to", "sentence-transformers", "--data", "scenes:images=26")
    out = tmp_path / "out"
    assert run(*asked, "--batch-size", 8, "--epochs", 3, "--output", out) == 0
    assert "batches.jsonl: " in capsys.readouterr().out
    assert len(pairs(out)) == 3 * (len(whole) // 8) * 8
