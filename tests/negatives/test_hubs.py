from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.negatives.diagnose import list_overlap, measure_hubs
from negatives_cases import ragged, random_lists


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), first=st.integers(1, 12))
def test_counts_against_a_loop(seed: int, first: int) -> None:
    relation = ragged(9, seed)
    lists = random_lists(relation, 8, 3, seed)
    texts = len(relation.text_to_image)
    found = measure_hubs(lists.texts, texts, first=first, largest=texts)
    counts = Counter(t for line in lists.texts.tolist() for t in line[:first] if t >= 0)
    assert found.first == min(first, 8)
    assert dict(found.largest) == {t: counts[t] for t in range(texts)}
    listed = [count for _, count in found.largest]
    assert listed == sorted(listed, reverse=True)
    assert found.never == pytest.approx(100 * sum(counts[t] == 0 for t in range(texts)) / texts)
    assert found.crowd == pytest.approx(100 * listed[0] / sum(listed))
    mean = sum(listed) / texts
    spread = (sum((c - mean) ** 2 for c in listed) / texts) ** 0.5
    wanted = sum((c - mean) ** 3 for c in listed) / texts / spread**3 if spread else 0.0
    assert found.skewness == pytest.approx(wanted)


def test_one_hub_is_skewed_and_equal_shares_are_not() -> None:
    even = measure_hubs(torch.arange(6).view(6, 1), 6)
    assert (even.skewness, even.never) == (0, 0)
    one = measure_hubs(torch.zeros(6, 1), 6, largest=1)
    assert one.skewness > 1.5
    assert one.largest == ((0, 6),)
    assert one.crowd == 100


def test_lists_of_nothing() -> None:
    found = measure_hubs(torch.full((3, 2), -1), 4)
    assert (found.skewness, found.never, found.crowd) == (0, 100, 0)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), first=st.integers(1, 6))
def test_overlap_against_a_loop(seed: int, first: int) -> None:
    relation = ragged(8, seed)
    lists = random_lists(relation, 4, 5, seed).images
    groups = [relation.captions(torch.tensor([image]))[0] for image in range(8)]
    shares = []
    for group in groups:
        for a, b in combinations(group.tolist(), 2):
            one, other = ({int(x) for x in lists[n, :first] if x >= 0} for n in (a, b))
            shares.append(100 * len(one & other) / len(one | other))
    wanted = pytest.approx(sum(shares) / len(shares)) if shares else None
    assert list_overlap(lists, groups, first=first) == wanted
