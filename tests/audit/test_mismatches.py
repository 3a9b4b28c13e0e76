from __future__ import annotations

import pytest
import torch

from counterfoil.audit import MISMATCH_SHARE, rank_mismatches
from evaluation_cases import member, scores


@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_a_loop(seed):
    text_to_image = torch.tensor([0, 0, 1, 2, 3, 3, 3, 4, -1, 5])
    grid = scores(7, text_to_image, seed)
    found = rank_mismatches([member(grid)], text_to_image)
    for text, image in enumerate(text_to_image.tolist()):
        if image < 0:
            assert (found.images[text], found.texts[text], found.shares[text]) == (-1, -1, -1)
            continue
        own = float(grid[image, text])
        better = [i for i in range(7) if i != image and float(grid[i, text]) > own]
        others = [t for t in range(10) if text_to_image[t] != image]
        above = [t for t in others if float(grid[image, t]) > own]
        assert (int(found.images[text]), int(found.texts[text])) == (len(better), len(above))
        assert float(found.shares[text]) == min(len(better) / 6, len(above) / len(others))


def test_a_caption_that_was_exchanged_is_the_worst_and_one_that_says_little_is_not():
    text_to_image = torch.arange(40)
    grid = torch.eye(40) + 0.01 * torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    grid[:, [3, 9]] = grid[:, [9, 3]]  # their captions were exchanged
    grid[:, 20] = 0.9  # fits everything alike
    grid[20, 20] = 0.85
    found = rank_mismatches([member(grid)], text_to_image)
    assert set(found.worst()) == {3, 9} & {
        row for row in range(40) if found.shares[row] >= MISMATCH_SHARE
    }
    assert int(found.images[20]) == 39
    assert int(found.texts[20]) == 0
