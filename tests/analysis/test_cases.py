from __future__ import annotations

import pytest
import torch

from counterfoil.analysis.tags_dc import choose_cases, margin_differences


def test_margins_are_compared_in_units_of_their_spread():
    rng = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 50, generator=rng)
    found = margin_differences(first, second)
    slow = [
        float(b) / float(second.double().std(correction=0))
        - float(a) / float(first.double().std(correction=0))
        for a, b in zip(first, second)
    ]
    assert found.tolist() == pytest.approx(slow)
    torch.testing.assert_close(margin_differences(first * 30, second), found)
    assert margin_differences(torch.ones(3), torch.ones(3)).tolist() == [0, 0, 0]


def test_the_largest_of_each_side_one_a_picture():
    gaps = torch.tensor([5.0, 4, 3, -1, -6, 0, 2])
    images = torch.tensor([0, 0, 1, 1, 2, 3, 4])
    second, first, random = choose_cases(gaps, images, 2)
    assert second == [0, 2]
    assert first == [4], "row 3 is of a picture that is shown already"
    assert set(random) == {5, 6}
    assert choose_cases(gaps, images, 1, seed=3) == choose_cases(gaps, images, 1, seed=3)
    drawn = {tuple(choose_cases(gaps, images, 1, seed=seed)[2]) for seed in range(20)}
    assert len(drawn) > 1
    assert choose_cases(gaps.abs(), images, 2)[1] == []
