from __future__ import annotations

import pytest
import torch

from counterfoil.evaluation.galleries import differ
from counterfoil.evaluation.metrics import RankedQueries


def ranked(ranks, images=None):
    images = torch.arange(len(ranks)) if images is None else torch.tensor(images)
    return RankedQueries("t2i", torch.tensor(ranks), images, torch.zeros(len(ranks)).long())


def test_most_times_better_comes_first():
    first, second = ranked([99, 9, 5, 0, 3, 0]), ranked([9, 0, 5, 2, 0, 99])
    better, worse = differ(first, second, 9)
    assert better == [0, 1, 4]  # 100 to 10 is as much as 10 to 1: the lower row first
    assert worse == [5, 3]
    assert differ(second, first, 9) == (worse, better)
    assert differ(first, second, 1) == ([0], [5])


def test_one_query_of_an_image():
    first, second = ranked([9, 5, 7], [4, 4, 1]), ranked([0, 0, 0], [4, 4, 1])
    assert differ(first, second, 5)[0] == [0, 2]


def test_queries_without_an_answer_are_left_out():
    assert differ(ranked([-1, 4]), ranked([-1, 1]), 5) == ([1], [])


def test_other_queries():
    with pytest.raises(ValueError, match="different queries, 2 and 3"):
        differ(ranked([1, 2]), ranked([1, 2, 3]), 1)
