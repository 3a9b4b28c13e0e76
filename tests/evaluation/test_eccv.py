from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.evaluation import extended


def _slow(ranking, true):
    size = len(true)
    precisions = [
        len(set(ranking[:r]) & true) / r if ranking[r - 1] in true else 0.0
        for r in range(1, size + 1)
    ]
    return sum(precisions) / size, len(set(ranking[:size]) & true) / size


@given(
    st.lists(st.sets(st.integers(0, 15), min_size=1, max_size=12), min_size=1, max_size=5),
    st.lists(st.permutations(range(16)), min_size=5, max_size=5),
    st.integers(12, 16),
)
def test_equals_a_slow_loop(true, rankings, depth):
    rankings = [ranking[:depth] for ranking in rankings[: len(true)]]
    known = {n: frozenset(items) for n, items in enumerate(true)}
    found = extended.eccv_score(torch.tensor(rankings), known, "i2t")
    slow = [_slow(ranking, items) for ranking, items in zip(rankings, true)]
    assert found.map_at_r == pytest.approx(100 * sum(a for a, _ in slow) / len(true))
    assert found.r_precision == pytest.approx(100 * sum(p for _, p in slow) / len(true))
    for k, ours in ((1, found.r1), (5, found.r5), (10, found.r10)):
        hits = [bool(set(ranking[:k]) & items) for ranking, items in zip(rankings, true)]
        assert ours == pytest.approx(100 * sum(hits) / len(hits))
    assert json.loads(json.dumps(found.to_dict()))["queries"] == len(true)


def test_rankings_must_be_deep_enough():
    with pytest.raises(ValueError, match="3 true items but rankings are 2 deep; rank at least 3"):
        extended.rank_precisions(torch.tensor([[1, 2]]), {0: frozenset({1, 2, 3})})


def test_a_query_without_truth():
    with pytest.raises(ValueError, match="1 queries have no true item"):
        extended.rank_precisions(torch.tensor([[1], [1]]), {0: frozenset({1}), 1: frozenset()})
