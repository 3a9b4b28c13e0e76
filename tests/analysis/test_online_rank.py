from __future__ import annotations

from itertools import combinations
from math import comb

import pytest
import torch

from counterfoil.analysis.aoq import (
    anchor_scores,
    chance_of_top,
    expected_rank,
    mean_rank,
    missed,
    online_ranks,
    percent_among,
    places,
)
from counterfoil.data.dataset import Relation
from evaluation_cases import member, ragged, scores


def measure(found, text_to_image, *, seed: int = 0, **settings):
    """Ranks and gaps of both directions."""
    relation = Relation(text_to_image, images=len(found))
    rng = torch.Generator().manual_seed(seed)
    measured = online_ranks([member(found)], relation, **settings, rng=rng)
    assert list(measured) == ["i2t", "t2i"]
    return list(measured.values())


@pytest.mark.parametrize(("captions", "images", "batch"), [(1, 9, 4), (2, 5, 4), (3, 3, 5)])
def test_every_batch_there_is(captions, images, batch):
    """The expectation and the chance, from all batches of an anchor with its siblings."""
    texts = captions * images
    ranked = range(captions - 1, texts - 1)  # of the others: siblings first, then by hardness
    firsts, image_firsts = [], []
    for drawn in combinations(range(texts - 1), batch - 1):
        wrong = [place - (captions - 1) for place in drawn if place in ranked]
        firsts.append(1 + min(wrong))
        image_firsts.append(1 + min(wrong) // captions)
    mean = sum(firsts) / len(firsts)
    assert expected_rank(texts, batch) == pytest.approx(mean)
    assert mean == pytest.approx(texts / batch)
    top = sum(first <= 2 for first in firsts) / len(firsts)
    assert chance_of_top(2, texts, batch) == pytest.approx(top)
    of_images = sum(image_firsts) / len(firsts)
    assert expected_rank(texts, batch, captions=captions) == pytest.approx(of_images)
    top = sum(first <= 1 for first in image_firsts) / len(firsts)
    assert chance_of_top(1, texts, batch, captions=captions) == pytest.approx(top)


def test_the_paper_s_numbers():
    """AOQ, section 1: about 4000, and about 2.2 % in MS-COCO's 566,435 captions."""
    assert expected_rank(500_000, 128) == 3906.25
    assert 100 * chance_of_top(100, 566_435, 128) == pytest.approx(2.2, abs=0.05)
    assert 100 * chance_of_top(100, 500_000, 128) == pytest.approx(2.5, abs=0.05)


def test_chances_of_many_captions():
    texts, batch = 40, 7
    exact = [comb(texts - 1 - k, batch - 1) / comb(texts - 1, batch - 1) for k in range(40)]
    assert missed(torch.arange(40), texts, batch).tolist() == pytest.approx(exact)


def test_places_count_wrong_ones_only():
    found = torch.tensor([0.5, 0.9, 0.5, 0.1, 0.7])
    wrong = torch.tensor([True, False, True, True, True])
    assert places(found, wrong).tolist() == [2, 6, 3, 4, 1]


def test_anchors_meet_everything():
    text_to_image = ragged(8, 0)
    found = scores(8, text_to_image, 0)
    anchors = (text_to_image >= 0).nonzero().squeeze(1)[:5]
    relation = Relation(text_to_image, images=8)
    texts, images = anchor_scores([member(found)], relation, anchors)
    torch.testing.assert_close(texts, found[text_to_image[anchors]])
    torch.testing.assert_close(images, found[:, anchors].T)


def test_a_batch_of_everything_finds_the_hardest_of_all():
    text_to_image = ragged(10, 2, orphans=4)
    found = scores(10, text_to_image, 2)
    most = int((text_to_image >= 0).sum())
    both = measure(found, text_to_image, batches=[most], anchors=most, draws=2)
    for ranks, _ in both:
        assert ranks.shape == (1, most, 2)
        assert bool((ranks == 1).all())
        assert percent_among(ranks[0], 1) == 100
        assert mean_rank(ranks[0]) == (1, 0)
    best = []
    for row in (text_to_image >= 0).nonzero().squeeze(1).tolist():
        line, wrong = found[text_to_image[row]], text_to_image != text_to_image[row]
        best.append(float(line[wrong & (text_to_image >= 0)].max() - line[row]))
    gaps = both[0][1][0, :, 0]
    torch.testing.assert_close(gaps.sort().values, torch.tensor(best).sort().values)


def test_measured_is_near_what_counting_says():
    text_to_image = torch.arange(60).repeat_interleave(5)
    sizes = (8, 32)
    found = scores(60, text_to_image, 0)
    both = measure(found, text_to_image, batches=sizes, anchors=150, draws=8)
    for captions, (ranks, gaps) in zip((1, 5), both):
        for place, batch in enumerate(sizes):
            mean, half = mean_rank(ranks[place])
            assert abs(mean - expected_rank(300, batch, captions=captions)) < 2 * half
            chance = 100 * chance_of_top(4, 300, batch, captions=captions)
            assert percent_among(ranks[place], 4) == pytest.approx(chance, abs=4)
        assert gaps[0].median() < gaps[1].median()


def test_the_same_seed_gives_the_same_ranks():
    text_to_image = ragged(12, 4)
    found, settings = scores(12, text_to_image, 4), {"batches": (2, 5), "anchors": 4, "draws": 3}
    first, again, other = (
        measure(found, text_to_image, seed=seed, **settings)[0][0] for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_batch_of_siblings_has_no_negative():
    text_to_image = torch.tensor([0, 0, 0, 0, 1])
    both = measure(torch.rand(2, 5), text_to_image, batches=[2], anchors=5, draws=20)
    assert set(both[0][0].flatten().tolist()) == {0, 1, 2, 3, 4}
    assert set(both[1][0].flatten().tolist()) == {0, 1}
    assert all(torch.equal(gaps.isnan(), ranks == 0) for ranks, gaps in both)


@pytest.mark.parametrize("batch", [1, 6])
def test_a_batch_that_cannot_be_drawn(batch):
    with pytest.raises(ValueError, match=f"batches of {batch} cannot be drawn from 5 captions"):
        measure(torch.rand(5, 5), torch.arange(5), batches=[batch], anchors=1, draws=1)
