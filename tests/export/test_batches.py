"""Pairs in the order of mined batches, for sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import export_cases
from counterfoil.data.batching import BatchSampler
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.scenes import scenes
from counterfoil.export.negatives import export_batches
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
    assert run(*asked, "--batch", 8, "--most", 3, "--output", out) == 2
    assert "--most is read only without --batch" in capsys.readouterr().err
    assert run(*asked, "--epochs", 3, "--output", out) == 2
    assert "--epochs is read only with --batch" in capsys.readouterr().err
    assert run(*asked, "--batch", 8, "--epochs", 3, "--output", out) == 0
    assert "batches.jsonl: " in capsys.readouterr().out
    assert len(pairs(out)) == 3 * (len(whole) // 8) * 8
