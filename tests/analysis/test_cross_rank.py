from __future__ import annotations

import pytest
import torch

import evaluation_cases
from counterfoil.analysis.aoq import BINS, CrossRanks, cross_ranks
from evaluation_cases import member, ragged, scores


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
    found = scores(17, text_to_image, seed)
    ranks = cross_ranks([member(found)], text_to_image)
    assert list(zip(ranks.texts.tolist(), ranks.images.tolist())) == slow(found, text_to_image)
    assert ranks.ratio == int((text_to_image >= 0).sum()) / 17


def test_five_captions_give_the_paper_s_formula():
    text_to_image = torch.arange(12).repeat_interleave(5)
    found = scores(12, text_to_image, 0)
    ranks = cross_ranks([member(found)], text_to_image)
    paper = [float(max(5 * r_i - 4, r_t)) for r_t, r_i in slow(found, text_to_image)]
    assert ranks.cross.tolist() == paper


def test_an_ensemble_is_ranked_by_its_mean():
    text_to_image = ragged(9, 1)
    first, second = (scores(9, text_to_image, seed) for seed in (1, 2))
    both = cross_ranks([member(first), member(second)], text_to_image)
    assert list(zip(both.texts.tolist(), both.images.tolist())) == slow(
        (first + second) / 2, text_to_image
    )


def test_shares_fill_the_bins():
    cross = [1, 2, 5, 6, 10, 11, 20, 21, 50, 51, 100, 101, 200, 201, 9000]
    ranks = CrossRanks(torch.tensor(cross), torch.ones(15).long(), 5.0)
    counts = [round(share * 15 / 100) for share in ranks.shares()]
    assert counts == [1, 2, 2, 2, 2, 2, 2, 2]
    assert len(BINS) == len(counts)
    assert sum(ranks.shares()) == pytest.approx(100)


def test_a_rank_between_bins_falls_in_the_upper_one():
    ranks = CrossRanks(torch.tensor([1]), torch.tensor([2]), 4.5)
    assert ranks.cross.tolist() == [5.5]
    assert ranks.shares()[2] == 100


def test_texts_of_nothing_are_no_pairs():
    with pytest.raises(ValueError, match="none of the 3 texts describes an image"):
        cross_ranks([evaluation_cases.member(torch.rand(2, 3))], torch.full((3,), -1))
