from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.core.types import Pairs
from counterfoil.data.batching import (
    BatchSampler,
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
