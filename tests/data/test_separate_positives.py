from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.core.types import Pairs
from counterfoil.data.batching import (
    BatchSampler,
    ExtraPositivePartition,
    separate_images,
    separate_positives,
    separate_texts,
)
from counterfoil.data.dataset import Relation


def met(order: list[int], clashes: Pairs, batch: int) -> int:
    place = {row: n // batch for n, row in enumerate(order)}
    pairs = zip(clashes.image.tolist(), clashes.text.tolist())
    return sum(a != b and place.get(a, -1) == place.get(b, -2) for a, b in pairs)


@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 10**6), st.integers(0, 8))
def test_the_same_rows_and_fewer_meetings(many, batch, seed, pairs):
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randperm(2 * many, generator=rng)[:many]
    clashes = Pairs(*torch.randint(2 * many, (2, pairs), generator=rng))
    found = separate_positives(rows, clashes, batch)
    assert sorted(found.tolist()) == sorted(rows.tolist())
    before = met(rows.tolist(), clashes, batch)
    after = met(found.tolist(), clashes, batch)
    assert after <= before
    if not before:
        assert torch.equal(found, rows)
    if many > 4 * batch * (pairs + 1):
        assert not after


def related(besides: Pairs | None) -> Relation:
    text_to_image = torch.cat([torch.arange(12).repeat_interleave(3), torch.tensor([-1])])
    return Relation(text_to_image, images=12, besides=besides)


BESIDES = Pairs(torch.tensor([4, 5, 9]), torch.tensor([0, 1, 35]))


def test_what_must_not_meet():
    texts, images = separate_texts(related(BESIDES)), separate_images(related(BESIDES))
    assert [*zip(texts.image.tolist(), texts.text.tolist())] == [
        (text, 3 * image + n) for image, text in zip((4, 5, 9), (0, 1, 35)) for n in range(3)
    ]
    assert [*zip(images.image.tolist(), images.text.tolist())] == [(0, 4), (0, 5), (11, 9)]
    assert separate_texts(related(None)) is None
    assert separate_images(related(None)) is None


def test_a_caption_is_never_beside_an_image_that_it_is_true_of():
    """In all ways to draw, and resumed; without decisions they do meet."""
    for way in ({}, {"one_caption": True}, {"all_captions": True}):
        batch = 3 if "all_captions" in way else 9
        meetings = {"free": 0, "apart": 0}
        for name, besides in (("free", None), ("apart", BESIDES)):
            relation = related(besides)
            sampler = BatchSampler(relation, batch=batch, seed=0, **way)
            for epoch in range(20):
                batches = list(sampler.epoch(epoch))
                for rows in batches:
                    images = relation.text_to_image[rows].unique()
                    for image, text in zip(BESIDES.image, BESIDES.text):
                        meetings[name] += bool((images == image).any() and (rows == text).any())
                late = list(sampler.epoch(epoch, start=2))
                assert [rows.tolist() for rows in late] == [rows.tolist() for rows in batches[2:]]
                if not way:
                    assert sorted(torch.cat(batches).tolist()) == list(range(36))
        assert meetings["free"]
        assert not meetings["apart"]


def test_for_a_loss_that_learns_from_them_they_are_in_a_batch_together():
    """Each epoch still uses every caption or image once, and extra positives share batches."""
    rng = torch.Generator().manual_seed(0)
    text_to_image = torch.arange(60).repeat_interleave(3)
    besides = Pairs(
        torch.randint(60, (15,), generator=rng), torch.randperm(180, generator=rng)[:15]
    )
    ambiguous = Pairs(torch.tensor([7]), torch.tensor([0]))
    relation = Relation(text_to_image, images=60, besides=besides, ambiguous=ambiguous)
    other = [(i, t) for i, t in zip(besides.image.tolist(), besides.text.tolist()) if i != t // 3]
    for way in ({}, {"one_caption": True}, {"all_captions": True}):
        met = 0
        sampler = BatchSampler(relation, batch=4, seed=0, together=True, **way)
        for epoch in range(10):
            batches = list(sampler.epoch(epoch))
            used = torch.cat(batches)
            if "one_caption" not in way:
                assert sorted(used.tolist()) == list(range(180))
            assert sorted(text_to_image[used].unique().tolist()) == list(range(60))
            for rows in batches:
                images = text_to_image[rows].tolist()
                met += sum(i in images and t in rows.tolist() for i, t in other)
                assert not (7 in images and 0 in rows.tolist())
        # with one caption of each image, that of the pair is there in a third of the epochs
        assert met > 0.5 * 10 * len(other) / (3 if "one_caption" in way else 1)


@given(st.integers(2, 30), st.integers(0, 40), st.integers(0, 10**6))
def test_images_are_matched_along_extra_positives(count, pairs, seed):
    rng = torch.Generator().manual_seed(seed)
    besides = Pairs(*torch.randint(count, (2, pairs), generator=rng))
    relation = Relation(torch.arange(count), images=count, besides=besides)
    images = torch.randperm(count, generator=rng)[: count - count // 3]
    matched, rest = ExtraPositivePartition(relation).partition(images, 8, rng)
    assert sorted([*matched.flatten().tolist(), *rest.tolist()]) == sorted(images.tolist())
    assert len(rest) < 2
    linked = {frozenset(pair) for pair in zip(besides.image.tolist(), besides.text.tolist())}
    inside = set(images.tolist())
    single = {one for pair in matched.tolist() if frozenset(pair) not in linked for one in pair}
    single |= set(rest.tolist())
    for pair in linked:  # none is left whose both images were matched at random
        assert not (len(pair) == 2 and pair <= single and pair <= inside)
