import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.data.batching import BatchSampler
from counterfoil.data.dataset import Relation


def relation(counts):
    text_to_image = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return Relation(torch.cat([text_to_image, torch.tensor([-1, -1])]), images=len(counts))


counts = st.lists(st.integers(0, 4), min_size=1, max_size=8).filter(any)


@given(counts, st.integers(1, 7), st.integers(0, 5))
def test_every_caption_once_an_epoch(counts, batch, epoch):
    sampler = BatchSampler(relation(counts), batch=batch, seed=1)
    batches = list(sampler.epoch(epoch))
    assert len(batches) == len(sampler) == -(-sum(counts) // batch)
    assert all(len(rows) == batch for rows in batches[:-1])
    assert sorted(torch.cat(batches).tolist()) == list(range(sum(counts)))


@given(counts, st.integers(1, 7))
def test_every_image_once_an_epoch(counts, batch):
    related = relation(counts)
    sampler = BatchSampler(related, batch=batch, seed=1, one_caption=True)
    drawn = torch.cat(list(sampler.epoch(0)))
    images = related.text_to_image[drawn].tolist()
    assert sorted(images) == [image for image, count in enumerate(counts) if count]


@given(counts, st.integers(1, 5), st.booleans())
def test_resumed_at_any_batch(counts, batch, one_caption):
    def make():
        return BatchSampler(relation(counts), batch=batch, seed=3, one_caption=one_caption)

    whole = list(make().epoch(2))
    for start in range(len(whole) + 1):
        rest = list(make().epoch(2, start=start))
        assert [rows.tolist() for rows in rest] == [rows.tolist() for rows in whole[start:]]


def test_epochs_and_seeds_differ():
    related = relation([5] * 10)
    orders = {
        tuple(torch.cat(list(BatchSampler(related, batch=7, seed=seed).epoch(epoch))).tolist())
        for seed in (0, 1)
        for epoch in range(3)
    }
    assert len(orders) == 6


def test_short_batch_can_be_left_out():
    sampler = BatchSampler(relation([1] * 7), batch=3, seed=0, drop_last=True)
    assert [len(rows) for rows in sampler.epoch(0)] == [3, 3]
    assert len(sampler) == 2


@pytest.mark.parametrize(
    "counts, batch, words",
    [
        ([1, 1], 3, "2 anchors do not fill one batch of 3; use a smaller batch"),
        ([0, 0], 3, "no image has a caption, so there is nothing to train on"),
        ([1, 1], 0, "a batch of 0 is too small"),
    ],
)
def test_what_cannot_be_drawn(counts, batch, words):
    with pytest.raises(ValueError, match=words):
        BatchSampler(relation(counts), batch=batch, seed=0, drop_last=True)


@given(counts, st.integers(1, 7), st.integers(0, 3))
def test_every_image_with_all_its_captions(counts, batch, start):
    related = relation(counts)
    sampler = BatchSampler(related, batch=batch, seed=1, all_captions=True)
    batches = list(sampler.epoch(2))
    assert len(batches) == len(sampler)
    for rows in batches[:-1]:
        owners, found = related.text_to_image[rows].unique(return_counts=True)
        assert len(owners) == batch
        assert torch.equal(found, related.counts[owners])
    assert sorted(torch.cat(batches).tolist()) == list(range(sum(counts)))
    again = list(sampler.epoch(2, start=start))
    assert all(map(torch.equal, again, batches[start:]))


def test_one_caption_or_all():
    with pytest.raises(ValueError, match="exclude each other"):
        BatchSampler(relation([2, 1]), batch=1, seed=0, one_caption=True, all_captions=True)
