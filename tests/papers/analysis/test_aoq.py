"""Ranks and examples of AOQ, against counting and loops."""

from __future__ import annotations

from itertools import combinations
from math import comb

import pytest
import torch

from counterfoil.data.dataset import Relation
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.papers.aoq.figures import (
    BINS,
    chance_of_top,
    cross_ranks,
    examples,
    expected_rank,
    mean_rank,
    missed,
    online_ranks,
    pair_ranks,
    percent_among,
    places,
    query_scores,
    rank_shares,
)
from evaluation_cases import member, ragged, scores

# Section 1: rank of a batch's hardest negative.


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
    texts = query_scores([member(found)], "i2t", text_to_image[anchors])
    images = query_scores([member(found)], "t2i", anchors)
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


# Figure 3: online and offline negatives.


SIZES = {"batch": 6, "texts": 5, "images": 3, "shown": 2}


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def made(seed: int = 0, lists: HardNegativeLists | None = None, **sizes: int):
    text_to_image = ragged(12, 1, orphans=2)
    found = scores(12, text_to_image, 1)
    relation = Relation(text_to_image, images=12)
    drawn = examples(
        [member(found)], relation, **SIZES | sizes, anchors=4, rng=rng(seed), lists=lists
    )
    return text_to_image, found, drawn


def check(listed, line, wrong, true):
    """Scores, order and places of what is listed."""
    assert listed["scores"] == [float(line[row]) for row in listed["rows"]]
    assert listed["scores"] == sorted(listed["scores"], reverse=True)
    for row, place in zip(listed["rows"], listed["places"]):
        assert bool(wrong[row]) is not true
        assert place == 1 + int((wrong & (line > line[row])).sum())


def test_both_sides_of_an_anchor():
    text_to_image, found, drawn = made()
    assert len(drawn) == 4
    for image, text in drawn:
        assert int(text_to_image[text["row"]]) == image["row"]
        wrong = (text_to_image >= 0) & (text_to_image != image["row"])
        check(image["true"], found[image["row"]], wrong, true=True)
        assert (
            sorted(image["true"]["rows"])
            == (text_to_image == image["row"]).nonzero().flatten().tolist()
        )
        for listed in (image["online"], image["offline"]):
            check(listed, found[image["row"]], wrong, true=False)
        described = torch.bincount(text_to_image[text_to_image >= 0], minlength=12) > 0
        others = described & (torch.arange(12) != image["row"])
        assert text["true"]["rows"] == [image["row"]]
        for listed in (text["online"], text["offline"]):
            check(listed, found[:, text["row"]], others, true=False)
        assert len(image["offline"]["rows"]) == len(text["offline"]["rows"]) == SIZES["shown"]
        assert max(image["offline"]["places"]) <= SIZES["texts"]
        assert max(text["offline"]["places"]) <= SIZES["images"]


def test_a_batch_of_everything_finds_the_hardest():
    _, _, drawn = made(batch=1000, shown=3)
    for pair in drawn:
        assert [example["online"]["places"] for example in pair] == [[1], [1]]


def test_lists_of_others():
    text_to_image = ragged(12, 1, orphans=2)
    texts = torch.full((12, 4), -1, dtype=torch.int32)
    images = torch.full((len(text_to_image), 2), -1, dtype=torch.int32)
    for image in range(12):
        wrong = ((text_to_image >= 0) & (text_to_image != image)).nonzero().flatten()
        texts[image, 0] = wrong[-1]
    described = text_to_image[text_to_image >= 0].unique().tolist()
    for text, own in enumerate(text_to_image.tolist()):
        images[text, 0] = next(row for row in described if row != own)
    _, _, drawn = made(lists=HardNegativeLists(texts, images))
    for image, text in drawn:
        assert image["offline"]["rows"] == [int(texts[image["row"], 0])]
        assert text["offline"]["rows"] == [int(images[text["row"], 0])]


def test_the_seed_chooses():
    assert made(0)[2] == made(0)[2]
    assert made(0)[2] != made(1)[2]


def test_one_image_has_no_negatives():
    relation = Relation(torch.tensor([0, 0]), images=2)
    with pytest.raises(ValueError, match="1 images have captions; negatives need at least 2"):
        examples([member(torch.rand(2, 2))], relation, **SIZES, anchors=1, rng=rng())


# Section 4.3 and Figure 5: cross-retrieval rank.


def slow(found, text_to_image):
    """(r_t, r_i) of every pair by counting what scores higher."""
    pairs = []
    for text, image in enumerate(text_to_image.tolist()):
        if image < 0:
            continue
        level = float(found[image, text])
        row = found[image][text_to_image != image]
        column = found[:, text][torch.arange(len(found)) != image]
        pairs.append((1 + int((row > level).sum()), 1 + int((column > level).sum())))
    return pairs


@pytest.mark.parametrize("seed", range(4))
def test_ranks_are_those_of_counting(seed):
    text_to_image = ragged(17, seed, orphans=2)
    first, second = (scores(17, text_to_image, seed + more) for more in (0, 9))
    for members, expected in (
        ([member(first)], first),
        ([member(first), member(second)], (first + second) / 2),  # an ensemble, by its mean
    ):
        r_t, r_i = pair_ranks(members, text_to_image)
        assert list(zip(r_t.tolist(), r_i.tolist())) == slow(expected, text_to_image)


def test_five_captions_give_the_paper_s_formula():
    text_to_image = torch.arange(12).repeat_interleave(5)
    found = scores(12, text_to_image, 0)
    ranks = cross_ranks(*pair_ranks([member(found)], text_to_image), 5)
    paper = [float(max(5 * r_i - 4, r_t)) for r_t, r_i in slow(found, text_to_image)]
    assert ranks.tolist() == paper


def test_shares_fill_the_bins():
    ranks = torch.tensor([1, 2, 5, 6, 10, 11, 20, 21, 50, 51, 100, 101, 200, 201, 9000.0])
    shares = rank_shares(ranks)
    assert [round(share * 15 / 100) for share in shares] == [1, 2, 2, 2, 2, 2, 2, 2]
    assert len(BINS) == len(shares)
    assert sum(shares) == pytest.approx(100)
    between = cross_ranks(torch.tensor([1]), torch.tensor([2]), 4.5)
    assert between.tolist() == [5.5]
    assert rank_shares(between)[2] == 100, "in the upper bin"


def test_texts_of_nothing_are_no_pairs():
    with pytest.raises(ValueError, match="none of the 3 texts describes an image"):
        pair_ranks([member(torch.rand(2, 3))], torch.full((3,), -1))
