from __future__ import annotations

import math
import random

import pytest
import torch

from counterfoil.evaluation.bootstrap import Counted, shares


def test_by_a_loop():
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(7, (40,), generator=rng) * 3
    right, among = (torch.rand(40, generator=rng) < 0.6 for _ in range(2))
    found = shares([Counted.where(right, among)], images, scale=100, resamples=4000)[0]
    kept = [r for r, a in zip(right.tolist(), among.tolist()) if a]
    assert found.count == len(kept)
    assert found.value == pytest.approx(100 * sum(kept) / len(kept))
    slow, names = [], sorted(set(images.tolist()))
    draw = random.Random(1)
    for _ in range(4000):
        gained = possible = 0
        for name in draw.choices(names, k=len(names)):
            for row in range(40):
                if images[row] == name and among[row]:
                    possible += 1
                    gained += int(right[row])
        slow.append(100 * gained / possible)
    slow.sort()
    assert found.interval.low == pytest.approx(slow[100], abs=1.5)
    assert found.interval.high == pytest.approx(slow[3899], abs=1.5)


def test_columns_count_alike_and_empty_draws_of_one_are_left_out():
    gained = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    possible = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 2.0]])
    found = shares([Counted(gained, possible)], torch.arange(3))[0]
    assert found.value == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert 0 <= found.interval.low <= found.value <= found.interval.high <= 1


def test_one_image_has_no_spread_and_the_same_seed_gives_the_same():
    values = torch.tensor([1.0, 2.0, 6.0])
    found = shares([Counted.mean(values)], torch.tensor([4, 4, 4]))[0]
    assert (found.value, found.interval.low, found.interval.high) == pytest.approx((3, 3, 3))
    values, images = torch.arange(20) ** 1.5, torch.arange(20)
    one, two = (shares([Counted.mean(values)], images, seed=5)[0] for _ in range(2))
    assert one == two
    assert one != shares([Counted.mean(values)], images, seed=6)[0]


@pytest.mark.parametrize("many", [0, 3])
def test_nothing_counts(many):
    nothing = torch.zeros(many, dtype=torch.bool)
    found = shares([Counted.where(nothing, nothing)], torch.arange(many))[0]
    assert found.count == 0
    assert math.isnan(found.value)
    assert found.to_dict() == {"value": None, "interval": None, "count": 0}
