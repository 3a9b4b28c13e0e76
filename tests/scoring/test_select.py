from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.scoring import reducers

floats = st.floats(width=32, allow_nan=False)


@given(st.lists(st.tuples(floats, st.integers(0, 2**31)), min_size=2, max_size=40))
def test_keys_order_like_score_then_row(pairs):
    scores = torch.tensor([score for score, _ in pairs])
    rows = torch.tensor([row for _, row in pairs])
    keys = reducers.rank_keys(scores, rows)
    got = [pairs[place] for place in keys.argsort(descending=True, stable=True).tolist()]
    assert got == sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
    assert torch.equal(reducers.scores_of(keys), scores)
    assert torch.equal(reducers.rows_of(keys), rows)


def test_nothing_is_below_every_key():
    keys = reducers.rank_keys(torch.tensor([-torch.inf]), torch.tensor([2**31]))
    assert keys.item() > reducers.NOTHING
    nothing = torch.tensor([reducers.NOTHING])
    assert reducers.rows_of(nothing).item() == -1
    assert reducers.scores_of(nothing).item() == -torch.inf


def test_zero_has_no_sign():
    keys = reducers.rank_keys(torch.tensor([0.0, -0.0]), torch.tensor([1, 0]))
    assert keys[1] > keys[0]


class _Elsewhere(torch.Tensor):
    """Says that it lives on a GPU, so that the other way is taken."""

    @property
    def device(self):
        return torch.device("meta")


def _elsewhere(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(_Elsewhere)


@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 12), st.integers(0, 99))
def test_both_ways_pick_the_same(height, width, k, seed):
    rng = np.random.default_rng(seed)
    keys = torch.from_numpy(rng.integers(-9, 9, (height, width)))
    here, there = (
        reducers.best_columns(keys.clone(), k),
        reducers.best_columns(_elsewhere(keys.clone()), k),
    )
    assert here.shape == (height, min(k, width))
    assert torch.equal(reducers.sort_descending(here), reducers.sort_descending(_elsewhere(there)))
    assert torch.equal(here[:, 0], here.amin(1))
    assert torch.equal(there[:, 0], here[:, 0])
    expected = keys.sort(1, descending=True).values[:, :k]
    assert torch.equal(reducers.sort_descending(here), expected)
    labels = keys.flatten() + 9
    order = reducers.group_by_owner(labels, 19)
    assert torch.equal(order, reducers.group_by_owner(_elsewhere(labels), 19))
    assert order.tolist() == sorted(range(len(labels)), key=lambda place: labels[place].item())


@pytest.mark.parametrize("side", [0, 1])
def test_reaching_is_a_comparison(side):
    scores = torch.randint(0, 5, (7, 11), generator=torch.Generator().manual_seed(0)).float()
    floor = scores.median(side, keepdim=True).values
    for scores_there in (scores, _elsewhere(scores)):
        reached, count = reducers.at_least(scores_there, floor)
        values, rows, columns = reducers.entries_at(scores_there, reached)
        want = (scores >= floor).nonzero()
        assert count == len(want)
        assert torch.equal(torch.stack([rows, columns], 1), want)
        assert torch.equal(values, scores[want[:, 0], want[:, 1]])


def test_many_groups_are_sorted_too():
    labels = torch.tensor([40_000, 3, 40_000, 0])
    assert reducers.group_by_owner(labels, 50_000).tolist() == [3, 1, 0, 2]
