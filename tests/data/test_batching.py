from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import processes
from corpus_cases import small_corpus
from counterfoil.core.types import Pairs, Role
from counterfoil.data.batching import (
    BatchSampler,
    ExtraPositivePartition,
    collate,
    separate_images,
    separate_positives,
    separate_texts,
    shard_rows,
)
from counterfoil.data.dataset import Relation
from counterfoil.data.processor import ProcessorConfig


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


COUNTS = (2, 0, 3, 1, 2)


def laid(positives="id"):
    dataset = small_corpus(COUNTS).with_positives(positives)
    return ProcessorConfig().fit(dataset).process(dataset)


def drawn_pairs(processor, anchors, seed, width=3):
    rng = torch.Generator().manual_seed(seed)
    shape = (len(anchors), width)
    return Pairs(
        torch.randint(len(processor.dataset), shape, generator=rng),
        torch.randint(len(processor.dataset.texts), shape, generator=rng),
    )


texts = st.lists(st.integers(0, 7), min_size=1, max_size=6, unique=True)


@given(texts, st.integers(0, 100))
def test_pools_hold_every_row_once_and_places_point_at_rows(anchors, seed):
    processor, anchors = laid(), torch.tensor(anchors)
    negatives = drawn_pairs(processor, anchors, seed)
    batch = collate(processor, anchors, negatives={Role.HARD_TEXT: negatives}, step=7)
    for pool in (batch.image_rows.tolist(), batch.text_rows.tolist()):
        assert len(set(pool)) == len(pool)
    placed = batch.pairs[Role.HARD_TEXT]
    assert torch.equal(batch.image_rows[placed.image], negatives.image)
    assert torch.equal(batch.text_rows[placed.text], negatives.text)
    assert torch.equal(batch.images.ids, batch.image_rows)
    assert torch.equal(batch.texts.ids, batch.text_rows)
    assert batch.step == 7


def offers(processor, anchors, seed):
    """Candidates of two roles, some of them none."""
    candidates_by_role = {
        role: drawn_pairs(processor, anchors, seed) for role in (Role.HARD_TEXT, Role.CROSS)
    }
    for pairs in candidates_by_role.values():
        pairs.text[:, 0], pairs.image[:, 1] = -1, -1
    return candidates_by_role


def share_of_offers(anchors, seed):
    processor = laid()
    candidates_by_role = offers(processor, torch.tensor(anchors), seed)
    batch = collate(processor, torch.tensor(anchors), candidates=candidates_by_role)
    for role, pairs in candidates_by_role.items():
        assert torch.equal(batch.candidates[role].text, pairs.text)
        assert torch.equal(batch.candidates[role].image, pairs.image)
    return [items.ids.tolist() for items in batch.offered], batch.image_rows.tolist()


@given(texts, st.integers(0, 100))
def test_candidates_have_items_of_their_own(anchors, seed):
    processor = laid()
    candidates_by_role = offers(processor, torch.tensor(anchors), seed)
    (images, captions), pool = share_of_offers(anchors, seed)
    text_to_image = processor.dataset.text_to_image.tolist()
    drawn = {row for pairs in candidates_by_role.values() for row in pairs.image.flatten().tolist()}
    assert images == sorted((drawn | {text_to_image[text] for text in anchors}) - {-1})
    drawn = {row for pairs in candidates_by_role.values() for row in pairs.text.flatten().tolist()}
    assert captions == sorted((drawn | set(anchors)) - {-1})
    assert pool == sorted({text_to_image[text] for text in anchors})
    assert collate(processor, torch.tensor(anchors)).offered is None


@pytest.mark.parametrize("anchors", [[0], [3, 1, 0], [0, 1, 2, 3, 4, 5]])
def test_processes_read_the_candidates_of_their_anchors(anchors):
    shares = [share for share, _ in processes.run(share_of_offers, 2, anchors, 5)]
    (images, captions), _ = share_of_offers(anchors, 5)
    assert sorted(set(shares[0][0] + shares[1][0])) == images
    assert sorted(set(shares[0][1] + shares[1][1])) == captions
    each = -(-len(anchors) // 2)
    candidates_by_role = offers(laid(), torch.tensor(anchors), 5)
    mine = {
        row for pairs in candidates_by_role.values() for row in pairs.text[:each].flatten().tolist()
    }
    assert set(shares[0][1]) == (mine | set(anchors[:each])) - {-1}


@given(texts)
def test_block_is_true_where_an_owner_meets_its_text(anchors):
    processor = laid()
    batch = collate(processor, torch.tensor(anchors))
    text_to_image = processor.dataset.text_to_image.tolist()
    images, count = batch.image_rows.tolist(), len(anchors)
    assert batch.block == (len(images), count)
    assert images == sorted({text_to_image[text] for text in anchors})
    assert batch.text_rows.tolist() == anchors
    wanted = [[text_to_image[text] == image for text in anchors] for image in images]
    assert batch.positive.tolist() == wanted
    assert [images[row] for row in batch.anchors.image.tolist()] == [
        text_to_image[t] for t in anchors
    ]
    assert batch.anchors.text.tolist() == list(range(count))


def test_two_captions_of_an_image_are_both_positive():
    batch = collate(laid(), torch.tensor([2, 0, 3]))  # 2 and 3 describe image 2
    assert batch.image_rows.tolist() == [0, 2]
    assert batch.positive.int().tolist() == [[0, 1, 0], [1, 0, 1]]


def test_diagonal_is_the_authors_form():
    batch = collate(laid("diagonal"), torch.tensor([2, 0, 3]))
    assert batch.block == (3, 3)
    assert batch.image_rows.tolist() == [2, 0, 2]
    assert torch.equal(batch.positive, torch.eye(3, dtype=torch.bool))
    assert batch.anchors.image.tolist() == [0, 1, 2]


def test_diagonal_finds_drawn_images_at_their_first_place():
    negatives = Pairs(torch.tensor([[2], [4], [0]]), torch.tensor([[0], [7], [7]]))
    negatives = {Role.CROSS: negatives}
    batch = collate(laid("diagonal"), torch.tensor([2, 0, 3]), negatives=negatives)
    assert batch.pairs[Role.CROSS].image.tolist() == [[0], [3], [1]]
    assert batch.image_rows.tolist() == [2, 0, 2, 4]
    assert batch.text_rows.tolist() == [2, 0, 3, 7]


def _share(anchors):
    processor = laid()
    batch = collate(processor, torch.tensor(anchors))
    return batch.text_rows.numpy(), batch.texts.ids.numpy(), batch.images.ids.numpy()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("anchors", [[0], [3, 1, 0], [0, 1, 2, 3, 4, 5]])
def test_processes_share_the_pools(size, anchors):
    results = processes.run(_share, size, anchors)
    each = -(-len(anchors) // size)
    texts = [row for _, own, _ in results for row in own.tolist()]
    images = [row for _, _, own in results for row in own.tolist()]
    assert all(len(own) == each for _, own, _ in results)
    assert all(pool.tolist() == anchors for pool, _, _ in results)
    assert texts[: len(anchors)] == anchors
    assert set(texts[len(anchors) :]) <= {anchors[-1]}
    text_to_image = laid().dataset.text_to_image.tolist()
    assert set(images) == {text_to_image[text] for text in anchors}


def test_one_process_has_it_all():
    rows = torch.tensor([5, 2, 9])
    assert torch.equal(shard_rows(rows), rows)


@given(texts)
def test_targets_are_the_anchor_captions_of_each_image(anchors):
    processor = laid()
    negatives = drawn_pairs(processor, torch.tensor(anchors), seed=1)
    batch = collate(processor, torch.tensor(anchors), negatives={Role.HARD_TEXT: negatives})
    assert len(batch.images.targets) == len(batch.image_rows)
    text_to_image = processor.dataset.text_to_image.tolist()
    for row, captions_of_image in zip(batch.image_rows.tolist(), batch.images.targets, strict=True):
        wanted = [anchor for anchor in anchors if text_to_image[anchor] == row]
        targets = [
            caption[caption >= 0].tolist() for caption in captions_of_image if caption[0] >= 0
        ]
        if wanted:
            read = processor.texts(torch.tensor(wanted))
            wanted = [ids[m].tolist() for ids, m in zip(read.values, read.mask, strict=True)]
        assert targets == wanted


def shares_of_targets(anchors, positives):
    batch = collate(laid(positives), torch.tensor(anchors))
    captions_of_image = batch.images.targets.flatten(0, 1)
    return [caption[caption >= 0].tolist() for caption in captions_of_image if caption[0] >= 0]


@pytest.mark.parametrize("positives", ["id", "diagonal"])
def test_every_anchor_caption_is_the_target_of_one_process(positives):
    anchors = [2, 0, 3, 7, 5]
    shares = processes.run(shares_of_targets, 2, anchors, positives)
    processor = laid()
    items = processor.texts(torch.tensor(anchors))
    wanted = [ids[mask].tolist() for ids, mask in zip(items.values, items.mask, strict=True)]
    assert sorted(shares[0] + shares[1]) == sorted(wanted)
    assert shares[1]


def exempted(positives="id"):
    """Extra positives (a0, a2#0) of weight 0.5 and (a3, a2#1); (a4, a3#0) is ambiguous."""
    dataset = replace(
        small_corpus(COUNTS),
        extra_positives=Pairs(torch.tensor([0, 3]), torch.tensor([2, 3])),
        extra_weights=torch.tensor([0.5, 1.0]),
        ambiguous=Pairs(torch.tensor([4]), torch.tensor([5])),
        positives=positives,
    )
    processor = ProcessorConfig().fit(dataset).process(dataset)
    anchors = torch.tensor([7, 5, 2, 0])  # of images 4, 3, 2, 0
    drawn = Pairs(torch.tensor([[3, 0], [4, 0], [0, 1], [1, 2]]), anchors.unsqueeze(1).expand(4, 2))
    roles = {Role.HARD_IMAGE: drawn}
    return collate(processor, anchors, negatives=roles, candidates=roles)


def test_a_pair_that_was_judged_is_no_negative_of_a_batch():
    for positives in ("id", "diagonal"):
        batch = exempted(positives)
        block = batch.exempt.block
        found = {
            (int(batch.image_rows[i]), int(batch.text_rows[t])): float(w)
            for i, t, w in zip(block.image, block.text, batch.exempt.weight)
        }
        assert found == {(0, 2): 0.5, (4, 5): 0.0}
        assert batch.exempt.negatives[Role.HARD_IMAGE].tolist() == [
            [False, False],
            [True, False],
            [True, False],
            [False, False],
        ]
        # the judged ones are no candidates either, and are not encoded for it
        assert batch.candidates[Role.HARD_IMAGE].image.tolist() == [
            [3, 0],
            [-1, 0],
            [-1, 1],
            [1, 2],
        ]
        assert not bool(batch.positive[block.image, block.text].any())


@pytest.mark.parametrize("positives", ["id", "diagonal"])
def test_a_judged_caption_that_is_drawn_twice(positives):
    dataset = replace(
        small_corpus(COUNTS),
        extra_positives=Pairs(torch.tensor([0, 3]), torch.tensor([2, 3])),
        positives=positives,
    )
    processor = ProcessorConfig().fit(dataset).process(dataset)
    batch = collate(processor, torch.tensor([2, 0, 2, 0]))
    image, text = batch.image_rows, batch.text_rows
    block = {(i, t) for i in range(len(image)) for t in range(4) if (image[i], text[t]) == (0, 2)}
    found = batch.exempt.block
    assert set(zip(found.image.tolist(), found.text.tolist())) == block
    assert len(block) == (4 if positives == "diagonal" else 2)


def test_without_judged_pairs_there_is_nothing_to_leave_out():
    assert collate(laid(), torch.tensor([0, 2])).exempt is None


@given(st.integers(0, 1000))
def test_weights_of_pairs_equal_a_loop(seed):
    rng = torch.Generator().manual_seed(seed)
    pairs = torch.randperm(12, generator=rng)[:5]
    besides, ambiguous = (Pairs(some // 4, some % 4) for some in (pairs[:3], pairs[3:]))
    weights = torch.rand(3, generator=rng).clamp(min=0.01)
    relation = Relation(
        torch.tensor([0, 1, 2, -1]), images=3, besides=besides, weights=weights, ambiguous=ambiguous
    )
    known = dict(zip(pairs.tolist(), [*weights.tolist(), 0, 0]))
    expected = [[known.get(4 * image + text, -1) for text in range(4)] for image in range(3)]
    found = relation.exempt_weight(torch.arange(3).unsqueeze(1), torch.arange(4))
    assert found.tolist() == expected
    assert relation.exempt_weight(torch.tensor([1]), torch.tensor([-1])).tolist() == [-1]
