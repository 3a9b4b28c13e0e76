from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.papers.tags.true_rate import filter_results, lowest, roc_auc


def percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else math.nan


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3)), min_size=1, max_size=9))
@settings(deadline=None, max_examples=30)
def test_rates_are_those_of_a_loop(rows):
    true, keeps, image = (torch.tensor(column) for column in zip(*rows))
    found = filter_results(true, image, {"none": torch.ones_like(true), "some": keeps})[1]
    kept = [t for t, k, _ in rows if k]
    wanted = (
        percent(len(kept), len(rows)),
        percent(kept.count(False), len(kept)),
        percent(sum(t and not k for t, k, _ in rows), sum(t for t, _, _ in rows)),
        percent(sum(not t and not k for t, k, _ in rows), sum(not t for t, _, _ in rows)),
    )
    assert (found.kept, found.true) == (len(kept), sum(kept))
    for share, value in zip(found[3:], wanted, strict=True):
        assert share.value == pytest.approx(value, nan_ok=True)
        if not math.isnan(value):
            assert -1e-9 <= share.interval.low <= share.interval.high <= 100 + 1e-9


def test_intervals_draw_images_and_not_captions():
    """Captions that rise and fall together tell less than as many that do not."""
    true = torch.arange(400) % 20 < 10
    every = {"none": torch.ones_like(true)}
    alone = filter_results(true, torch.arange(400), every)[0].false_rate.interval
    together = filter_results(true, torch.arange(400) // 10, every)[0].false_rate.interval
    assert together.high - together.low > 2 * (alone.high - alone.low)
    assert alone.low < 50 < alone.high


def test_nothing_to_judge_is_refused():
    none = torch.zeros(0, dtype=torch.bool)
    with pytest.raises(ValueError, match="no caption is known"):
        filter_results(none, none.long(), {"none": none})


def test_the_highest_scores_are_left_out():
    scores = torch.tensor([3.0, 1, 2, 3, 0])
    assert lowest(scores, 0.2).tolist() == [True, True, True, False, True]
    assert lowest(scores, 0.4).tolist() == [False, True, True, False, True]
    assert lowest(scores, 0.0).all()
    assert not lowest(scores, 1.0).any()


def test_pairs_told_apart_are_counted():
    rng = torch.Generator().manual_seed(0)
    scores = torch.randint(6, (40,), generator=rng).float()
    true, image = torch.rand(40, generator=rng) < 0.3, torch.arange(40) // 4
    right = [a > b for a in scores[true].tolist() for b in scores[~true].tolist()]
    found = roc_auc(scores, true, image)
    assert found.value == pytest.approx(100 * sum(right) / len(right))
    assert found.count == len(right)
    assert found.interval.low < found.value < found.interval.high
    again = roc_auc(scores, true, image)
    assert again == found
    assert roc_auc(scores, true, image, seed=1).interval != found.interval
