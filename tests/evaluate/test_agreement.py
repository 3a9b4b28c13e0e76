from __future__ import annotations

import math
from collections import Counter
from itertools import combinations, permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.evaluate.agreement import agreements, alpha, kappa, wilson

ANSWERS = st.integers(-1, 2)


def slow_kappa(first: list[int], second: list[int]) -> float:
    pairs = [(a, b) for a, b in zip(first, second) if a >= 0 and b >= 0]
    if not pairs:
        return math.nan
    seen = sum(a == b for a, b in pairs) / len(pairs)
    one, two = (Counter(side) for side in zip(*pairs))
    chance = sum(one[c] * two[c] for c in one) / len(pairs) ** 2
    return (seen - chance) / (1 - chance) if chance < 1 else math.nan


def slow_alpha(rows: list[list[int]]) -> float:
    """By all ordered pairs of answers to one item."""
    together: Counter[tuple[int, int]] = Counter()
    for item in zip(*rows):
        there = [a for a in item if a >= 0]
        if len(there) > 1:
            for pair in permutations(range(len(there)), 2):
                together[there[pair[0]], there[pair[1]]] += 1 / (len(there) - 1)
    many = sum(together.values())
    totals: Counter[int] = Counter()
    for (a, _), count in together.items():
        totals[a] += count
    chance = sum(totals[a] * totals[b] for a, b in permutations(totals, 2))
    unlike = sum(count for (a, b), count in together.items() if a != b)
    return 1 - (many - 1) * unlike / chance if chance else math.nan


@given(st.lists(st.tuples(ANSWERS, ANSWERS), min_size=1, max_size=12))
@settings(deadline=None)
def test_kappa_is_that_of_a_loop(rows):
    first, second = map(list, zip(*rows))
    found = kappa(torch.tensor(first), torch.tensor(second)).item()
    assert found == pytest.approx(slow_kappa(first, second), nan_ok=True)


@given(st.lists(st.tuples(*[ANSWERS] * 4), min_size=1, max_size=10))
@settings(deadline=None)
def test_alpha_is_that_of_a_loop(rows):
    judges = [list(side) for side in zip(*rows)]
    found = alpha(torch.tensor(judges)).item()
    assert found == pytest.approx(slow_alpha(judges), nan_ok=True)


def test_alpha_of_krippendorffs_own_example():
    """Four coders, twelve units, nominal: 0.743 (Content Analysis, 2004, section 11.3)."""
    rows = [
        "1 2 3 3 2 1 4 1 2 . . .",
        "1 2 3 3 2 2 4 1 2 5 . 3",
        ". 3 3 3 2 3 4 2 2 5 1 .",
        "1 2 3 3 2 4 4 1 2 5 1 .",
    ]
    answers = [[int(a) - 1 if a != "." else -1 for a in row.split()] for row in rows]
    assert alpha(torch.tensor(answers)).item() == pytest.approx(0.743, abs=5e-4)


def test_kappa_of_a_table():
    """20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: 0.4."""
    cells = [(0, 0)] * 20 + [(0, 1)] * 5 + [(1, 0)] * 10 + [(1, 1)] * 15
    first, second = torch.tensor(cells).T
    assert kappa(first, second).item() == pytest.approx(0.4)
    [found] = agreements(torch.stack([first, second]))
    assert found.raw.value == pytest.approx(70)
    assert found.kappa.value == pytest.approx(0.4)
    assert found.kappa.interval.low < 0.4 < found.kappa.interval.high
    assert found.raw.interval.low < 70 < found.raw.interval.high
    assert found.alpha is None


def test_three_judges_are_compared_by_two_and_together():
    rng = torch.Generator().manual_seed(0)
    answers = torch.randint(-1, 3, (3, 40), generator=rng)
    found = agreements(answers)
    assert [one.judges for one in found] == [(0, 1), (0, 2), (1, 2), (0, 1, 2)]
    for one, pair in zip(found, combinations(answers.tolist(), 2)):
        both = [(a, b) for a, b in zip(*pair) if a >= 0 and b >= 0]
        assert one.items == len(both)
        assert one.raw.value == pytest.approx(100 * sum(a == b for a, b in both) / len(both))
    assert found[-1].alpha.value == pytest.approx(slow_alpha(answers.tolist()))
    assert found[-1].kappa is None
    assert found == agreements(answers)


def test_where_nobody_could_disagree_nothing_is_said():
    same = agreements(torch.zeros(2, 9, dtype=torch.long))[0]
    assert math.isnan(same.kappa.value)
    assert same.plain()["kappa"] is None
    assert same.raw.value == 100


@pytest.mark.parametrize(
    "share, count, low, high",
    [(96.5, 200, 92.95, 98.29), (100, 200, 98.12, 100), (0, 10, 0, 27.75)],
)
def test_wilsons_interval(share, count, low, high):
    found = wilson(share, count)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.01)


@given(st.integers(1, 400), st.floats(0, 1))
def test_wilsons_interval_solves_its_equation(count, part):
    share = 100 * round(part * count) / count
    found = wilson(share, count)
    assert found.low - 1e-9 <= share <= found.high + 1e-9
    for edge in (found.low, found.high):
        p = edge / 100
        if 0 < p < 1:
            gap = abs(share / 100 - p)
            assert gap == pytest.approx(1.96 * math.sqrt(p * (1 - p) / count), rel=1e-3, abs=1e-6)
