"""What is hidden, against the rules of UNITER."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pretrain_cases as cases
from counterfoil.data.batching import BatchSampler
from counterfoil.papers.pretraining.pretrain import (
    TASKS,
    PretrainBatch,
    PretrainStream,
    PretrainTasks,
    Task,
    hide_regions,
    maskable_tokens,
    mismatch_pairs,
    vocabulary_of,
)

LENS = cases.processor()
MASK = 99


def stream(tasks: PretrainTasks, *, seed: int = 0, batch: int = 6, **more: Any) -> PretrainStream:
    sampler = BatchSampler(LENS.dataset.relation, batch=batch, seed=seed)
    return PretrainStream(
        processor=LENS,
        sampler=sampler,
        epochs=more.pop("epochs", 2),
        seed=seed,
        tasks=tasks,
        mask=MASK,
        words=vocabulary_of(LENS),
        classes=cases.Detector().likely,
        **more,
    )


def batches(task: Task, **more: Any) -> list[PretrainBatch]:
    return list(stream(PretrainTasks().only(task), **more).batches())


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_tasks_come_by_their_ratios() -> None:
    tasks = PretrainTasks(mlm=3, mrfr=1, mrckl=0, itm=4)
    found = Counter(tasks.draw(seed) for seed in range(4000))
    assert set(found) == {"mlm", "mrfr", "itm"}
    for task, share in {"mlm": 3 / 8, "mrfr": 1 / 8, "itm": 4 / 8}.items():
        assert abs(found[task] / 4000 - share) < 0.03


def test_without_classes_two_tasks_are_left_out() -> None:
    assert PretrainTasks(mrc=3).without_classes() == PretrainTasks(mrc=0, mrckl=0)
    with pytest.raises(ValueError, match="no task is left"):
        PretrainTasks().only("mrc").without_classes()


def test_hidden_words_keep_their_truth() -> None:
    changed, shares = Counter[str](), [0, 0]
    for batch in batches("mlm", epochs=30):
        original = LENS.texts(batch.anchors.text)
        at = batch.slots.pair, batch.slots.place
        assert torch.equal(original.values[at], batch.labels)
        rest = torch.ones_like(original.mask)
        rest[at] = False
        assert torch.equal(batch.texts.values[rest], original.values[rest])
        assert maskable_tokens(original, vocabulary_of(LENS))[at].all()
        assert set(batch.slots.pair.tolist()) == set(range(len(batch.anchors.text)))
        new = batch.texts.values[at]
        for was, now in zip(batch.labels.tolist(), new.tolist()):
            changed["hidden" if now == MASK else "kept" if now == was else "other"] += 1
            assert now == MASK or now in vocabulary_of(LENS)
        shares[0] += len(new)
        shares[1] += int(maskable_tokens(original, vocabulary_of(LENS)).sum())
    total = sum(changed.values())
    assert abs(changed["hidden"] / total - 0.8) < 0.06
    assert changed["other"] / total < 0.16
    assert 0.15 < shares[0] / shares[1] < 0.6  # short captions: the first word where none is drawn


def test_the_first_word_where_none_is_drawn() -> None:
    for batch in batches("mlm", batch=24)[:1]:
        only = stream(PretrainTasks(words=0.0).only("mlm"), batch=24).batches()
        assert torch.equal(next(only).slots.place, torch.ones(24).long())  # behind <start>
        assert (batch.slots.place >= 1).all()


@given(st.integers(0, 999), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_one_region_of_each_image_at_least_is_hidden(seed: int, share: float) -> None:
    mask = torch.arange(5) < torch.randint(1, 6, (7, 1), generator=rng(seed))
    chance = torch.rand(7, 5, generator=rng(seed + 1))
    found = hide_regions(mask, chance, share=share)
    assert found.any(1).all()
    assert not (found & ~mask).any()
    assert (found | ~mask | (chance >= share)).all()
    more = found.sum(1) > 1
    assert (chance[more][found[more]] < share).all()


def test_hidden_regions_are_few() -> None:
    mask = torch.ones(2000, 36, dtype=torch.bool)
    found = hide_regions(mask, torch.rand(2000, 36, generator=rng()), share=0.15)
    assert abs(found.float().mean() - 0.15) < 0.01


@given(st.integers(0, 999), st.integers(2, 9))
@settings(max_examples=30, deadline=None)
def test_another_image_is_another_one(seed: int, count: int) -> None:
    images = torch.randint(count, (50,), generator=rng(seed))
    found, same = mismatch_pairs(images, count, share=0.5, rng=rng(seed + 1))
    assert torch.equal(found == images, same)
    assert 0 <= int(found.min()) <= int(found.max()) < count


def test_every_other_image_is_as_likely() -> None:
    images = torch.full((6000,), 1)
    found, same = mismatch_pairs(images, 4, share=0.5, rng=rng())
    assert abs(same.float().mean() - 0.5) < 0.03
    shares = found[~same].bincount(minlength=4) / int((~same).sum())
    assert shares[1] == 0
    assert (shares[[0, 2, 3]] - 1 / 3).abs().max() < 0.04


def test_one_image_alone_always_matches() -> None:
    found, same = mismatch_pairs(torch.zeros(3).long(), 1, share=1.0, rng=rng())
    assert found.tolist() == [0, 0, 0]
    assert same.all()


@pytest.mark.parametrize("task", TASKS)
def test_what_is_not_asked_is_not_hidden(task: Task) -> None:
    for batch in batches(task):
        assert batch.task == task
        original = LENS.texts(batch.anchors.text)
        assert (len(batch.labels) > 0) == (task == "mlm")
        assert torch.equal(batch.texts.values, original.values) == (task != "mlm")
        assert bool(batch.hidden_regions.any()) == (task in ("mrfr", "mrc", "mrckl"))
        assert (batch.classes is not None) == (task in ("mrc", "mrckl"))
        text_to_image = LENS.dataset.relation.text_to_image[batch.anchors.text]
        assert torch.equal(batch.anchors.image == text_to_image, batch.matching)
        assert torch.equal(batch.images.ids, batch.anchors.image)
        if task != "itm":
            assert batch.matching.all()


def test_batches_from_anywhere_are_the_same() -> None:
    whole = list(stream(PretrainTasks(), batch=5, accumulate=2).batches())
    for start in (1, 4, 5, 7):
        for one, other in zip(
            whole[start:], stream(PretrainTasks(), batch=5, accumulate=2).batches(start)
        ):
            assert one.task == other.task
            assert torch.equal(one.texts.values, other.texts.values)
            assert torch.equal(one.hidden_regions, other.hidden_regions)
            assert torch.equal(one.anchors.image, other.anchors.image)
    tasks = [batch.task for batch in whole]
    assert len(tasks) == 10  # five in an epoch, two of them a step
    assert all(tasks[n] == tasks[n + 1] for n in (0, 2, 5, 7))
    assert len(set(tasks)) > 1
