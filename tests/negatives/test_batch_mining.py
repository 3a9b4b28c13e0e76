"""Communities of mutual negatives: partitions, against slow loops, and in trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import processes
import train_cases
from counterfoil.core.types import Pairs
from counterfoil.data.batching import BatchSampler
from counterfoil.data.dataset import Relation
from counterfoil.losses.aoq import OfflineTriplet
from counterfoil.losses.base import Loss, WeightedSum
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.negatives.batch_mining import (
    BatchMiningConfig,
    NeighbourBatches,
    rank_neighbours,
)
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.training.config import OptimizerConfig, TrainConfig
from counterfoil.training.logging import read_metrics
from counterfoil.training.mined import MinedBatches
from counterfoil.training.trainer import train_network
from negatives_cases import ragged, random_lists, ranked, rng
from recipes_cases import SMALL, SMALL_DRAW, SMALL_LISTS, run
from sources_cases import drawn


def slow_neighbours(lists: HardNegativeLists, relation: Relation, depth: int) -> list[list[int]]:
    """Neighbours of each image by loops over all entries of the lists."""
    text_to_image = relation.text_to_image.tolist()
    described = sum(count > 0 for count in relation.counts.tolist())
    per_image = sum(image >= 0 for image in text_to_image) / described
    close: list[dict[int, float]] = [{} for _ in range(relation.images)]
    for image, texts in enumerate(lists.texts.tolist()):
        for rank, text in enumerate(texts):
            if text >= 0 and text_to_image[text] >= 0:
                other = text_to_image[text]
                close[image][other] = close[image].get(other, 0) + 1 / (1 + rank / per_image)
    for text, images in enumerate(lists.images.tolist()):
        for rank, other in enumerate(images):
            if other >= 0 and text_to_image[text] >= 0:
                own = close[text_to_image[text]]
                own[other] = own.get(other, 0) + 1 / (1 + rank)
    found = []
    for own in close:
        order = sorted(own, key=lambda other: (-round(own[other], 9), other))
        found.append((order + [-1] * depth)[:depth])
    return found


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), orphans=st.integers(0, 3), depth=st.integers(1, 9))
def test_neighbours_are_ranked_over_all_lists(seed: int, orphans: int, depth: int) -> None:
    relation = ragged(9, seed, orphans)
    lists = random_lists(relation, h=5, k=4, seed=seed)
    expected = slow_neighbours(lists, relation, depth)
    assert rank_neighbours(lists, relation, depth).tolist() == expected


def test_parts_of_the_images_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    relation = ragged(30, 4, 2)
    lists = random_lists(relation, h=8, k=5)
    whole = rank_neighbours(lists, relation, 12)
    monkeypatch.setattr("counterfoil.negatives.batch_mining._IMAGES_AT_ONCE", 7)
    assert torch.equal(rank_neighbours(lists, relation, 12), whole)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    batch=st.integers(1, 9),
    mode=st.sampled_from(["captions", "one_caption", "all_captions"]),
    drop_last=st.booleans(),
)
def test_each_caption_or_image_once_an_epoch(
    seed: int, batch: int, mode: str, drop_last: bool
) -> None:
    relation = ragged(11, seed, 2)
    config = BatchMiningConfig(size=2 + seed % 4, skip=seed % 3, neighbours=4)
    mined = NeighbourBatches(random_lists(relation, h=8, k=6, seed=seed), relation, config)
    ways = {} if mode == "captions" else {mode: True}
    sampler = BatchSampler(
        relation, batch=batch, seed=seed, drop_last=drop_last, partition=mined, **ways
    )
    plain = BatchSampler(relation, batch=batch, seed=seed, drop_last=drop_last, **ways)
    for epoch in range(2):
        batches = list(sampler.epoch(epoch))
        assert len(batches) == len(sampler) == len(plain)
        texts = torch.cat(batches)
        assert len(texts.unique()) == len(texts)
        images = relation.text_to_image[texts].unique()
        assert bool((images >= 0).all())
        if drop_last:
            continue
        every = relation.text_to_image >= 0
        if mode == "one_caption":
            assert len(texts) == len(images) == relation.images
        else:
            assert len(texts) == int(every.sum())
        if mode != "all_captions":
            assert [len(rows) for rows in batches] == [len(rows) for rows in plain.epoch(epoch)]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), images=st.integers(0, 40), size=st.integers(2, 9))
def test_communities_have_equal_sizes(seed: int, images: int, size: int) -> None:
    relation = ragged(40, seed)
    mined = NeighbourBatches(
        random_lists(relation, h=9, k=6, seed=seed), relation, BatchMiningConfig(size=size, skip=2)
    )
    chosen = torch.randperm(40, generator=rng(seed))[:images]
    communities, rest = mined.partition(chosen, 6, rng(seed))
    each = min(size, 6)
    assert communities.shape == (images // each, each)
    together = torch.cat([communities.flatten(), rest])
    assert sorted(together.tolist()) == sorted(chosen.tolist())


def groups(images: int = 240, captions: int = 3, noise: float = 0.6) -> tuple[Relation, Tensor]:
    """Images around a few centres, and (I, T) scores of their captions."""
    centres = torch.randn(12, 8, generator=rng(1))
    vectors = centres[torch.arange(images) % 12] + noise * torch.randn(images, 8, generator=rng(2))
    text_to_image = torch.arange(images).repeat_interleave(captions)
    texts = vectors[text_to_image] + 0.3 * torch.randn(len(text_to_image), 8, generator=rng(3))
    normal = torch.nn.functional.normalize
    scores = normal(vectors, dim=1) @ normal(texts, dim=1).T
    return Relation(text_to_image, images=images), scores


def mutual_share(batches: list[Tensor], ranked_images: Tensor, skip: int) -> tuple[float, float]:
    """Shares of the pairs in batches that are mutual neighbours, and suspected positives."""
    nearest = [set(row[:skip]) - {-1} for row in ranked_images.tolist()]
    linked = [set(row[skip:]) - {-1} for row in ranked_images.tolist()]
    mutual = suspected = pairs = 0
    for batch in batches:
        rows = batch.tolist()
        for place, one in enumerate(rows):
            for other in rows[:place]:
                pairs += 1
                mutual += other in linked[one] and one in linked[other]
                suspected += other in nearest[one] or one in nearest[other]
    return mutual / pairs, suspected / pairs


@pytest.mark.parametrize("batch", [8, 24])
def test_batches_hold_mutual_negatives_and_no_suspected_positives(batch: int) -> None:
    relation, scores = groups()
    lists = ranked(scores, relation, 60, 20)
    config = BatchMiningConfig(size=8, skip=3, neighbours=20)
    near = rank_neighbours(lists, relation, 23)
    mined = BatchSampler(
        relation,
        batch=batch,
        seed=0,
        one_caption=True,
        partition=NeighbourBatches(lists, relation, config),
    )
    random = BatchSampler(relation, batch=batch, seed=0, one_caption=True)

    def share(sampler: BatchSampler, size: int) -> tuple[float, float]:
        rows = torch.cat(list(sampler.epoch(0)))
        return mutual_share(list(relation.text_to_image[rows].split(size)), near, 3)

    (mutual, suspected), (usual, usually) = share(mined, 8), share(random, 8)
    assert mutual > 0.25
    assert mutual > 5 * usual
    assert usually > 0.01
    # in the last communities every free image may clash
    assert suspected < usually / 5
    assert share(mined, batch)[0] > 2 * share(random, batch)[0]


def test_without_a_skip_the_nearest_share_a_batch() -> None:
    """So it is `skip` that keeps them apart."""
    relation, scores = groups()
    lists = ranked(scores, relation, 60, 20)
    mined = NeighbourBatches(lists, relation, BatchMiningConfig(size=8, skip=0, neighbours=23))
    communities, _ = mined.partition(torch.arange(relation.images), 8, rng())
    assert mutual_share(list(communities), rank_neighbours(lists, relation, 23), 3)[1] > 0.1


def test_images_with_an_extra_positive_in_common_are_kept_apart() -> None:
    relation, scores = groups()
    lists = ranked(scores, relation, 60, 20)
    near = rank_neighbours(lists, relation, 1).squeeze(1)
    image = torch.arange(relation.images)
    text = relation.captions(near)[0].view(-1, 3)[:, 0]
    related = Relation(relation.text_to_image, images=240, besides=Pairs(image, text))
    mined = NeighbourBatches(lists, related, BatchMiningConfig(size=8, skip=0, neighbours=20))
    communities, _ = mined.partition(image, 8, rng())
    together = (communities.unsqueeze(2) == near[communities].unsqueeze(1)).any()
    assert not bool(together)


def test_an_odd_image_is_the_last_choice_not_left_out() -> None:
    """Where every free image clashes, a community is filled all the same."""
    relation = Relation(torch.arange(6), images=6)
    rows = torch.tensor([[j for j in range(6) if j != i] for i in range(6)]).int()
    mined = NeighbourBatches(
        HardNegativeLists(rows, rows), relation, BatchMiningConfig(size=3, skip=4, neighbours=1)
    )
    communities, rest = mined.partition(torch.arange(6), 3, rng())
    assert sorted(communities.flatten().tolist()) == list(range(6))
    assert not len(rest)


def test_the_same_from_the_same_seed_and_resumed_at_any_batch() -> None:
    relation, scores = groups(60)
    lists = ranked(scores, relation, 30, 10)

    def sampler(seed: int = 3) -> BatchSampler:
        mined = NeighbourBatches(lists, relation, BatchMiningConfig(size=4, skip=1, neighbours=9))
        return BatchSampler(relation, batch=8, seed=seed, partition=mined)

    whole = [rows.tolist() for rows in sampler().epoch(2)]
    assert [rows.tolist() for rows in sampler().epoch(2)] == whole
    assert [rows.tolist() for rows in sampler().epoch(1)] != whole
    assert [rows.tolist() for rows in sampler(4).epoch(2)] != whole
    for start in range(0, len(whole), 5):
        assert [rows.tolist() for rows in sampler().epoch(2, start=start)] == whole[start:]


def test_a_batch_holds_an_image_once_but_where_the_captions_of_two_partitions_meet() -> None:
    relation, scores = groups(64)
    mined = NeighbourBatches(ranked(scores, relation, 30, 10), relation)
    sampler = BatchSampler(relation, batch=16, seed=0, partition=mined)
    for rows in sampler.epoch(0):
        assert len(relation.text_to_image[rows].unique()) == 16


def test_errors() -> None:
    relation, scores = groups(24)
    lists = ranked(scores, relation, 6, 4)
    with pytest.raises(ValueError, match="behind the first 30, so no batch can be composed; lower"):
        NeighbourBatches(lists, relation, BatchMiningConfig(skip=30))
    with pytest.raises(ValueError, match="the corpus has 25 and 72; mine them again"):
        NeighbourBatches(lists, Relation(relation.text_to_image, images=25))
    with pytest.raises(ValueError, match="size=1, skip=5, neighbours=100: a community needs 2"):
        BatchMiningConfig(size=1)


# In a training.

PLAN = TrainConfig(epochs=2, batch=6, optimiser=OptimizerConfig(rate=0.01), log_every=1)


def train(folder: Path, loss: Loss, *, offline: bool = False) -> dict[str, Any]:
    torch.set_num_threads(1)
    processor = train_cases.processor()
    relation = processor.dataset.relation
    lists = random_lists(relation, h=9, k=6)
    mined = MinedBatches(lists, BatchMiningConfig(size=3, skip=1, neighbours=4))
    model = train_cases.host("bag", processor, dropout=0.0)
    mined.check(model, processor.dataset)
    fitted = train_network(
        PLAN,
        model,
        WeightedSum(terms={"loss": (1.0, loss)}),
        processor,
        folder=folder,
        sources=[mined, *([drawn(train_cases.Offline(relation.text_to_image))] if offline else [])],
        resume=True,
    )
    lines = [line["loss"] for line in read_metrics(fitted.metrics) if "loss" in line]
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    return {"loss": lines, "weights": weights}


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    one = train(tmp_path / "one", InfoNCELoss())
    first, second = processes.run(train, 2, tmp_path / "two", InfoNCELoss())
    assert first["loss"] == second["loss"] == pytest.approx(one["loss"], rel=1e-4)
    for name, value in one["weights"].items():
        assert first["weights"][name] == pytest.approx(value, abs=1e-3)


def test_batches_from_lists_with_negatives_from_lists(tmp_path: Path) -> None:
    found = train(tmp_path, OfflineTriplet(), offline=True)
    assert len(found["loss"]) == 12
    assert all(torch.tensor(found["loss"]).isfinite())


@pytest.mark.slow
def test_a_recipe_composes_its_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the recipe, and by a setting of any recipe that has lists; other splits are refused."""
    data = ("--data", "scenes:images=36")
    small = (*SMALL, *SMALL_LISTS, "--smoke")
    assert run("run", "batches", *data, "--output", tmp_path / "a", *small) == 0
    first, second = (
        [
            line["loss"]
            for line in read_metrics(tmp_path / "a" / name / "metrics.jsonl")
            if "loss" in line
        ]
        for name in ("longer", "mined")
    )
    assert first != second
    asked = ("run", "aoq", *data, *small, *SMALL_DRAW)
    mined = (
        "--set",
        "adaptive.minedbatches.negatives=lists",
        "--set",
        "adaptive.minedbatches.config.size=4",
    )
    assert run(*asked, "--output", tmp_path / "b", *mined) == 0
    capsys.readouterr()
    other = (*mined, "--set", "lists.split=test")
    assert run(*asked, "--output", tmp_path / "c", *other) == 2
    assert "set lists.split=train" in capsys.readouterr().err
