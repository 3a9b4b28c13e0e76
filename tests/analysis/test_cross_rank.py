from __future__ import annotations

import pytest
import torch

from counterfoil.analysis.aoq import BINS, cross_ranks, pair_ranks, rank_shares
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


def test_a_rank_between_bins_falls_in_the_upper_one():
    ranks = cross_ranks(torch.tensor([1]), torch.tensor([2]), 4.5)
    assert ranks.tolist() == [5.5]
    assert rank_shares(ranks)[2] == 100


def test_texts_of_nothing_are_no_pairs():
    with pytest.raises(ValueError, match="none of the 3 texts describes an image"):
        pair_ranks([member(torch.rand(2, 3))], torch.full((3,), -1))
